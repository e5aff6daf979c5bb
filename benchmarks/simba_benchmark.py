"""Updates of SimBa, compact against masked: python -m benchmarks.simba_benchmark

Prints updates per second of both and the median ratio over turns, as JSON, and the ratio of
processor time, which is less sensitive to other processes.
"""

import argparse
import json
import sys
import time

import numpy as np

from benchmarks.update_benchmark import Scanned, program


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--algo", default="td3")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    sizes = {"architecture": "simba", "width": options.width, "blocks": options.blocks}
    subjects = {
        form: Scanned(program(options.algo, options.lanes, form=form, **sizes), options.steps)
        for form in ("masked", "compact")
    }
    seconds: dict[str, list[float]] = {form: [] for form in subjects}
    processor: dict[str, list[float]] = {form: [] for form in subjects}
    for turn in range(options.turns):
        for form, measure in subjects.items():
            start = time.process_time()
            seconds[form].append(measure())
            processor[form].append((time.process_time() - start) / measure.updates)
            print(f"turn {turn + 1}: {form} {1 / seconds[form][-1]:.1f}/s", file=sys.stderr)
    rates = {f"{form}_updates_per_second": 1 / float(np.median(x)) for form, x in seconds.items()}
    ratios = {
        f"compact_over_masked{suffix}": float(np.median(np.divide(x["masked"], x["compact"])))
        for suffix, x in (("", seconds), ("_processor_time", processor))
    }
    print(json.dumps({**vars(options), **rates, **ratios}, indent=1))


if __name__ == "__main__":
    main()
