"""Random actors of many shapes, for the tests of exported policies."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax import config, files, networks
from rlx2_jax.export import SparsePolicy, c, compiled, from_actor
from rlx2_jax.networks import masked
from rlx2_jax.training import weights
from rlx2_jax.training.run import Run

TOLERANCE = 1e-5
# Observations of which sums overflow and cancel.
LARGE = np.array(
    [0, 1, -3.4e38, 3.4e38, -1e38, 3e38, 1e30, -1e20, 2.0**127, -(2.0**119)], np.float32
)
needs_compiler = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")


class Case(NamedTuple):
    """An actor of `sizes` units; `empty` names layers without any link."""

    sizes: tuple[int, ...]
    density: float
    kind: str = "td3"
    empty: tuple[int, ...] = ()


CASES = {
    "hopper": Case((11, 256, 256, 3), 0.02),
    "hopper-sac": Case((11, 256, 256, 6), 0.02, "sac"),
    "dense": Case((5, 16, 16, 2), 1.0),
    "one-wide": Case((1, 1, 1, 1), 1.0),
    "depth-1": Case((7, 3), 0.5),
    "depth-1-sac": Case((7, 4), 0.5, "sac"),
    "depth-4": Case((6, 24, 32, 24, 2), 0.15),
    "wide": Case((300, 20, 600, 1), 0.05),
    "no-links-first": Case((4, 8, 8, 2), 0.5, empty=(0,)),
    "no-links-inside": Case((4, 8, 8, 2), 0.5, "sac", empty=(1,)),
    "no-links-last": Case((4, 8, 8, 2), 0.5, empty=(2,)),
    "no-links": Case((4, 8, 2), 0.5, empty=(0, 1)),
}


def actor(case: Case, seed: int = 0) -> tuple[Any, Any]:
    """Parameters and masks, with weights large enough that actions cover [-1, 1]."""
    rng = np.random.default_rng(seed)
    params, masks = {}, {}
    for i, (n_in, n_out) in enumerate(zip(case.sizes[:-1], case.sizes[1:])):
        live = rng.random((n_in, n_out)) < (0.0 if i in case.empty else case.density)
        scale = 1.5 / np.sqrt(max(1.0, live.sum() / n_out))
        kernel = rng.normal(size=(n_in, n_out)) * scale * live
        name = f"Dense_{i}"
        params[name] = {
            "kernel": kernel.astype(np.float32),
            "bias": rng.normal(size=n_out, scale=0.3).astype(np.float32),
        }
        masks[name] = {"kernel": live, "bias": np.ones(n_out, bool)}
    return params, masks


def policy_of(case: Case, **bounds: Any) -> SparsePolicy:
    return from_actor(*actor(case), case.kind, heads=1 + (case.kind == "sac"), **bounds)


def expected(case: Case, obs: np.ndarray) -> np.ndarray:
    """Actions of the JAX actor."""
    act = networks.squashed_mean if case.kind == "sac" else networks.policy
    return np.asarray(act(masked.bind(actor(case)[0]), jnp.asarray(obs)))


def observations(policy: SparsePolicy, count: int = 2000) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, policy.obs_dim)).astype(np.float32)


def dense_layer(rng: np.random.Generator, n_in: int, n_out: int, density: float) -> tuple[Any, Any]:
    """A sparse layer and its mask."""
    live = rng.random((n_in, n_out)) < density
    scale = 1.5 / np.sqrt(max(1.0, live.sum() / n_out))
    kernel = np.float32(rng.normal(size=(n_in, n_out)) * scale * live)
    bias = np.float32(rng.normal(size=n_out, scale=0.3))
    return {"kernel": kernel, "bias": bias}, {"kernel": live, "bias": np.ones(n_out, bool)}


def simba(
    obs: int, width: int, blocks: int, actions: int, *, density: float = 0.2, seed: int = 0
) -> tuple[Any, Any, list[tuple[Any, ...]]]:
    """Parameters, masks and steps of a residual network with layer normalization."""
    rng = np.random.default_rng(seed)
    params, masks = {}, {}
    norm = lambda: (  # noqa: E731
        "layer_norm",
        np.float32(rng.normal(size=width, loc=1, scale=0.2)),
        np.float32(rng.normal(size=width, scale=0.2)),
        1e-6,
    )
    params["embed"], masks["embed"] = dense_layer(rng, obs, width, density)
    mean, scale = rng.normal(size=obs), rng.uniform(0.5, 2, size=obs)
    steps = [("normalize", mean, scale), ("linear", "embed")]
    for i in range(blocks):
        pair = {
            "expand": dense_layer(rng, width, 4 * width, density),
            "reduce": dense_layer(rng, 4 * width, width, density),
        }
        params[f"hidden_{i}"] = {k: v[0] for k, v in pair.items()}
        masks[f"hidden_{i}"] = {k: v[1] for k, v in pair.items()}
        steps += [("save",), norm(), ("linear", f"hidden_{i}/expand"), ("relu",)]
        steps += [("linear", f"hidden_{i}/reduce"), ("add_saved",)]
    params["output"], masks["output"] = dense_layer(rng, width, actions, density)
    return params, masks, [*steps, norm(), ("linear", "output")]


def run_steps(params: Any, steps: list[tuple[Any, ...]], obs: np.ndarray) -> np.ndarray:
    """An implementation of the steps in float32 JAX, independent of the exporters."""
    x, saved = jnp.asarray(obs), []
    vector = lambda a: jnp.asarray(a, jnp.float32)[None]  # noqa: E731
    for name, *args in steps:
        if name == "linear":
            layer = params
            for key in args[0].split("/"):
                layer = layer[key]
            x = jnp.dot(x, layer["kernel"], precision="highest") + vector(layer["bias"])
        elif name == "relu":
            x = jnp.where(x > 0, x, 0)
        elif name == "normalize":
            x = (x - vector(args[0])) * vector(args[1])
        elif name == "layer_norm":
            x = jax.nn.standardize(x, axis=-1, epsilon=args[2])
            x = x * vector(args[0]) + vector(args[1])
        elif name == "save":
            saved.append(x)
        else:
            x = x + saved.pop()
    return np.asarray(jnp.tanh(x))


def random_program(seed: int) -> tuple[Any, Any, list[tuple[Any, ...]]]:
    """A small valid program of any operations in any order."""
    rng = np.random.default_rng(seed)
    params, masks, steps, saved = {}, {}, [], []
    size = int(rng.integers(1, 9))
    for i in range(int(rng.integers(0, 14))):
        kind = rng.choice(["linear", "relu", "normalize", "layer_norm", "save", "add_saved"])
        vector = lambda low: np.float32(rng.uniform(low, 1.5, size))  # noqa: B023, E731
        if kind == "linear":
            # Under a save that is still open, sizes return to the saved one.
            new = saved[-1] if saved and rng.random() < 0.7 else int(rng.integers(1, 9))
            params[f"l{i}"], masks[f"l{i}"] = dense_layer(rng, size, new, 0.6)
            steps.append(("linear", f"l{i}"))
            size = new
        elif kind == "normalize":
            steps.append(("normalize", vector(-1), vector(0.1)))
        elif kind == "layer_norm":
            steps.append(("layer_norm", vector(-1), vector(-1), 1e-3))
        elif kind == "save":
            saved.append(size)
            steps.append(("save",))
        elif kind == "add_saved" and saved and saved[-1] == size:
            saved.pop()
            steps.append(("add_saved",))
        elif kind == "relu":
            steps.append(("relu",))
    while saved:
        params[f"e{len(saved)}"], masks[f"e{len(saved)}"] = dense_layer(rng, size, saved[-1], 0.6)
        steps += [("linear", f"e{len(saved)}"), ("add_saved",)]
        size = saved.pop()
    params["out"], masks["out"] = dense_layer(rng, size, 2, 0.8)
    return params, masks, [*steps, ("linear", "out")]


PENDULUM = Case((4, 16, 16, 1), 0.3)


def finished_run(
    directory: Path,
    lanes: Sequence[tuple[config.Lane, float]],
    env: str = "InvertedPendulum-v5",
    **fields: Any,
) -> Run:
    """A finished run directory with lanes of these scores and random actors."""
    case = PENDULUM
    cfg = config.make("td3", 4, 1, hidden=case.sizes[1:-1], **SHORT)
    networks = []
    for i in range(len(lanes)):
        trained = weights.Weights(*actor(case, seed=i))
        networks.append({"actor": trained, "critic": trained})
    return write_finished(directory, cfg, lanes, networks, env, **fields)


SHORT: Any = {"batch_size": 16, "steps": 100, "warmup": 40, "capacity": 100}


def write_finished(
    directory: Path,
    cfg: config.Config,
    lanes: Sequence[tuple[config.Lane, float]],
    networks: Sequence[dict[str, weights.Weights]],
    env: str = "InvertedPendulum-v5",
    **fields: Any,
) -> Run:
    """A finished run directory with these scores and networks."""
    own = tuple(config.resolve(cfg, lane) for lane, _ in lanes)
    run = Run(env, cfg, own, env_options={"max_episode_steps": 40}, **fields)
    directory.mkdir(parents=True)
    files.write_json(directory / "config.json", run.to_json())
    rows = []
    for i, (lane, (_, score)) in enumerate(zip(own, lanes)):
        weights.save(directory / f"final/lane-{i}.npz", networks[i])
        rows.append(
            {
                "lane": i,
                "method": lane.method,
                "seed": lane.seed,
                "final_score": score,
                "evaluations_used": 5,
                "actor_sparsity": 0.0 if lane.method == "dense" else 0.7,
                "alive": True,
            }
        )
    summary = {"lanes": rows, "versions": {"jax": "0.10"}, "git_commit": "abc"}
    files.write_json(directory / "summary.json", summary)
    return run


def compile_policy(policy: SparsePolicy, folder: Path, *, int8: bool = False) -> Any:
    """The policy's function in C, built in a folder of its own."""
    path = folder / "policy.c"
    path.write_text(c.source(policy, int8=int8).text)
    library = compiled.build([path], folder / f"policy{int8:d}.so")  # warnings are errors
    return compiled.CPolicy(library, "policy", policy.obs_dim, policy.action_dim).act
