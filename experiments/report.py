"""Compares the results of sweeps with the paper: Markdown, an HTML page, figures, CSV tables.

python -m experiments.report --logdir=runs/smoke
python -m experiments.report --logdir=runs/smoke --suites=table2,nstep --out=report
"""

import sys
from pathlib import Path

from absl import app, flags

from experiments.reporting import results, write
from experiments.reporting.exhibits import EXHIBITS
from rlx2_jax.cli import crash

FLAGS = flags.FLAGS


def report(logdir: Path, out: Path, suites: list[str] | None = None) -> int:
    """Writes the report; problems go to standard error and into the report.

    Returns 0, 1 if no suite was found (the ledger is still reported), or 2 if a name is unknown
    (the others are reported) or nothing can be read.
    """
    suites = None if suites == ["all"] else suites
    unknown = [name for name in suites or [] if name not in EXHIBITS]
    titles = {name: exhibit.title for name, exhibit in EXHIBITS.items()}
    try:
        found = results.load(logdir, titles, suites)
    except results.ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name in list(unknown):
        if name in found.suites:  # exists, but is not one of the paper's suites
            unknown.remove(name)
    for name in suites or []:
        if name not in found.suites and name not in unknown and name != "flops":
            found.warnings.append(f"suite {name} was requested, but {logdir.name} has none")
    empty = not found.suites and suites != ["flops"]
    if empty:
        found.warnings.append(
            f"{logdir.name} has no suite (<logdir>/<suite>/suite.json): only the ledger is "
            f"reported; run python -m experiments.sweep first"
        )
    try:
        warnings = write.write(found, out)
    except OSError as error:
        print(f"error: the report cannot be written to {out}: {error.strerror}", file=sys.stderr)
        return 2
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if unknown:
        print(
            f"error: no suite {', '.join(map(repr, unknown))}: choose among {', '.join(EXHIBITS)}",
            file=sys.stderr,
        )
    print(f"{out / 'index.html'}  {out / 'report.md'}")
    return 2 if unknown else 1 if empty else 0


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    if not FLAGS.logdir:
        print("error: --logdir is needed, the directory of the sweeps", file=sys.stderr)
        return 2
    logdir = Path(FLAGS.logdir)
    out = Path(FLAGS.out or logdir / "report")
    return crash.guarded(lambda: report(logdir, out, FLAGS.suites))


if __name__ == "__main__":
    flags.DEFINE_string("logdir", None, "The directory of the sweeps: <logdir>/<suite>/<unit>.")
    flags.DEFINE_string("out", None, "Output directory; default: <logdir>/report.")
    flags.DEFINE_list("suites", None, "Only these suites; default: all existing ones.")
    crash.run(main)
