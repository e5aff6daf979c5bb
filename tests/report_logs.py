"""Synthetic sweep directories, with returns chosen by the test."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlx2_jax.training.run import FORMAT

SIZES = {"HalfCheetah": (17, 6), "Hopper": (11, 3), "Walker2d": (17, 6), "Ant": (105, 8)}
SIZES |= {"Humanoid": (348, 17), "InvertedPendulum": (4, 1)}
COLUMNS = (
    "lane,method,seed,step,mean_return,std_return,min_return,max_return,mean_length,"
    "value_bias,value_spread"
)
METHODS = {"dense", "tiny", "ss", "set", "rigl", "rlx2", "rlx2-tiny", "rlx2-ss", "rlx2-set"}
Returns = Callable[[str, int, int], float]  # of lane name, seed and step


def lane(name: str, seed: int, **settings: Any) -> dict[str, Any]:
    method = name if name in METHODS else "rlx2"
    sparsities = {"actor_sparsity": 0.9, "critic_sparsity": 0.85, "d0": 0.2}
    return {"name": name, "method": method, "seed": seed, **sparsities, **settings}


def unit(
    name: str, env: str, lanes: Sequence[dict[str, Any]], algo: str = "td3", **fields: Any
) -> dict[str, Any]:
    base = {"name": name, "kind": "train", "env": env, "algo": algo, "hidden": [256, 256]}
    return {**base, "steps": 3_000_000, "lanes": list(lanes), **fields}


def plan(logdir: Path, suite: str, units: Sequence[dict[str, Any]], **budget: Any) -> Path:
    """Writes suite.json."""
    folder = logdir / suite
    folder.mkdir(parents=True, exist_ok=True)
    found = {"name": "smoke", "fraction": 0.0001} | budget
    value = {
        "format": FORMAT,
        "suite": suite,
        "title": suite,
        "budget": found,
        "units": list(units),
    }
    (folder / "suite.json").write_text(json.dumps(value))
    return folder


def run(
    folder: Path,
    unit: dict[str, Any],
    returns: Returns,
    *,
    steps: int = 300,
    interval: int = 100,
    reached: int | None = None,
    finished: bool = True,
    commit: str = "a" * 40,
    jax: str = "0.10.2",
    metrics: bool = False,
    masks: bool = False,
) -> Path:
    """A run directory; `reached` is the last step that was evaluated."""
    own = folder / unit["name"]
    own.mkdir(parents=True)
    obs, action = SIZES[unit["env"].partition("-")[0]]
    config = {"algo": unit["algo"], "obs_dim": obs, "action_dim": action, "steps": steps}
    config |= {"hidden": unit["hidden"]}
    value = {"format": FORMAT, "env": unit["env"], "config": config, "lanes": unit["lanes"]}
    (own / "config.json").write_text(json.dumps(value))
    rows, measured = (
        [COLUMNS],
        ["lane,method,seed,step,updates,buffer_length,policy_distance,trims"],
    )
    for step in range(0, (steps if reached is None else reached) + 1, interval):
        for i, x in enumerate(unit["lanes"]):
            mean = returns(x["name"], x["seed"], step)
            head = f"{i},{x['method']},{x['seed']},{step}"
            bias = 50 * np.sin(step / steps * 6 + i)
            rows.append(f"{head},{mean:.7g},1,{mean - 1:.7g},{mean + 1:.7g},1000,{bias:.5g},2")
            length = min(step, steps / 3) if x["name"] == "dynamic" else step
            measured.append(f"{head},{step},{length:.0f},{0.1 + 0.2 * step / steps:.4g},0")
    (own / "evaluations.csv").write_text("\n".join(rows) + "\n")
    if metrics:
        (own / "metrics.csv").write_text("\n".join(measured) + "\n")
    if masks:
        _masks(own, obs, action, unit["hidden"])
    if finished:
        summary = {"env": unit["env"], "lanes": [], "git_commit": commit}
        summary["versions"] = {"rlx2_jax": "0.1.0", "jax": jax}
        (own / "summary.json").write_text(json.dumps(summary))
    return own


def _masks(folder: Path, obs: int, action: int, hidden: Sequence[int]) -> None:
    rng = np.random.default_rng(0)
    for when, kept in (("initial", obs), ("final", obs // 4)):
        arrays = {}
        nets = {"actor": (obs, *hidden, action)}
        nets |= {f"critic/q{i}": (obs + action, *hidden, 1) for i in (1, 2)}
        for net, sizes in nets.items():
            for layer, (i, o) in enumerate(pairwise(sizes)):
                mask = rng.random((i, o)) < 0.1
                if layer == 0:
                    mask[kept:] &= rng.random((i - kept, o)) < 0.2
                top, _, rest = net.partition("/")
                inner = f"{rest}/" if rest else ""
                arrays[f"{top}/mask/{inner}Dense_{layer}/kernel"] = mask
        (folder / when).mkdir(exist_ok=True)
        np.savez_compressed(folder / when / "lane-0.npz", **arrays)  # pyright: ignore[reportArgumentType]


LEVEL = {"dense": 3000, "tiny": 1500, "ss": 1700, "set": 2000, "rigl": 2300, "rlx2": 3050}


def learning(total: int, noise: float = 100.0) -> Returns:
    """Returns that rise to a level set by method, with noise seeded by seed and step."""

    def returns(name: str, seed: int, step: int) -> float:
        level = LEVEL.get(name, 1800 + 97 * (sum(map(ord, name)) % 13))
        rng = np.random.default_rng([seed, step, sum(map(ord, name))])
        return float(level * (1 - np.exp(-4 * step / total)) + noise * rng.standard_normal())

    return returns


def everything(
    logdir: Path,
    *,
    tasks: Sequence[str] = ("HalfCheetah", "Hopper", "Walker2d", "Ant"),
    seeds: int = 2,
    steps: int = 300,
    interval: int = 100,
) -> dict[str, list[dict[str, Any]]]:
    """All suites, and all units but these of the last task: nstep's is missing,
    buffer's is not finished."""
    last = f"td3-{tasks[-1].lower()}"

    def lanes(*names: str, **settings: Any) -> list[dict[str, Any]]:
        return [lane(n, s, **settings) for n in names for s in range(seeds)]

    def each(*names: str, algos: Sequence[str] = ("td3",)) -> list[dict[str, Any]]:
        return [unit(f"{a}-{t.lower()}", f"{t}-v5", lanes(*names), a) for a in algos for t in tasks]

    settings = {
        "zeta0": (0.1, 0.3, 0.7, 0.9),
        "mask_interval": (1000, 3000, 30000, 100000),
        "buffer_interval": (1000, 3000, 30000, 100000),
        "d0": (0.05, 0.1, 0.3, 0.5),
        "t0": (0, 100000, 200000, 400000, 500000),
    }
    swept = [f"{key}={value}" for key, values in settings.items() for value in values]
    levels = [
        x
        for a, c in ((0.8, 0.7), (0.9, 0.85), (0.98, 0.95))
        for x in lanes("tiny", "ss", "set", "rigl", "rlx2", actor_sparsity=a, critic_sparsity=c)
    ]
    masks, tickets = [], []
    for task in tasks:
        env, name = f"{task}-v5", task.lower()
        masks.append(unit(f"{name}-search", env, lanes("rigl", "rlx2")))
        masks.append(unit(f"{name}-retrain", env, lanes("rigl mask", "rlx2 mask")))
        fixed = ("dense", "random ticket", "dynamic ticket")
        tickets.append(unit(f"{name}-rl", env, lanes(*fixed)))
        tickets.append(unit(f"{name}-winning", env, lanes("winning ticket")))
        tickets.append(unit(f"{name}-bc", env, lanes(*fixed, "winning ticket"), kind="clone"))
    pendulum = "InvertedPendulum-v5"
    suites = {
        "table2": each("dense", "tiny", "ss", "set", "rigl", "rlx2", algos=("td3", "sac")),
        "toy": [
            unit("inverted-pendulum", pendulum, lanes("dense", "ss", "rigl", "rlx2")),
            unit("inverted-pendulum-expert", pendulum, lanes("rigl+q*")),
        ],
        "sparsity": [
            unit(f"td3-{t.lower()}", f"{t}-v5", [*lanes("dense"), *levels]) for t in tasks[-1:]
        ],
        "topology": each("dense", "rlx2-tiny", "rlx2-ss", "rlx2-set", "rlx2"),
        "nstep": each("dense", *(f"{n}-step" for n in range(1, 6))),
        "buffer": each("dense", "5e4", "1e5", "2e5", "1e6", "unlimited", "dynamic"),
        "sensitivity": each("dense", "default", "static", "no adjustment", "one-step", *swept),
        "masks": masks,
        "tickets": tickets,
        "humanoid": [
            unit(f"humanoid-{h}", "Humanoid-v5", lanes(*LEVEL), hidden=[h, h]) for h in (256, 1024)
        ],
        "buffer_trace": each("dynamic", "fixed"),
        "mask_figures": [unit("td3-ant", "Ant-v5", lanes("rlx2"))],
        "mask_init": [unit("td3-hopper", "Hopper-v5", lanes("rlx2, random", "rlx2, magnitude"))],
    }
    for name, units in suites.items():
        folder = plan(logdir, name, units, fraction=steps / 3e6)
        for own in units:
            if (name, own["name"]) == ("nstep", last):
                continue
            part = (name, own["name"]) == ("buffer", last)
            run(
                folder,
                own,
                learning(steps),
                steps=steps,
                interval=interval,
                reached=2 * interval if part else None,
                finished=not part,
                metrics=name == "buffer_trace",
                masks=name == "mask_figures",
            )
    return suites
