"""Reruns the first steps of a recorded unit and compares its evaluations and weights.

python -m experiments.reproduce results/table2/td3-hopper-rlx2 --until=20000
python -m experiments.reproduce results/table2/td3-hopper-rlx2 --until=20000 --lanes=0

On the same CPU type, versions and kernels everything must be equal, bit for bit. Elsewhere sums
round differently, so only evaluations within the first updates are compared, with a tolerance. The
exit code is 0 if the record is confirmed, 1 if not, 2 for a usage error.
"""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
from absl import logging as absl_logging

from rlx2_jax import files
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.cli import crash
from rlx2_jax.config import Config
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.training import fingerprint, logging, weights
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.claim import SUMMARY
from rlx2_jax.training.evaluate import Interrupted
from rlx2_jax.training.evaluate import rows as evaluation_rows
from rlx2_jax.training.guards import Stopper
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.loop import networks
from rlx2_jax.training.run import Run, RunError, label, make_loop, read_run

FLAGS = flags.FLAGS
UPDATES, TOLERANCE = 100, 0.01  # limits of the comparison if rounding differs
_NUMBERS = ("mean_return", "std_return", "mean_length", "value_bias", "value_spread")
_CODE = ("commit", "rlx2_jax")  # differences in these do not affect rounding
_SHOWN = 1000  # steps between redraws of the progress display

Rows = dict[tuple[int, int], dict[str, str]]  # by lane and step, as text


class Record(NamedTuple):
    """A recorded unit."""

    run: Run
    rows: Rows
    machines: list[
        dict[str, Any]
    ]  # machines of the run, in order, with the `step` at which each began


class Difference(NamedTuple):
    lane: int
    step: int
    what: str
    recorded: str
    found: str

    def __str__(self) -> str:
        return (
            f"lane {self.lane}, step {self.step:,}: {self.what} is {self.recorded or 'absent'} in "
            f"the record and {self.found or 'absent'} here"
        )


def read_record(folder: Path, *, allow_imports: bool = False) -> Record:
    """Reads the record in a directory of `results/`, or in a complete run directory."""
    run = read_run(folder, allow_imports=allow_imports)
    if NETWORK_USE[run.config.algo].offline:
        raise RunError("behaviour cloning cannot be rerun from a record: it needs its expert")
    summary = files.read_json(folder / SUMMARY)
    with (folder / logging.EVALUATIONS).open(newline="", encoding="utf-8") as file:
        rows = {(int(row["lane"]), int(row["step"])): row for row in csv.DictReader(file)}
    known = {**summary["versions"], "processor": summary["processor"]}
    machines = summary.get("machines") or [{"step": 0, "commit": summary["git_commit"], **known}]
    return Record(run, rows, machines)


def check_lanes(run: Run, lanes: Sequence[int]) -> None:
    """Raises for lanes that do not exist or that start from another unit's networks."""
    for i in lanes:
        if not 0 <= i < len(run.lanes):
            raise RunError(f"--lanes: there is no lane {i}, choose from 0 to {len(run.lanes) - 1}")
        needed = [x for x in (run.lanes[i].weights, run.lanes[i].masks, run.lanes[i].expert) if x]
        if needed:
            raise RunError(
                f"lane {i} starts from {needed[0]} of another unit, which is not in records: run "
                f"the sweep instead"
            )


def rerun(run: Run, until: int, lanes: Sequence[int], *, progress: bool = True) -> Rows:
    """Evaluations up to step `until` of the groups that contain `lanes`.

    Keeps the settings of the whole run and complete groups, since a different number of lanes in a
    program may round differently.
    """
    envs, found = run.config.num_envs, Rows()
    end = min(until // envs, lanes_.total_time(run.config))
    times = [*range(0, end + 1, max(1, run.eval_interval // envs))]
    if end == lanes_.total_time(run.config) and times[-1] != end:
        times.append(end)
    size = run.chunk or len(run.lanes)
    with Stopper() as stop:
        for first in range(0, len(run.lanes), size):
            own = run.lanes[first : first + size]
            only = [i - first for i in lanes if first <= i < first + size]
            if not only:
                continue
            loop = make_loop(run, own, Path(), only)
            members = sorted(i for group in loop.lanes for i in group)
            labels = [label(own[i], first + i) for i in members]
            shown = logging.Progress(max(times[-1] * envs, 1), labels, quiet=not progress)
            try:
                for t in times:
                    while loop.time < t and not stop():
                        loop.advance(min(t, loop.time + _SHOWN), stop)
                        shown.update(loop.time * envs)
                    evaluated, digests = loop.evaluate(stop), map(weights.digest, networks(loop))
                    step = t * envs
                    rows = evaluation_rows(evaluated, [own[i] for i in members], step, [*digests])
                    for i, row in zip(members, rows):
                        found[first + i, step] = {k: str(logging.number(v)) for k, v in row.items()}
                    shown.returns(labels, [row["mean_return"] for row in rows])
                    shown.update(step, "evaluated", force=True)
            finally:
                loop.close()
    return found


def differences(recorded: Rows, found: Rows, until: int, lanes: Sequence[int]) -> list[Difference]:
    """All differences, in order of steps. Compares digests that the record has."""
    wanted = {key for key in recorded if key[0] in lanes and key[1] <= until}
    keys = wanted | {key for key in found if key[0] in lanes}
    out = []
    for lane, step in sorted(keys, key=lambda key: (key[1], key[0])):
        ours, theirs = found.get((lane, step)), recorded.get((lane, step))
        if ours is None or theirs is None:
            there = ("" if x is None else "there" for x in (theirs, ours))
            out.append(Difference(lane, step, "the evaluation", *there))
            continue
        names = [*(n for n in _NUMBERS if n in theirs), *(["weights"] if _digest(theirs) else [])]
        out += [
            Difference(lane, step, name, theirs[name], ours[name])
            for name in names
            if theirs[name] != ours[name]
        ]
    return out


def _digest(row: Mapping[str, str]) -> str | None:
    return row.get("weights") or None


def machine_differences(record: Record, until: int, here: Mapping[str, Any]) -> list[str]:
    """Differences to the machine of the first `until` steps that may affect rounding."""
    used = [m for i, m in enumerate(record.machines) if i == 0 or (m["step"] or 0) < until]
    plain = [{k: v for k, v in m.items() if k != "step" and k not in _CODE} for m in used]
    lines = [line for m in plain for line in fingerprint.differences(m, dict(here))]
    return list(dict.fromkeys(lines))


def updates_at(config: Config, step: int) -> int:
    """The number of updates before an evaluation."""
    time = step // config.num_envs
    return max(0, time - lanes_.warmup_time(config)) * config.updates_per_step


def is_close(a: str, b: str) -> bool:
    """Whether two recorded numbers agree within `TOLERANCE`, absolute for numbers below 1."""
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    return abs(x - y) <= TOLERANCE * max(abs(x), abs(y), 1.0)


def far_apart(unequal: Sequence[Difference], config: Config) -> list[Difference]:
    """The differences within the first updates that rounding does not explain."""
    early = [d for d in unequal if updates_at(config, d.step) <= UPDATES and d.what != "weights"]
    return [d for d in early if not is_close(d.recorded, d.found)]


def judge(
    record: Record, found: Rows, until: int, lanes: Sequence[int], here: Mapping[str, Any]
) -> tuple[int, str]:
    """The exit code and the message."""
    keys = [key for key in found if key[0] in lanes]
    unequal = differences(record.rows, found, until, lanes)
    digests = sum(_digest(record.rows.get(key, {})) is not None for key in keys)
    told = f"{digests} digests of weights" if digests else "the record has no digests of weights"
    if not unequal:
        return 0, f"equal: {len(keys)} evaluations of lanes {_join(lanes)}, {told}"
    first = f"first difference: {unequal[0]}"
    reasons = machine_differences(record, until, here)
    commit = record.machines[0].get("commit")
    if not reasons:
        return 1, (
            f"different: {len(unequal)} values differ, and this machine does not explain it\n"
            f"{first}\nThe record was made with commit {commit}; this is {here.get('commit')}. "
            f"Check out the former to find out whether the program or the record has changed."
        )
    early = {key for key in keys if updates_at(record.run.config, key[1]) <= UPDATES}
    far = far_apart(unequal, record.run.config)
    text = (
        "Not compared bit for bit, because the machine differs from the record:\n"
        + "".join(f"  {line}\n" for line in reasons)
        + "Other CPUs, kernels and versions sum in a different order, which changes the last "
        "bits; learning amplifies this until returns differ.\n"
        f"{first}\nCompared instead: the {len(early)} evaluations within the first {UPDATES} "
        f"updates, tolerance {TOLERANCE:.0%}. "
    )
    if far:
        return 1, f"different: {len(far)} values are further apart\n{text}Worst case: {far[0]}"
    return 0, f"agrees within the tolerance\n{text}All of them agree."


def _join(lanes: Sequence[int]) -> str:
    return ", ".join(map(str, lanes))


def reproduce(
    folder: Path,
    until: int,
    lanes: Sequence[int] | None = None,
    *,
    allow_imports: bool = False,
    progress: bool = True,
) -> tuple[int, str]:
    """Reruns and compares; returns the exit code and the message."""
    record = read_record(folder, allow_imports=allow_imports)
    lanes = range(len(record.run.lanes)) if lanes is None else lanes
    check_lanes(record.run, lanes)
    if until < 0:
        raise RunError(f"--until={until}: use a number of steps, or 0 for only the initial weights")
    found = rerun(record.run, until, lanes, progress=progress)
    return judge(record, found, until, lanes, fingerprint.fingerprint())


def main(argv: list[str]) -> int:
    absl_logging.set_verbosity(absl_logging.WARNING)
    if len(argv) != 2:
        print(f"error: give one unit, for instance results/table2/td3-hopper-rlx2\n{__doc__}")
        return 2
    try:
        lanes = [int(x) for x in FLAGS.lanes] if FLAGS.lanes else None
        code, text = reproduce(Path(argv[1]), FLAGS.until, lanes, allow_imports=FLAGS.allow_imports)
    except Interrupted:
        print("interrupted", file=sys.stderr)
        return 130
    except LaneFailure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 3
    except (RunError, files.Damaged, ValueError, KeyError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(text)
    return code


def parse_flags(argv: list[str]) -> list[str]:
    """The positional arguments. absl's parser exits with 1, which would mean "different"."""
    try:
        return FLAGS(argv)
    except flags.Error as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    flags.DEFINE_integer("until", 20_000, "Environment steps to rerun.")
    flags.DEFINE_list("lanes", None, "Only these lanes, e.g. 0,1, and their groups.")
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP)
    crash.run(main, flags_parser=parse_flags)
