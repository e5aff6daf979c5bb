"""References to the paper use the numbering of its LaTeX source."""

import re
from pathlib import Path

import pytest
from paths import ROOT

pytestmark = pytest.mark.fast

# Algorithms in order: topology evolution, efficient link growing, buffer, RLx2-TD3, RLx2-SAC.
ALGORITHMS = {
    "sparse/topology": {1},
    "sparse/optimizer": {1},
    "sparse/compact_topology": {1},
    "sparse/growth": {2},
    "replay/buffer": {3},
    "agents/td3": {4},
    "agents/sac": {5},
    "replay/returns": {4, 5},
}
LAST = {"algorithm": 5, "table": 14, "figure": 14, "equation": 9}  # 9: the last before appendix C
LAST_LINE = {1: 13, 2: 16, 3: 19, 4: 25, 5: 24}


def sources() -> list[Path]:
    folders = ("rlx2_jax", "experiments", "tests", "docs")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".md", ".h")]
    own = [p for p in files if p != Path(__file__)]
    return [ROOT / "README.md", *own]


@pytest.mark.parametrize(("module", "numbers"), ALGORITHMS.items())
def test_modules_name_their_algorithm(module: str, numbers: set[int]) -> None:
    text = (ROOT / "rlx2_jax" / f"{module}.py").read_text()
    assert {int(n) for n in re.findall(r"Algorithm (\d)", text)} == numbers


def test_numbers_exist_in_the_paper() -> None:
    for path in sources():
        text = path.read_text()
        for kind, number in re.findall(r"\b(algorithm|table|figure|equation) (\d+)\b", text, re.I):
            assert 1 <= int(number) <= LAST[kind.lower()], (path.name, kind, number)
        for number, first, last in re.findall(r"Algorithm (\d), lines? (\d+)(?:-(\d+))?", text):
            assert int(first) <= int(last or first) <= LAST_LINE[int(number)], path.name
    assert (
        "D(B, φ) of the oldest K transitions (equation 6)"
        in (ROOT / "rlx2_jax" / "replay" / "buffer.py").read_text()
    )


def test_the_readme_has_the_papers_title() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    title = "RLx2: Training a Sparse Deep Reinforcement Learning Model from Scratch"
    assert f"*{title}*, ICLR 2023" in text
    assert "Algorithm 3, equation 6" in text and "Algorithms 4 and 5" in text
