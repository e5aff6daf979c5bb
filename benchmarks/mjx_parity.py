"""Compares the MJX backend with Gymnasium, step by step and over whole episodes.

    python -m benchmarks.mjx_parity --tasks=Hopper-v5 --runs=Hopper-v5=runs/hopper --x64
    python -m benchmarks.mjx_parity --tasks=Hopper-v5 --runs=Hopper-v5=runs/hopper-mjx --states=0
    python -m benchmarks.mjx_parity --page

Half of the states come from random actions, half from the policy of a run directory with
exploration noise. From each state, both engines take the same step. Then the policy plays whole
episodes in both, wherever it was trained. Results are added to docs/measured/mjx.json one by one;
`--page` writes the tables into docs/mjx.md.
"""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from absl import app, flags

from rlx2_jax.cli import crash
from rlx2_jax.envs.mjx import Simulation, State
from rlx2_jax.envs.mujoco_tasks import TASKS, Physics
from rlx2_jax.export import folder
from rlx2_jax.export.actor import read_run
from rlx2_jax.export.compare import Task, device_episodes, host_returns
from rlx2_jax.export.load import load_policy

FLAGS = flags.FLAGS
BATCH = 500
NOISE = 0.1  # standard deviation of the trained policy's exploration
NAMES = {"gymnasium": "Gymnasium", "mjx": "MJX"}
MARK = ("<!-- mjx: begin -->", "<!-- mjx: end -->")


class Sample(NamedTuple):
    """Steps of Gymnasium's task, [N, ...]: initial states, actions and results."""

    qpos: np.ndarray
    qvel: np.ndarray
    warmstart: np.ndarray
    place: np.ndarray
    action: np.ndarray  # in [-1, 1]
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def collect(name: str, policy: Any, steps: int, seed: int) -> tuple[Sample, Any]:
    """`steps` steps in Gymnasium, and the (qpos, qvel, observation) of each episode's start."""
    env: Any = gymnasium.make(name)
    task, bare, rng = TASKS[name], env.unwrapped, np.random.default_rng(seed)
    low, high = bare.action_space.low, bare.action_space.high
    rows, starts = [], []
    obs, _ = env.reset(seed=seed)
    starts.append((bare.data.qpos.copy(), bare.data.qvel.copy(), obs))
    for _ in range(steps):
        data = bare.data
        before = data.qpos.copy(), data.qvel.copy(), data.qacc_warmstart.copy()
        place = float(task.place(_physics(bare)))
        if policy is None:
            action = rng.uniform(-1, 1, low.shape).astype(np.float32)
        else:
            noise = NOISE * rng.standard_normal(low.shape)
            action = np.clip(policy(obs) + noise, -1, 1).astype(np.float32)
        obs, reward, terminated, truncated, _ = env.step(
            (high + low) / 2 + (high - low) / 2 * action
        )
        rows.append((*before, place, action, obs, reward, terminated))
        if terminated or truncated:
            obs, _ = env.reset()
            starts.append((bare.data.qpos.copy(), bare.data.qvel.copy(), obs))
    env.close()
    return Sample(*map(np.array, zip(*rows))), [np.array(x) for x in zip(*starts)]


def _physics(env: Any) -> Physics:
    """The fields that `Task.place` reads, in float64."""
    data, mass = env.data, env.model.body_mass
    unread: Any = None
    fields = dict.fromkeys(Physics._fields, unread)
    com = mass @ data.xipos / mass.sum()
    return Physics(**{**fields, "qpos": data.qpos, "torso": data.xpos[1], "com": com})


def compare(task: Simulation, sample: Sample, starts: Any) -> dict[str, Any]:
    """Errors of MJX over a sample and over initial observations."""
    step = jax.jit(jax.vmap(task.step))
    results = [step(state, action) for state, action in _batches(sample)]
    obs, reward, ends = (np.concatenate([np.asarray(x[i]) for x in results]) for i in (1, 2, 3))
    number = len(sample.reward)
    obs, reward, ends = obs[:number], reward[:number], ends[:number]
    error = np.abs(obs - sample.obs)
    moving = sample.qpos.shape[1] + sample.qvel.shape[1]
    # Ant and Humanoid: without x and y, and before inertias and forces. Others: all numbers.
    moving = moving - 2 if error.shape[1] > moving else error.shape[1]
    begin = jax.jit(jax.vmap(task.begin))
    first = np.asarray(begin(_array(starts[0]), _array(starts[1]))[1])
    return {
        "states": number,
        "observation": _spread(error.max(axis=1)),
        "motion": _spread(error[:, :moving].max(axis=1)),
        "reward": _spread(np.abs(reward - sample.reward)),
        "terminated": int(sample.terminated.sum()),
        "flags_that_differ": int((ends != sample.terminated).sum()),
        "starts": len(first),
        "start_largest": float(np.abs(first - starts[2]).max()),
    }


def _batches(sample: Sample) -> Iterator[tuple[State, jax.Array]]:
    """The sample in batches of equal size; the last one is padded."""
    for i in range(0, len(sample.reward), BATCH):
        part = [x[i : i + BATCH] for x in sample[:5]]
        part = [np.concatenate([x, np.repeat(x[-1:], BATCH - len(x), 0)]) for x in part]
        *state, action = map(_array, part)
        yield State(*state), action


def _array(x: np.ndarray) -> jax.Array:
    return jnp.asarray(x, jnp.zeros(()).dtype)


def _spread(error: np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(error)),
        "p99": float(np.quantile(error, 0.99)),
        "largest": float(error.max()),
    }


def episodes(name: str, policy: Any, number: int) -> dict[str, Any]:
    """Noise-free returns of a policy with both backends, from different initial states."""
    host = host_returns(Task(name, "gymnasium", {}), policy.act, 0, number)
    device = device_episodes(Task(name, "mjx", {}), policy, 0, number).returns
    error = np.sqrt(host.var(ddof=1) / number + device.var(ddof=1) / number)
    return {
        "episodes": number,
        "gymnasium": float(host.mean()),
        "mjx": float(device.mean()),
        "difference_percent": float(100 * (device.mean() / host.mean() - 1)),
        "standard_error_percent": float(100 * error / abs(host.mean())),
    }


def trained_on(run: str) -> str:
    """The backend of a run directory or a published policy."""
    record = Path(run) / folder.RECORD
    if record.exists():
        return json.loads(record.read_text())["env_backend"]
    return read_run(Path(run)).backend


def steps(name: str, policy: Any, states: int) -> dict[str, Any]:
    """The comparison of single steps, from states of random actions and of a policy, if any."""
    number = -(-states // (2 if policy else 1))
    parts = [collect(name, None, number, seed=0)]
    if policy:
        parts.append(collect(name, policy, number, seed=1))
    sample = Sample(*(np.concatenate(x) for x in zip(*(part[0] for part in parts))))
    starts = [np.concatenate(x) for x in zip(*(part[1] for part in parts))]
    with jax.numpy_rank_promotion("allow"):
        results = compare(Simulation(name), sample, starts)
    return {**results, "policies": "random and trained" if policy else "random"}


def _episodes(about: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The episodes of a task, by the backend that the policy was trained on."""
    return sorted(about.get("episodes", {}).items())


def page(results: dict[str, Any]) -> str:
    """The tables of docs/mjx.md."""
    kinds = ("float32", "float64")
    head = "| task | physics | states | policies | positions and velocities: median, 99 %, largest "
    head += "| observation | reward | flags that differ | ends | first observations |"
    lines = [head, "|---|---|---:|---|---|---|---|---:|---:|---:|"]
    for name, about in results["tasks"].items():
        for kind in (k for k in kinds if k in about):
            row = about[kind]
            spreads = [
                ", ".join(f"{row[x][q]:.1e}" for q in ("median", "p99", "largest"))
                for x in ("motion", "observation", "reward")
            ]
            cells = [name, kind, f"{row['states']:,}", row["policies"], *spreads]
            cells += [str(row["flags_that_differ"]), f"{row['terminated']:,}"]
            cells.append(f"{row['start_largest']:.1e}")
            lines.append(f"| {' | '.join(cells)} |")
    played = [(n, on, row) for n, v in results["tasks"].items() for on, row in _episodes(v)]
    if played:
        head = "| task | trained on | episodes | return in Gymnasium | on MJX | difference "
        lines += ["", f"{head}(standard error) |", "|---|---|---:|---:|---:|---:|"]
    for name, on, row in played:
        gap = f"{row['difference_percent']:+.2f} % ({row['standard_error_percent']:.2f} %)"
        returns = f"{row['gymnasium']:.1f} | {row['mjx']:.1f}"
        lines.append(f"| {name} | {NAMES[on]} | {row['episodes']} | {returns} | {gap} |")
    versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    return "\n".join([*lines, "", f"Measured with {versions}."])


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    out, doc = Path(FLAGS.out), Path(FLAGS.doc)
    results = json.loads(out.read_text()) if out.exists() else {"tasks": {}}
    if FLAGS.page:
        text = doc.read_text()
        before, after = text.partition(MARK[0])[0], text.partition(MARK[1])[2]
        doc.write_text(f"{before}{MARK[0]}\n{page(results)}\n{MARK[1]}{after}")
        return 0
    jax.config.update("jax_enable_x64", FLAGS.x64)
    runs = dict(item.split("=", 1) for item in FLAGS.runs)
    for name in FLAGS.tasks:
        run = runs.get(name)
        policy = load_policy(run) if run else None
        if FLAGS.states:
            kind = "float64" if FLAGS.x64 else "float32"
            _add(results, name, {kind: steps(name, policy, FLAGS.states)}, out)
        if run and policy and FLAGS.episodes and not FLAGS.x64:
            before = results["tasks"].get(name, {}).get("episodes", {})
            own = {trained_on(run): episodes(name, policy, FLAGS.episodes)}
            _add(results, name, {"episodes": {**before, **own}}, out)
    return 0


def _add(results: dict[str, Any], name: str, new: dict[str, Any], out: Path) -> None:
    """Adds results of a task and writes all of them."""
    results["tasks"].setdefault(name, {}).update(new)
    results["tasks"] = {k: results["tasks"][k] for k in TASKS if k in results["tasks"]}
    results["versions"] = {
        "mujoco": mujoco.__version__,
        "mujoco-mjx": version("mujoco-mjx"),
        "gymnasium": gymnasium.__version__,
        "jax": f"{jax.__version__} on {platform.machine()}",
    }
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(name, json.dumps(new), flush=True)


if __name__ == "__main__":
    flags.DEFINE_list("tasks", ["InvertedPendulum-v5"], "Gymnasium ids.")
    flags.DEFINE_list("runs", [], "TASK=DIRECTORY: run directories with trained policies.")
    text = "States per task for the comparison of single steps; 0: none."
    flags.DEFINE_integer("states", 10_000, text, lower_bound=0)
    flags.DEFINE_integer("episodes", 100, "Full episodes of a trained policy; 0: none.")
    flags.DEFINE_bool(
        "x64", False, "Run MJX in float64, to separate rounding from real differences."
    )
    flags.DEFINE_string("out", "docs/measured/mjx.json", "Output file of the measurements.")
    flags.DEFINE_bool("page", False, "Write the tables into --doc and measure nothing.")
    flags.DEFINE_string("doc", "docs/mjx.md", "The page.")
    crash.run(main)
