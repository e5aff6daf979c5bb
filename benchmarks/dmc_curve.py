"""Draws docs/dmc.png, learning curves of a DeepMind Control task, from docs/measured/dmc.csv.

    rlx2 train --env=HumanoidStand-v1 --env_backend=envpool --method=dense,rlx2 \
        --actor_sparsity=0.9 --critic_sparsity=0.8 --steps=20000 --warmup=2000 --t0=6000 \
        --mask_interval=1000 --buffer_interval=5000 --eval_interval=2000 --episodes=3 \
        --logdir=runs/dmc
    python -m benchmarks.dmc_curve --logdir=runs/dmc

Without --logdir it redraws the plot from the existing CSV file.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks.compare_learning import Curve, draw
from rlx2_jax.cli import crash

TASK = "HumanoidStand-v1"
NAME = Path("measured") / "dmc.csv"
COLUMNS = ("method", "seed", "step", "mean_return")


def take_over(logdir: Path, out: Path) -> None:
    """Writes a run's evaluations to a CSV file, with each lane's method and seed."""
    config = json.loads((logdir / "config.json").read_text())
    if config["env"] != TASK:
        raise ValueError(f"--logdir={logdir} trained {config['env']}: give a run of {TASK}")
    with (logdir / "evaluations.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (out / NAME).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            lane = config["lanes"][int(row["lane"])]
            writer.writerow([lane["method"], lane["seed"], row["step"], row["mean_return"]])


def curves(path: Path) -> dict[str, list[Curve]]:
    """Curves of all seeds, by method."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    groups: dict[str, list[Curve]] = {}
    for method, seed in dict.fromkeys((row["method"], row["seed"]) for row in rows):
        lane = [row for row in rows if (row["method"], row["seed"]) == (method, seed)]
        step, value = (np.array([float(row[k]) for row in lane]) for k in ("step", "mean_return"))
        groups.setdefault(method, []).append(Curve(f"seed {seed}", step, value))
    return groups


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defined when the command runs, because flag names are shared between commands."""
    to: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("logdir", None, "Run directory to take new numbers from.", **to)
    flags.DEFINE_string("out", "docs", "Output directory of the plot.", **to)


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    out = Path(flags.FLAGS.out)
    try:
        if flags.FLAGS.logdir:
            take_over(Path(flags.FLAGS.logdir), out)
        figure = draw(curves(out / NAME), f"TD3 on DeepMind Control's {TASK}")
    except (ValueError, KeyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figure.savefig(out / "dmc.png", dpi=120, metadata={"Software": None})
    return 0


if __name__ == "__main__":
    define_flags()
    crash.run(main)
