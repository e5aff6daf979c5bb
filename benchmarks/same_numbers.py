"""Checks that two versions of the source train the same numbers, bit for bit.

    python -m benchmarks.same_numbers OLD NEW [--only=NAME]

OLD and NEW are checkouts. Each makes the same short runs (TD3 and SAC, masked and compact,
Gymnasium and Brax, with mask updates, trims and the n-step switch), one after the other.
Evaluations carry a digest of all weights and masks; every number and digest must be equal.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCHEDULE = (
    "--steps=600",
    "--warmup=100",
    "--hidden=64,64",
    "--batch_size=64",
    "--mask_interval=50",
    "--t0=200",
    "--buffer_interval=100",
    "--b_min=100",
    "--b_max=400",
    "--d0=0.0001",
    "--eval_interval=100",
    "--metrics_interval=100",
    "--episodes=2",
    "--seeds=2",
)
BRAX = ("--env=inverted_pendulum", "--env_backend=brax")
RUNS: dict[str, tuple[str, ...]] = {
    f"{algo}-{form}-{where}": (f"--algo={algo}", f"--execution={form}", *task)
    for algo in ("td3", "sac")
    for form in ("masked", "compact")
    for where, task in (("gymnasium", ("--env=Hopper-v5",)), ("brax", BRAX))
}
RUNS |= {
    "td3-methods": ("--env=Hopper-v5", "--method=rlx2,set,rigl", "--execution=masked"),
    "td3-reference": ("--env=InvertedPendulum-v5", "--preset=reference"),
    "sac-paper": ("--env=InvertedPendulum-v5", "--algo=sac", "--preset=paper"),
    "td3-utd": ("--env=Hopper-v5", "--utd=3", "--num_envs=2", "--execution=compact"),
}


def run(source: Path, flags: tuple[str, ...], directory: Path) -> dict[str, list[list[str]]]:
    """Both logs of one run."""
    command = [sys.executable, "-m", "experiments.train", *SCHEDULE, *flags]
    variables = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [*command, f"--logdir={directory}"],
        cwd=source,
        env=variables,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{source}: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    logs = {}
    for name in ("evaluations.csv", "metrics.csv"):
        with (directory / name).open(newline="") as file:
            head, *rows = csv.reader(file)
        logs[name] = [[x for x, key in zip(row, head) if "seconds" not in key] for row in rows]
    return logs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    options = parser.parse_args()
    different = []
    for name, flags in RUNS.items():
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            old, new = (
                run(source.resolve(), flags, Path(scratch) / side)
                for side, source in (("old", options.old), ("new", options.new))
            )
        verdicts = [f"{log}: {_verdict(old[log], new[log])}" for log in old]
        different += [name] * (old != new)
        print(f"{name:24} {'; '.join(verdicts)}", flush=True)
    print(
        f"{len(different)} of the runs differ" + (f": {', '.join(different)}" if different else "")
    )
    return 1 if different else 0


def _verdict(old: list[list[str]], new: list[list[str]]) -> str:
    if old == new:
        return f"{len(old)} rows equal"
    first = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    return f"differ from row {first + 1} of {len(old)} and {len(new)}"


if __name__ == "__main__":
    sys.exit(main())
