"""Writes docs/presets.md from the option table: python -m experiments.presets_page"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rlx2_jax.agents  # noqa: F401  # registers all algorithms
from rlx2_jax.cli.setting_flags import LANE_FLAGS
from rlx2_jax.option_table import CHOICES, CONFIG, LANE, RUN
from rlx2_jax.options import NEVER, Option

PAGE = Path(__file__).parent.parent / "docs" / "presets.md"

_HEAD = """\
# Settings and presets
`python -m experiments.presets_page` generates this page from `rlx2_jax/option_table.py`, which also
defines validation and command-line flags.

## Where the paper and its code differ
`--preset=paper` follows the paper's text literally, `--preset=reference` the authors' released
code, which produced the reported numbers. Without either, a run uses the last column. Each row is
also a flag (`--trim_full=true|false`, ...) and a field of `rlx2_jax.config.Config`; `n`, `b_min`
and `b_max` are fields of `Lane`.
"""

_NOTES = """\
Section 4.2 of the paper pops items until the distance is below D_0; its Algorithm 3 drops a ratio
once per check, without giving the ratio. `paper` follows the section. Under `paper`, exploration
noise alone gives an L2 distance near or above D_0 = 0.2 (0.24 with 6 action dimensions), so the
buffer tends to shrink to its lower bound; `--dry_run` warns about this.

## All flags
Lane flags take comma-separated lists, and lanes are the product of all lists and seeds; in sweeps
they take one value. Integers have 32 bits. {never} means never in `t0`, `t_end`, `mask_interval`
and `buffer_interval`; other values that a run cannot reach give a warning when it starts. The
default of B_min depends on B_max, even if a run is too short to fill the buffer.
"""


def page() -> str:
    """The complete page."""
    rows = [_difference(option) for option in CHOICES.values()]
    rows += [_difference(o, "sac") for o in LANE.values() if isinstance(o.reference, dict)]
    head = ("option", "meaning", "paper", "reference", "default")
    single = [o for o in (*CONFIG.values(), *RUN.values()) if o.flag and o.name not in CHOICES]
    return "\n".join(
        [
            _HEAD,
            _markdown(head, rows),
            "",
            _NOTES.format(never=f"`{NEVER}`"),
            _markdown(("lane flag", "meaning", "allowed", "default"), map(_row, LANE_FLAGS)),
            "",
            _markdown(("run flag", "meaning", "allowed", "default"), map(_row, single)),
            "",
        ]
    )


def _difference(option: Option, algo: str = "td3") -> tuple[str, ...]:
    default = option.default_of(algo)
    presets = [option.preset_of(name, algo) for name in ("paper", "reference")]
    cells = [_value(option, default if x is None else x, explain=True) for x in presets]
    text = _value(option, default) + (f", {option.note}" if option.note else "")
    name = f"`{option.name}`" + (" of SAC" if algo == "sac" else "")
    return (name, option.about, *cells, text)


def _row(option: Option) -> tuple[str, ...]:
    default = option.default
    if isinstance(default, dict):
        text = ", ".join(f"{_value(option, v)} ({k.upper()})" for k, v in default.items())
    else:
        text = "" if "default:" in option.about else _value(option, default)
    if option.kind == "choice":
        allowed = ", ".join(f"`{x}`" for x in option.allowed)
    else:
        allowed = option.rule.removeprefix("use ").removesuffix(f" and at most {NEVER}")
    return (f"`--{option.name}`", option.about, allowed, text)


def _value(option: Option, value: Any, *, explain: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        text = str(value).lower()
    else:
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    meaning = option.meanings.get(str(value)) if explain else None
    return f"`{text}`" + (f": {meaning}" if meaning else "")


def _markdown(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
