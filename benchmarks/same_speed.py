"""Compares the speed of two versions of the source, measured in turns.

    python -m benchmarks.same_speed OLD NEW [--only=td3-compact] [--turns=5]

OLD and NEW are checkouts. Each case (updates alone, or whole steps in Hopper-v5; TD3 and SAC,
masked and compact, 1 and 8 lanes) runs in one process per version. The processes take turns,
so slowdowns shared by a turn cancel. Prints the median of NEW's speed over OLD's for each
case, as JSON; exits with 1 if one is below --least. The same ratio of processor time is printed
too: it is more reliable on a busy machine but ignores waiting.

Compiled programs are cached in --cache, so a first pass with --turns=0 compiles everything.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SPARSITY = (0.98, 0.95)
CASES = {
    f"{algo}-{form}-{what}-{lanes}": (what, algo, form, lanes)
    for algo in ("td3", "sac")
    for form in ("masked", "compact")
    for what in ("updates", "steps")
    for lanes in (1, 8)
}
# Of all lanes, in one turn. Even for each lane: TD3's loop body has two updates, and skipped ones
# take time too.
_UPDATES = {"masked": 64, "compact": 400}


class Worker:
    """One case of one version, in a subprocess."""

    def __init__(self, source: Path, case: str, cache: Path):
        variables = {
            "PYTHONPATH": str(source),
            "PYTHONSAFEPATH": "1",  # this file's directory is not searched
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--worker", case],
            cwd=source,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self) -> tuple[float, float]:
        """Updates or steps per second and per second of processor time, in another turn."""
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self) -> None:
        """Waits until the worker is ready."""
        self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> tuple[float, float]:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("answer "):
                _, speed, processor = line.split()
                return float(speed), float(processor)
        raise SystemExit("a measured process exited, see above")


def work(case: str) -> None:
    """The process of a `Worker`: one measurement per request."""
    what, algo, form, lanes = CASES[case]
    measure = (_updates if what == "updates" else _steps)(algo, form, lanes)
    print("answer 0 0", flush=True)
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        count = measure()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        print(f"answer {count / wall} {count / processor}", flush=True)


def _first(*names: str) -> Any:
    """Imports the first of these modules that exists in the version (modules have moved). Checks
    its directory, because an editable install of another version could satisfy the import."""
    have = [name for name in names if Path(*name.split(".")).with_suffix(".py").exists()]
    return importlib.import_module(have[0])


def _updates(algo: str, form: str, lanes: int) -> Callable[[], int]:
    made = _first("benchmarks.update_benchmark", "experiments.scanned")
    scanned = made.Scanned(made.program(algo, lanes, form=form), _UPDATES[form] // lanes)

    def measure() -> int:
        scanned()
        return _UPDATES[form]

    return measure


def _steps(algo: str, form: str, lanes: int) -> Callable[[], int]:
    import jax

    configs, envs = (importlib.import_module(f"rlx2_jax.{name}") for name in ("config", "envs"))
    loop = _first("rlx2_jax.training.host_loop", "rlx2_jax.runtime.loop")
    config = configs.make(algo, 11, 3, capacity=100_000, warmup=1000)
    actor, critic = SPARSITY
    all_lanes = [
        configs.Lane(seed=i, actor_sparsity=actor, critic_sparsity=critic, execution=form)
        for i in range(lanes)
    ]
    host = loop.HostLoop(config, all_lanes, lambda n: envs.make_host("Hopper-v5", n))
    host.advance(1200, lambda: False)
    steps = max(50, 2 * _UPDATES[form] // lanes)

    def measure() -> int:
        host.advance(host.time + steps, lambda: False)
        jax.block_until_ready([state.acting for state in host.states()])
        return lanes * steps

    return measure


def compare(sources: list[Path], case: str, cache: Path, turns: int) -> dict[str, Any]:
    """Speeds of both versions in every turn but the first, and the median ratio."""
    workers = [Worker(source, case, cache) for source in sources]
    try:
        for worker in workers:
            worker.wait()
        rows = [[worker() for worker in workers] for _ in range(turns + (turns > 0))][1:]
    finally:
        for worker in workers:
            worker.close()
    if not rows:
        return {}
    (old, new), (old_processor, new_processor) = np.transpose(rows)
    return {
        "old_per_second": float(np.median(old)),
        "new_per_second": float(np.median(new)),
        "ratios": [round(float(x), 3) for x in new / old],
        "new_over_old": float(np.median(new / old)),
        "processor_time": float(np.median(new_processor / old_processor)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("sources", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--only", default="", help="cases whose name begins with this")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--least", type=float, default=0.97)
    parser.add_argument("--cache", type=Path, default=Path(".cache/same_speed"))
    options = parser.parse_args()
    sources, cache = [path.resolve() for path in options.sources], options.cache.resolve()
    cases = [case for case in CASES if case.startswith(options.only)]
    results = {}
    for case in cases:
        results[case] = compare(sources, case, cache, options.turns)
        print(case, json.dumps(results[case]), flush=True)
    slower = [k for k, x in results.items() if x and x["new_over_old"] < options.least]
    print(json.dumps({"turns": options.turns, "slower": slower, "cases": results}, indent=1))
    return 1 if slower else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        sys.exit(main())
