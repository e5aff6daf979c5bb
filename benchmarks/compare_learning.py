"""Compares a run's learning curves with SBX's: writes docs/learning.md and its plot.

    rlx2 train --env=Hopper-v5 --method=dense --seeds=4 --steps=300000 \
        --logdir=runs/hopper
    .venv-sbx/bin/python benchmarks/peers/sbx_peer.py learn --steps=300000 --out=sbx0.csv
    python -m benchmarks.compare_learning --logdir=runs/hopper --peer=sbx0.csv --out=docs
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from benchmarks.performance import table
from rlx2_jax.cli import crash
from rlx2_jax.reporting import csvlog

LAST = 30  # evaluations averaged into a final score
DIFFERENCES = (  # between SBX's TD3 and the paper's that no setting removes
    "Some differences are not settings: SBX updates its targets at every update, rlx2_jax (like "
    "the paper) at every second one; SBX's actor maximizes the smaller of both critics, that of "
    "rlx2_jax the first; SBX's initial weights are about 1.7 times as large."
)


class Curve(NamedTuple):
    """Evaluation returns of one seed."""

    name: str
    step: np.ndarray
    value: np.ndarray

    @property
    def score(self) -> float:
        return float(self.value[-LAST:].mean())


def ours(logdir: Path) -> list[Curve]:
    """One curve for each lane of a run."""
    log = _read(logdir / "evaluations.csv", ["lane", "seed", "step", "mean_return"])
    rows = [log["lane"] == lane for lane in np.unique(log["lane"])]
    return [
        Curve(f"seed {log['seed'][row][0]:.0f}", log["step"][row], log["mean_return"][row])
        for row in rows
    ]


def peer(path: Path) -> Curve:
    """The curve that `sbx_peer.py learn` wrote."""
    log = _read(path, ["step", "mean_return"])
    return Curve(path.stem, log["step"], log["mean_return"])


def _read(path: Path, columns: list[str]) -> dict[str, np.ndarray]:
    log = csvlog.read(path, columns)
    if log.problems or not len(log.columns["step"]):
        raise ValueError("; ".join(log.problems) or f"{path} has no evaluations")
    return log.columns


def write(logdir: Path, peers: list[Path], out: Path) -> None:
    """Writes the page and its plot. All curves must end at the same step to be comparable."""
    groups = {"rlx2_jax": ours(logdir), "SBX": [peer(path) for path in peers]}
    ends = {float(curve.step[-1]) for curves in groups.values() for curve in curves}
    if len(ends) > 1:
        shown = ", ".join(f"{end:,.0f}" for end in sorted(ends))
        raise ValueError(f"the curves end at steps {shown}: let all finish first")
    config = json.loads((logdir / "config.json").read_text())
    lanes, algo = config["lanes"], config["config"]["algo"].upper()
    method = "/".join(sorted({lane["method"] for lane in lanes}))
    title = f"{method} {algo} on {config['env']}"
    rows = [
        [f"{name}, {c.name}", f"{c.score:,.0f}", f"{c.value[-1]:,.0f}", f"{c.value.max():,.0f}"]
        for name, curves in groups.items()
        for c in curves
    ]
    head = ["", f"mean of the last {LAST} evaluations", "last evaluation", "best evaluation"]
    parts = [
        "# Learning curves against SBX",
        f"{title}, {ends.pop():,.0f} steps, the same settings in both; 10 noise-free episodes "
        "every 5,000 steps. `python -m benchmarks.compare_learning` writes this page.",
        table(head, rows),
        " ".join(map(_summary, groups, groups.values())),
        *([DIFFERENCES] if algo == "TD3" else []),
        "![Return against environment steps](learning.png)",
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "learning.md").write_text("\n\n".join(parts) + "\n")
    draw(groups, title).savefig(out / "learning.png", dpi=120, metadata={"Software": None})


def _summary(name: str, curves: list[Curve]) -> str:
    scores = [curve.score for curve in curves]
    if len(scores) == 1:
        return f"{name}: {scores[0]:,.0f}, one seed."
    spread = np.std(scores, ddof=1)
    return f"{name}: {np.mean(scores):,.0f} ± {spread:,.0f} over {len(scores)} seeds."


def draw(groups: dict[str, list[Curve]], title: str) -> Figure:
    """Plots one line per seed, one colour per program."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, curves), color in zip(groups.items(), ("C0", "C1")):
        for i, curve in enumerate(curves):
            label = name if i == 0 else None
            axes.plot(curve.step, curve.value, color=color, lw=1.2, alpha=0.8, label=label)
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defined when the command runs, because flag names are shared between commands."""
    to: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("logdir", None, "Run directory.", required=True, **to)
    flags.DEFINE_list(
        "peer", None, "CSV files written by `sbx_peer.py learn`.", required=True, **to
    )
    flags.DEFINE_string("out", "docs", "Output directory of the page.", **to)


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    try:
        write(Path(flags.FLAGS.logdir), list(map(Path, flags.FLAGS.peer)), Path(flags.FLAGS.out))
    except (ValueError, KeyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    define_flags()
    crash.run(main)
