"""python -m tests.faults: attacks whole runs with kills, damaged files, failing writes, full disks
and extreme flags, and measures peak memory. Exits with 1 where anything is lost or silently
different.

python -m tests.faults                            everything, with the counts of the slow tests
python -m tests.faults --kills=100                only kills
python -m tests.faults --damage=300 --only=config.json
"""

import argparse
import sys
import tempfile
from pathlib import Path

from . import inject, memory, parts, report
from .campaign import campaign

COUNTS = {"kills": 200, "damage": 400, "errors": 200, "flags": 300}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("tests.faults", description=(__doc__ or "").split("\n\n")[0])
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, help=f"number of cases; {count} in everything")
    parser.add_argument("--every", action="store_true", help="each write of a run fails once")
    parser.add_argument("--disk", action="store_true", help="small tmpfs disks that fill up")
    parser.add_argument("--memory", action="store_true", help="peak memory")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--cases", default="", help="only these runs, by name, with commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scratch", help="working directory; default: a temporary one")
    parser.add_argument("--cache", default=".cache/faults", help="of compiled programs")
    parser.add_argument("--json", default="faults.json", help="where all outcomes go")
    found = parser.parse_args(given)
    switches = ("every", "disk", "memory")
    if not any(getattr(found, name) for name in (*COUNTS, *switches)):
        vars(found).update(COUNTS, **dict.fromkeys(switches, True))
    return found


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    if inject.compiler() is None:
        print("skipped: fault injection needs a C compiler (cc, gcc or clang)", file=sys.stderr)
        return 0
    found: dict[str, list[report.Outcome]] = {}
    peaks: list[memory.Peaks] = []
    with tempfile.TemporaryDirectory(prefix="rlx2-faults-") as temporary:
        scratch, cache = Path(options.scratch or temporary), Path(options.cache)
        with campaign(scratch, cache, options.jobs) as attack:
            for name, part in parts.PARTS.items():
                if getattr(options, name):
                    found[name] = part(attack, options)
                    print(report.summary(name, found[name]) + "\n", flush=True)
        if options.memory:
            peaks = [memory.measure(*size, scratch, cache.resolve()) for size in memory.SIZES]
            print(f"== memory\n{memory.table(peaks)}")
    report.save(Path(options.json), found, {"memory": [x._asdict() for x in peaks]})
    bad = [x for outcomes in found.values() for x in outcomes if not x.good]
    bad_peaks = [x for x in peaks if not x.good]
    print(f"{len(bad)} failures; all outcomes: {options.json}")
    return 1 if bad or bad_peaks else 0


if __name__ == "__main__":
    sys.exit(main())
