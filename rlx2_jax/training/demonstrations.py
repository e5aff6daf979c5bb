"""Expert transitions, which fill the replay of lanes that learn offline (section 5.3)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rlx2_jax import networks
from rlx2_jax.config import Config, Lane
from rlx2_jax.envs import HostEnvs
from rlx2_jax.envs.rollout import host_episodes
from rlx2_jax.prng import Stream
from rlx2_jax.training import weights
from rlx2_jax.training.evaluate import seeds
from rlx2_jax.types import Transition


def demonstrate(
    act: Callable[[np.ndarray], np.ndarray], env: HostEnvs, seed: int, transitions: int
) -> Transition:
    """The first `transitions` of an expert's noise-free episodes in one environment:
    `[transitions, 1, ...]`. The episodes have a separate seed stream."""
    steps: list[Transition] = []
    episode = 0
    while len(steps) < transitions:
        episode += 1  # one seed per episode, all from one stream
        first = seeds(seed, Stream.DEMONSTRATION, episode)[-1:]
        for obs, action, after, _ in host_episodes(env, act, first):
            ends = (after.terminated, after.truncated)
            row: tuple[Any, ...] = (obs, action, after.reward, after.next_obs, *ends, action)
            steps.append(Transition(*row))
    return jax.tree.map(lambda *rows: np.stack(rows), *steps[:transitions])


def of_lanes(config: Config, lanes: Sequence[Lane], env: HostEnvs) -> list[Transition]:
    """Transitions of each lane's expert, enough to fill the replay; seeded by the lane."""
    policy = jax.jit(networks.policy)
    keys = [(str(lane.expert), lane.seed) for lane in lanes]
    data: dict[tuple[str, int], Transition] = {}
    for path, seed in dict.fromkeys(keys):
        weights.check_expert(path, config)
        actor = weights.expert_actor(path, config)
        act = lambda obs, actor=actor: np.asarray(policy(actor, obs))  # noqa: E731
        data[path, seed] = demonstrate(act, env, seed, config.capacity)
    return [data[key] for key in keys]
