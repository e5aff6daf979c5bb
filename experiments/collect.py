"""Collects finished units of sweeps into small files that a repository can keep.

python -m experiments.collect --logdir=runs/tier1
python -m experiments.collect --logdir=runs/tier1 --out=results

`<out>/<suite>/<unit>/` is the unit's run directory without large files, which
`experiments.report` and `experiments.reproduce` can read:

    config.json       unchanged
    evaluations.csv   all evaluations; digests of weights for the first ones and the last
    metrics.csv       about 50 rows of each lane, with the most important columns
    summary.json      with digests of the final weights and the CPU's instruction set

Values that an older version did not record are null.
"""

import csv
import io
import math
import sys
from pathlib import Path
from typing import Any

from absl import app, flags

from rlx2_jax import files
from rlx2_jax.cli import crash
from rlx2_jax.training import logging, weights
from rlx2_jax.training.claim import SUMMARY, damaged
from rlx2_jax.training.evaluate import final_score
from rlx2_jax.training.run import CONFIG, RunError

FLAGS = flags.FLAGS
SUITE = "suite.json"
LARGE = 150_000  # bytes of a unit above which to warn
_DIGESTS = 20  # evaluations per lane whose digests are kept, in addition to the last
_POINTS = 50  # rows of metrics per lane
_ROUNDING = 1e-5  # of tables, which have 7 digits
_EVALUATIONS = (
    "lane", "step", "mean_return", "std_return", "mean_length", "value_bias", "value_spread",
    "weights",
)  # fmt: skip
_METRICS = (
    "lane", "step", "updates", "alive", "q", "target", "alpha", "critic_loss", "actor_loss", "n",
    "buffer_length", "policy_distance", "trims", "actor_overlap_with_initial",
    "critic_overlap_with_initial", "actor_dead_units", "critic_dead_units",
)  # fmt: skip

_WRONG = (files.Damaged, ValueError, KeyError, TypeError, csv.Error, OSError)

Rows = list[dict[str, str]]


def collect(logdir: Path, out: Path, *, replace: bool = False) -> int:
    """Collects all finished units in `logdir`; returns how many failed.

    Units that were collected before are skipped if they are the same, and replaced by different
    ones only with `replace`.
    """
    refused = 0
    for path in sorted(logdir.glob(f"*/{SUITE}")):
        suite = path.parent
        found = {}
        try:
            found[f"{suite.name}/{SUITE}"] = {SUITE: path.read_bytes()}
        except OSError as error:
            print(f"{path}: cannot be collected: {error.strerror}", file=sys.stderr)
            refused += 1
        for unit in sorted(x.parent for x in suite.glob(f"*/{SUMMARY}")):
            name = f"{suite.name}/{unit.name}"
            try:
                found[name] = small_files(unit)
            except (*_WRONG, RunError) as error:
                print(f"{name}: cannot be collected: {error}", file=sys.stderr)
                refused += 1
        for name, contents in found.items():
            folder = out / suite.name if name.endswith(SUITE) else out / name
            try:
                refused += not _keep(name, folder, contents, replace)
            except OSError as error:
                print(f"{name}: cannot be written to {folder}: {error.strerror}", file=sys.stderr)
                refused += 1
    return refused


def small_files(unit: Path) -> dict[str, bytes]:
    """The small files of a finished unit, by name. Raises if one was damaged since."""
    config = files.read_json(unit / CONFIG)
    sources = (CONFIG, logging.EVALUATIONS, logging.METRICS)
    if wrong := [x for x in damaged(unit) if x in sources or x.startswith("final/")]:
        raise ValueError(
            f"{', '.join(wrong)} is missing or was changed: run the sweep again to restore it"
        )
    evaluations = _rows(unit / logging.EVALUATIONS)
    _check_scores(files.read_json(unit / SUMMARY)["lanes"], evaluations)
    found = {CONFIG: (unit / CONFIG).read_bytes()}
    found[logging.EVALUATIONS] = _table(_evaluations(evaluations))
    found[logging.METRICS] = _table(_thinned(_rows(unit / logging.METRICS)))
    found[SUMMARY] = files.to_json(_summary(unit, config)).encode()
    return found


def _rows(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _table(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _by_lane(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["lane"], []).append(row)
    return found


def _check_scores(lanes: list[dict[str, Any]], evaluations: Rows) -> None:
    """Raises unless the evaluations give the scores of the summary."""
    by_lane = _by_lane(evaluations)
    for lane in lanes:
        rows = by_lane.get(str(lane["lane"]), [])
        means = [float(row["mean_return"]) for row in rows if int(row["step"]) > 0]
        score, used = final_score(means)
        same = math.isclose(score, lane["final_score"], rel_tol=_ROUNDING, abs_tol=_ROUNDING)
        both_nan = math.isnan(score) and math.isnan(lane["final_score"])
        if used != lane["evaluations_used"] or not (same or both_nan):
            raise ValueError(
                f"the evaluations of lane {lane['lane']} in {logging.EVALUATIONS} have a score of "
                f"{score:.7g}, {SUMMARY} has {lane['final_score']:.7g}"
            )


def _evaluations(rows: Rows) -> Rows:
    """Rows without columns from config.json and most digests, which do not compress."""
    kept = []
    for own in _by_lane(rows).values():
        for i, row in enumerate(own):
            small = {name: row[name] for name in _EVALUATIONS if name in row}
            if _DIGESTS <= i < len(own) - 1 and "weights" in small:
                small["weights"] = ""
            kept.append(small)
    return kept


def _thinned(rows: Rows) -> Rows:
    """About `_POINTS` rows of each lane, including the last."""
    kept = []
    for own in _by_lane(rows).values():
        every = max(1, round(len(own) / _POINTS))
        chosen = own[::-1][::every][::-1]
        kept += [{name: row[name] for name in _METRICS if name in row} for row in chosen]
    return kept


def _summary(unit: Path, config: dict[str, Any]) -> dict[str, Any]:
    """`summary.json` with all fields of a record; unknown ones are null."""
    summary = files.read_json(unit / SUMMARY)
    finals = [unit / "final" / f"lane-{i}.npz" for i in range(len(config["lanes"]))]
    digests = [weights.digest(weights.load(x)) if x.exists() else None for x in finals]
    lanes = [
        {**{k: v for k, v in row.items() if k != "ledger"}, "weights": digest}
        for row, digest in zip(summary["lanes"], digests, strict=True)
    ]
    machines = summary.get("machines")
    return {
        **summary,
        "lanes": lanes,
        "training_seconds": summary.get("training_seconds", _training_seconds(summary, config)),
        "evaluation_seconds": summary.get("evaluation_seconds"),
        "instructions": machines[-1].get("instructions") if machines else None,
        "machines": machines,
    }


def _training_seconds(summary: dict[str, Any], config: dict[str, Any]) -> float | None:
    """Training time of a run: chunks run in sequence, and the lanes of one share its speed."""
    rates = [row.get("steps_per_second") for row in summary["lanes"]]
    if None in rates or not config.get("chunk"):
        return None
    return sum(summary["steps"] / rate for rate in rates[:: config["chunk"]])


def _keep(name: str, folder: Path, contents: dict[str, bytes], replace: bool) -> bool:
    """Writes files unless the folder has different ones; returns whether it has them now."""
    before = {x: (folder / x).read_bytes() for x in contents if (folder / x).exists()}
    if before == contents:
        return True
    if before and not replace:
        print(
            f"{name}: {folder} has a different one, which is kept: use another --out, or "
            f"replace it with --replace",
            file=sys.stderr,
        )
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for x, data in contents.items():
        files.write_bytes(folder / x, data)
    size = sum(map(len, contents.values()))
    print(f"{name}: {'replaced' if before else 'collected'}, {size / 1000:.0f} kB")
    if size > LARGE and SUITE not in contents:
        print(f"warning: {name} has more than {LARGE / 1000:.0f} kB", file=sys.stderr)
    return True


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    logdir = Path(FLAGS.logdir or "")
    if not FLAGS.logdir or not list(logdir.glob(f"*/{SUITE}")):
        print(
            f"error: --logdir={FLAGS.logdir or ''} has no sweep (<logdir>/<suite>/{SUITE}): give "
            f"the --logdir of python -m experiments.sweep",
            file=sys.stderr,
        )
        return 2
    return 1 if collect(logdir, Path(FLAGS.out), replace=FLAGS.replace) else 0


if __name__ == "__main__":
    flags.DEFINE_string("logdir", None, "The directory of the sweeps: <logdir>/<suite>/<unit>.")
    flags.DEFINE_string("out", "results", "Directory to collect units in.")
    flags.DEFINE_bool("replace", False, "Replace units that were collected before and differ.")
    crash.run(main)
