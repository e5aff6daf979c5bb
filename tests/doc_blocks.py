"""The code blocks of README.md and docs/*.md, with the comments that mark some of them.

    <!-- needs: sbx -->      runs only where the modules can be imported (comma-separated);
                             `gpu` stands for a GPU
    <!-- slow -->            runs in the slow tier only

A marker stands on the line before the fence. Everything else runs in the default tier.
"""

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import jax
from paths import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
_FENCE = re.compile(
    r"(?:^<!-- (?P<marker>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    code: str
    needs: tuple[str, ...]
    slow: bool

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def missing(self) -> list[str]:
        """The requirements that this machine lacks."""
        return [name for name in self.needs if not available(name)]


def available(name: str) -> bool:
    """Whether a module can be imported, or there is a GPU."""
    if name == "gpu":
        return jax.default_backend() == "gpu"
    return importlib.util.find_spec(name) is not None


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of one language on a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        if match["language"] != language:
            continue
        line = text[: match.start("code")].count("\n") + 1
        needs, slow = parse_marker(match["marker"] or "")
        found.append(Block(page, line, language, match["code"], needs, slow))
    return found


def parse_marker(text: str) -> tuple[tuple[str, ...], bool]:
    """The content of a marker; None for other comments."""
    if text == "slow":
        return (), True
    if text.startswith("needs:"):
        needs = tuple(name.strip() for name in text.removeprefix("needs:").split(","))
        if not all(name.isidentifier() for name in needs):
            raise ValueError(f"<!-- {text} -->: name modules that can be imported, or gpu")
        return needs, False
    return (), False
