"""Evaluation: noise-free episodes with the same seeds each time, one episode per environment.

Measures returns and the value error Q(s, a) - G, the difference between the critic's estimate and
the discounted return that followed (section 4.2).
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.config import Config, Lane
from rlx2_jax.envs.base import MAX_SEED, HostEnvs
from rlx2_jax.envs.device import DeviceEnv
from rlx2_jax.envs.rollout import Episode, device_episode, host_episodes
from rlx2_jax.prng import Stream, stream_key
from rlx2_jax.training.devices import SharedJit
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.program import Program, actions_and_values, online_networks
from rlx2_jax.types import Array

EPISODES = 10
SCORED = 30  # the final score is the mean of the last 30 evaluations
DIGITS = 16  # hexadecimal digits of a digest in `evaluations.csv`
_TAIL = 0.01  # steps of a truncated episode count while γ^(steps left) is below this
# Infinite or nan rewards give infinite or nan results; NumPy's warnings would add nothing.
_QUIET = np.errstate(invalid="ignore", over="ignore")


class Evaluation(NamedTuple):
    """Evaluation results of each lane over K episodes."""

    returns: np.ndarray  # [lanes, K]
    lengths: np.ndarray  # [lanes, K]
    value_bias: np.ndarray  # [lanes]: mean of Q - G, nan where no step has a full return
    value_spread: np.ndarray  # [lanes]: its standard deviation


def seeds(seed: int, stream: Stream, count: int) -> list[int]:
    """`count` environment seeds of a lane for one purpose; independent of the lane's position."""
    sequence = np.random.SeedSequence([seed, int(stream)])
    return [int(x) & MAX_SEED for x in sequence.generate_state(count)]


class Interrupted(Exception):
    """An evaluation was aborted because the run has to stop."""


class HostEvaluator:
    """Evaluates all lanes of a program in parallel host environments."""

    def __init__(self, envs: HostEnvs, program: Program, episodes: int = EPISODES):
        self._envs, self._program, self._episodes = envs, program, episodes
        self._seeds = [
            s for lane in program.lanes for s in seeds(lane.seed, Stream.EVALUATION, episodes)
        ]
        self._discount = np.array([lane.discount for lane in program.lanes])

    def __call__(self, state: Any, stop: Callable[[], bool] = lambda: False) -> Evaluation:
        """Runs one episode in every environment.

        Raises:
          Interrupted: `stop()` became true during the evaluation.
          EnvironmentFailure: an environment raised, or an episode does not end.
        """
        lanes, k = len(self._program.lanes), self._episodes
        rewards, values, actives = [], [], []
        cut = np.zeros(lanes * k, bool)

        def act(obs: np.ndarray) -> np.ndarray:
            if stop():
                raise Interrupted
            action, q = self._program.actions_and_values(state, obs.reshape(lanes, k, -1))
            values.append(np.array(q).reshape(-1))
            return np.array(action).reshape(lanes * k, -1)

        for _, _, after, active in host_episodes(self._envs, act, self._seeds):
            rewards.append(np.where(active, after.reward, 0.0))
            actives.append(active)
            cut |= active & after.truncated & ~after.terminated
        return summarize(
            np.array(rewards), np.array(values), np.array(actives), cut, self._discount, k
        )

    def close(self) -> None:
        with contextlib.suppress(Exception):  # an environment may have failed
            self._envs.close()


class DeviceEvaluator:
    """Evaluates all lanes of a program inside XLA, with one scan over the time limit."""

    def __init__(self, env: DeviceEnv, program: Program, episodes: int = EPISODES):
        if env.spec.max_episode_steps is None:
            raise ValueError(
                "evaluation on the device needs a time limit: add one with --max_episode_steps"
            )
        self._program, self._episodes = program, episodes
        self._discount = np.array([lane.discount for lane in program.lanes])
        self._run = _episodes_on_device(env, program.config, episodes)

    def __call__(self, state: LaneState, stop: Callable[[], bool] = lambda: False) -> Evaluation:
        del stop  # a single call runs all episodes
        reward, active, cut, q = (
            np.moveaxis(np.array(x).reshape(-1, np.shape(x)[-1]), 1, 0)
            for x in self._run(state.seed, state.agent)
        )
        cut = np.asarray(cut.any(axis=0))
        return summarize(reward, q, active, cut, self._discount, self._episodes)

    def close(self) -> None:
        pass


@functools.lru_cache(maxsize=8)
def _episodes_on_device(env: DeviceEnv, config: Config, episodes: int) -> SharedJit:
    """A function from `(seeds, agents)` of stacked lanes to episodes, shared by all groups."""

    def lane(seed: Array, agent: Any) -> Episode:
        actor, critic = online_networks(agent)

        def act(obs: Array) -> tuple[Array, Array]:
            action, q = actions_and_values(
                actor, critic, obs[None], config.algo, config.critic_bounds
            )
            return action[0], q[0]

        keys = jax.vmap(lambda i: stream_key(seed, Stream.EVALUATION, i))(jnp.arange(episodes))
        return jax.vmap(lambda key: device_episode(env, act, key))(keys)

    return SharedJit(jax.vmap(lane))


@_QUIET
def summarize(
    rewards: np.ndarray,
    values: np.ndarray,
    active: np.ndarray,
    cut: np.ndarray,
    discounts: np.ndarray,
    episodes: int,
) -> Evaluation:
    """Returns and value errors of `[time, lanes * K]` records; `cut` marks truncated episodes.

    In a truncated episode, G lacks the rewards after the cut, so only steps whose γ^(steps left) is
    below 1% count.
    """
    gamma = np.repeat(discounts, episodes)
    following = np.zeros_like(gamma)
    returns = np.zeros_like(rewards, dtype=float)
    for t in range(len(rewards) - 1, -1, -1):
        following = np.where(active[t], rewards[t] + gamma * following, 0.0)
        returns[t] = following
    lengths = active.sum(axis=0)
    left = lengths[None] - np.arange(len(rewards))[:, None]
    with np.errstate(divide="ignore"):
        enough = np.log(_TAIL) / np.log(gamma)
    counted = active & (~cut | (left >= enough))
    error = np.where(counted, values - returns, np.nan).reshape(len(rewards), -1, episodes)
    bias, spread = np.full((2, len(discounts)), np.nan)
    for lane in range(len(discounts)):
        errors = error[:, lane][~np.isnan(error[:, lane])]
        if errors.size:
            bias[lane], spread[lane] = errors.mean(), errors.std()
    return Evaluation(
        returns=rewards.sum(axis=0).reshape(-1, episodes),
        lengths=lengths.reshape(-1, episodes),
        value_bias=bias,
        value_spread=spread,
    )


def head(lane: Lane, number: int, step: int) -> dict[str, Any]:
    """The first columns of `evaluations.csv` and `metrics.csv`."""
    return {"lane": number, "method": lane.method, "seed": lane.seed, "step": step}


@_QUIET
def rows(
    found: Evaluation, lanes: Sequence[Lane], step: int, digests: Sequence[str], first: int = 0
) -> list[dict[str, Any]]:
    """The rows of `evaluations.csv`. `digests`: of the lanes' weights; `first`: the number of the
    first lane."""
    return [
        {
            **head(lane, first + i, step),
            "mean_return": float(found.returns[i].mean()),
            "std_return": float(found.returns[i].std()),
            "min_return": float(found.returns[i].min()),
            "max_return": float(found.returns[i].max()),
            "mean_length": float(found.lengths[i].mean()),
            "value_bias": float(found.value_bias[i]),
            "value_spread": float(found.value_spread[i]),
            "weights": digests[i][:DIGITS],
        }
        for i, lane in enumerate(lanes)
    ]


def final_score(means: Sequence[float] | np.ndarray) -> tuple[float, int]:
    """The mean of the last 30 evaluations, and how many were used. `means` leaves out step 0."""
    last = means[-SCORED:]
    return (float(np.mean(last)) if len(last) else float("nan")), len(last)
