"""Summarizes run directories, finished or not, as Markdown and a self-contained HTML page.

rlx2 report runs/hopper
rlx2 report runs/hopper runs/walker --out=report

Shows each lane's score and sparsities, the ledger of parameters and FLOPs, and the learning
curves. (From a clone, `python -m experiments.report` compares sweeps with the paper.)
"""

import sys
from pathlib import Path

from absl import flags

from rlx2_jax.reporting import runs
from rlx2_jax.training.run import RunError

POSITIONAL = "logdir"


def define_flags(values: flags.FlagValues) -> None:
    """The flags of `rlx2 report`."""
    flags.DEFINE_list("logdir", [], "Run directories.", flag_values=values)
    text = "Directory; default: <logdir>/report, or report for several runs."
    flags.DEFINE_string("out", None, text, flag_values=values)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    try:
        directories = [Path(name) for name in values.logdir]
        if not directories:
            raise RunError("--logdir is needed: rlx2 report RUN")
        out = directories[0] / "report" if len(directories) == 1 else Path("report")
        reports = [runs.read(directory) for directory in directories]
        written = runs.write(reports, Path(values.out) if values.out else out)
    except (RunError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for report in reports:
        for warning in report.warnings:
            print(f"warning: {report.name}: {warning}", file=sys.stderr)
    print(*written, sep="  ")
    return 0
