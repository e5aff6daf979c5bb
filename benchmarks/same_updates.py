"""Checks that two versions of the source compute the same updates in float64, up to rounding.

    python -m benchmarks.same_updates OLD NEW [--updates=2000]

OLD and NEW are checkouts. Both train TD3 and SAC, masked and compact, on the same stream of random
observations, in each version's training loop, with mask updates, trims, the n-step switch and
both kinds of episode ends. Prints the largest difference between weights after --updates updates;
masks and trims must be equal, weights within --tolerance. `same_numbers` compares whole float32
runs bit for bit.
"""

import argparse
import functools
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CASES = [(algo, form) for algo in ("td3", "sac") for form in ("masked", "compact")]
OBS, ACTIONS, WARMUP = 11, 3, 100


def _first(*names: str) -> Any:
    """Imports the first of these modules that exists in the version (modules have moved). Checks
    its directory, because an editable install of another version could satisfy the import."""
    have = [name for name in names if Path(*name.split(".")).with_suffix(".py").exists()]
    return importlib.import_module(have[0])


def train(algo: str, form: str, updates: int) -> dict[str, np.ndarray]:
    """Weights, masks and counters of two lanes after `updates`, with the imported version."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    configs = importlib.import_module("rlx2_jax.config")
    lanes = _first("rlx2_jax.training.lane", "rlx2_jax.lane")
    programs = _first("rlx2_jax.training.program", "rlx2_jax.runtime.program")
    weights = _first("rlx2_jax.training.weights", "rlx2_jax.runtime.weights")
    config = configs.make(
        algo, OBS, ACTIONS, hidden=(64, 64), batch_size=64, steps=updates + WARMUP, warmup=WARMUP,
        mask_interval=50, buffer_interval=100, capacity=1000, oldest_k=64, n_max=3, dtype="float64",
        execution=form,
    )  # fmt: skip
    fields = {"t0": 200, "n": 3, "b_min": 200, "b_max": 1000, "d0": 1e-4, "execution": form}
    made = programs.Program(
        config,
        [configs.Lane(seed=i, actor_sparsity=0.8, critic_sparsity=0.7, **fields) for i in range(2)],
    )
    # One observation per step and, where an episode ends, the first of the next episode.
    seen = jax.random.normal(jax.random.key(0), (2, 997, 2, 1, OBS), jnp.float32)

    def after(t: jax.Array) -> tuple:
        led_to, begins = seen[0, t % 997], seen[1, t % 997]
        ends = jnp.ones((2, 1), bool)
        terminated, cut = ends & (t % 97 == 0), ends & (t % 61 == 0)
        ended = (terminated | cut)[..., None]
        return led_to, jnp.where(ended, begins, led_to), led_to[..., 0], terminated, cut

    run = _loop(config, made.hyper, after)
    state = made.init(np.asarray(seen[0, 0]), 61)
    state = jax.jit(functools.partial(run, learn=False, length=WARMUP))(state, jnp.int32(1))
    learn = jax.jit(functools.partial(run, learn=True, length=updates))
    state = learn(state, jnp.int32(lanes.warmup_time(config) + 1))
    agents = jax.jit(jax.vmap(weights.of_agent))(state.agent)
    results = {}
    for name, part in (("weight", 0), ("mask", 1)):
        trees = {network: value[part] for network, value in agents.items()}
        for path, leaf in jax.tree_util.tree_flatten_with_path(trees)[0]:
            results[name + jax.tree_util.keystr(path)] = np.asarray(leaf)
    results |= {"length": np.asarray(state.replay.length), "trims": np.asarray(state.stats.trims)}
    return {k: v for k, v in results.items() if v.size}


def _loop(config: Any, hyper: Any, after: Any) -> Any:
    """`run(state, first, learn, length)`: the training loop of the imported version."""
    import jax
    import jax.numpy as jnp

    segments = _first("rlx2_jax.training.segments", "rlx2_jax.runtime.program")
    if not hasattr(segments, "all_steps"):  # steps with branches, in a scan
        step = segments.step_lanes
        outcome = importlib.import_module("rlx2_jax.lane").Outcome

        def run(state: Any, first: Any, learn: bool, length: int) -> Any:
            def body(state: Any, t: Any) -> tuple:
                return step(state, outcome(*after(t)), t, hyper, config, learn)[0], None

            return jax.lax.scan(body, state, first + jnp.arange(length, dtype=jnp.int32))[0]

        return run
    program = importlib.import_module("rlx2_jax.training.program")
    time_step = importlib.import_module("rlx2_jax.types").TimeStep

    def plain(state: Any, t: Any, dues: Any, active: Any) -> Any:
        return program.plain_lanes(state, time_step(*after(t)), t, hyper, config, dues, active)[0]

    def run(state: Any, first: Any, learn: bool, length: int) -> Any:
        def event(state: Any, t: Any) -> Any:
            return program.step_lanes(state, time_step(*after(t)), t, hyper, config, learn)[0]

        last = first + length - 1
        return segments.all_steps(state, first - 1, last, config, learn, plain, event)

    return run


def compare(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> tuple[float, list[str]]:
    """The largest difference between weights, and the names of masks and counters that differ."""
    if old.keys() != new.keys():
        raise SystemExit(f"the versions have different arrays: {sorted(old.keys() ^ new.keys())}")
    weights = [name for name in old if name.startswith("weight")]
    largest = max(float(np.abs(old[name] - new[name]).max()) for name in weights)
    others = [name for name in old if name not in weights]
    return largest, [name for name in others if not np.array_equal(old[name], new[name])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("sources", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--tolerance", type=float, default=1e-12)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    failed = []
    for algo, form in CASES:
        name = f"{algo}-{form}"
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            results = []
            for i, source in enumerate(options.sources):
                out = Path(scratch) / f"{i}.npz"
                arguments = ["--worker", algo, form, str(options.updates), str(out)]
                # Import the version's modules, not those next to this file.
                paths = {"PYTHONPATH": str(source.resolve()), "PYTHONSAFEPATH": "1"}
                command = [sys.executable, str(Path(__file__).resolve()), *arguments]
                subprocess.run(command, cwd=source, env={**os.environ, **paths}, check=True)
                results.append(dict(np.load(out)))
        largest, different = compare(*results)
        print(
            f"{name}: weights differ by at most {largest:.1e} after {options.updates} updates, "
            f"{results[1]['trims'].sum()} trims; "
            + (f"NOT equal: {different}" if different else "masks and trims equal"),
            flush=True,
        )
        failed += [name] * (largest > options.tolerance or bool(different))
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        np.savez(
            sys.argv[5], allow_pickle=False, **train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        )
    else:
        sys.exit(main())
