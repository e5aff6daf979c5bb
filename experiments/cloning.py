"""Behaviour cloning of trained experts (section 5.3), as a unit of a sweep.

Each lane imitates the expert that it names: a fixed set of transitions from the expert's own
noise-free episodes, squared error to its actions, no reward and no critic. Leaves the same files
as a training run; steps count gradient updates. A unit that was interrupted begins anew and, being
a function of its seeds alone, ends the same.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import config as configs
from rlx2_jax import envs, files
from rlx2_jax.agents import bc
from rlx2_jax.config import Config, Lane
from rlx2_jax.networks import masked, online
from rlx2_jax.training import guards, launch, logging, weights
from rlx2_jax.training.evaluate import HostEvaluator, final_score, seeds
from rlx2_jax.training.evaluate import rows as evaluation_rows
from rlx2_jax.training.fingerprint import git_commit, processor, versions
from rlx2_jax.training.lane import Stream, stream_key
from rlx2_jax.training.program import networks_of, stack
from rlx2_jax.training.run import CONFIG, Run, label, with_paths

SHARE = 10  # imitation takes this many times fewer updates than reinforcement learning


class _Clones:
    """The lanes as an evaluator wants them."""

    def __init__(self, lanes: Sequence[Lane]):
        self.lanes = lanes
        act = jax.vmap(lambda state, obs: bc.mean_action(online(state.actor), obs))
        self._act = jax.jit(act)

    def judge(self, state: bc.State, obs: np.ndarray) -> tuple[jax.Array, jax.Array]:
        action = self._act(state, jnp.asarray(obs))
        return action, jnp.full(action.shape[:-1], jnp.nan)  # a clone has no Q


class _Imitation(NamedTuple):
    config: Config
    hyper: Any  # stacked over lanes
    data: bc.Demonstrations  # [lanes, transitions, ...]
    seeds: jax.Array


def demonstrate(
    actor: Any, make: Callable[[int], envs.HostEnvs], seed: int, transitions: int
) -> bc.Demonstrations:
    """The first `transitions` of an expert's noise-free episodes, which have seeds of their own."""
    act = jax.jit(lambda obs: bc.mean_action(masked.bind(actor), obs))
    env, episode = make(1), 0
    observations, actions = [], []
    try:
        while len(observations) < transitions:
            # A seed per episode, whatever its length: one stream for the whole set.
            obs = env.reset([seeds(seed, Stream.DEMONSTRATION, episode + 1)[-1]])
            episode, ended = episode + 1, False
            while not ended:
                action = np.array(act(jnp.asarray(obs)))
                observations.append(obs[0].copy())
                actions.append(action[0])
                step = env.step(action)
                obs, ended = step.obs, bool(step.terminated[0] | step.truncated[0])
    finally:
        env.close()
    return bc.Demonstrations(
        jnp.asarray(np.array(observations[:transitions])),
        jnp.asarray(np.array(actions[:transitions])),
    )


@functools.partial(jax.jit, static_argnums=(4, 5), donate_argnums=0)
def _learn(
    state: bc.State, task: Any, first: jax.Array, seeds_: jax.Array, config: Config, updates: int
) -> bc.State:
    """`updates` updates of all lanes, the first being number `first`."""
    hyper, data = task

    def body(state: bc.State, count: jax.Array) -> tuple[bc.State, None]:
        def one(state: bc.State, hyper: Any, data: bc.Demonstrations, seed: jax.Array) -> bc.State:
            batch = bc.sample(data, stream_key(seed, Stream.SAMPLE, count), config.batch_size)
            key = stream_key(seed, Stream.UPDATE, count)
            return bc.update(state, batch, key, count, count, config, hyper)[0]

        return jax.vmap(one)(state, hyper, data, seeds_), None

    return jax.lax.scan(body, state, first + jnp.arange(updates))[0]


def execute(
    settings: launch.Settings,
    lanes: Sequence[Lane],
    directory: Path,
    *,
    transitions: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Trains and evaluates all lanes in `directory`; returns the summary."""
    updates = max(settings.steps // SHARE, 2)
    interval = max(1, updates * settings.eval_interval // settings.steps)
    settings = dataclasses.replace(
        settings, steps=updates, warmup=0, num_envs=1, utd=1.0, execution="masked", algo="td3"
    )
    run = launch.make_run(settings, lanes)
    with guards.locked(directory):
        return _execute(run, directory, transitions, interval, say)


def _execute(
    run: Run, directory: Path, transitions: int, interval: int, say: Callable[[str], None]
) -> dict[str, Any]:
    updates = run.config.steps
    for name in (logging.EVALUATIONS, "summary.json"):
        (directory / name).unlink(missing_ok=True)
    files.write_json(directory / CONFIG, {**run.to_json(), "kind": "clone"})
    own = [with_paths(lane, directory) for lane in run.lanes]

    def make(count: int) -> envs.HostEnvs:
        return envs.make_host(run.env, count, run.backend, **run.env_options)

    state, imitation = _begin(run, own, make, transitions)
    evaluator = HostEvaluator(make(len(own) * run.episodes), _Clones(own), run.episodes)
    log = files.Log(directory / logging.EVALUATIONS, say)
    table = logging.Table(log)
    history: list[dict[str, Any]] = []
    count = 0
    while True:
        rows = evaluation_rows(evaluator(state), own, count, _digests(state))
        table.write(rows)
        log.flush()
        history += rows
        shown = ", ".join(
            f"{label(x, i)}: {r['mean_return']:.1f}" for i, (x, r) in enumerate(zip(own, rows))
        )
        say(f"update {count:,}/{updates:,}  return {shown}")
        if count >= updates:
            break
        length = min(interval, updates - count)
        task = (imitation.hyper, imitation.data)
        state = _learn(state, task, jnp.int32(count + 1), imitation.seeds, imitation.config, length)
        count += length
    for i, networks in enumerate(networks_of(state)):
        weights.save(directory / "final" / f"lane-{i}.npz", networks)
    if not log.flush():
        raise OSError(f"{log.path} could not be written: free some space, then start it again")
    return _summarize(run, history, directory)


def _digests(state: bc.State) -> list[str]:
    return [weights.digest(networks) for networks in networks_of(state)]


def _begin(
    run: Run, lanes: Sequence[Lane], make: Callable[[int], envs.HostEnvs], transitions: int
) -> tuple[bc.State, _Imitation]:
    config = run.config
    states, data, shown = [], [], {}
    for lane in lanes:
        if lane.expert is None:
            raise ValueError(f"lane {lane.name or lane.method} names no expert to imitate")
        expert = weights.load(Path(lane.expert))["actor"].weights
        if lane.expert not in shown:
            shown[lane.expert] = demonstrate(expert, make, lane.seed, transitions)
        data.append(shown[lane.expert])
        fresh = bc.init(stream_key(lane.seed, Stream.INIT, 0), config, lane)
        states.append(weights.given(fresh, config, lane))
    hyper = stack([configs.hyper(config, lane) for lane in lanes])
    numbers = jnp.asarray([lane.seed for lane in lanes], jnp.int32)
    return stack(states), _Imitation(config, hyper, stack(data), numbers)


def _summarize(run: Run, history: list[dict[str, Any]], directory: Path) -> dict[str, Any]:
    rows = []
    for i, lane in enumerate(run.lanes):
        means = [r["mean_return"] for r in history if r["lane"] == i and r["step"] > 0]
        score, used = final_score(means)
        rows.append(
            {
                "lane": i,
                "method": lane.method,
                "seed": lane.seed,
                "final_score": score,
                "evaluations_used": used,
                "best_return": max(means),
                "last_return": means[-1],
            }
        )
    found = {
        "env": run.env,
        "algo": "bc",
        "steps": run.config.steps,
        "lanes": rows,
        "versions": versions(),
        "git_commit": git_commit(),
        "processor": processor(),
    }
    files.write_json(directory / "summary.json", found)
    return found
