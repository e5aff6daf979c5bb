"""Evaluation: noise-free episodes with the same seeds each time, one episode per environment.

Besides the return, the value error Q(s, a) - G: what the critic believes of its own policy
against the discounted return that followed, the quantity that section 4.2 is about.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import networks
from rlx2_jax.config import Lane
from rlx2_jax.envs.base import MAX_SEED, EnvironmentFailure, HostEnvs
from rlx2_jax.envs.device import DeviceEnv
from rlx2_jax.training.lane import LaneState, Stream, stream_key
from rlx2_jax.training.program import Program, judge_lane
from rlx2_jax.types import Array

EPISODES = 10
SCORED = 30  # the final score is the mean of the last 30 evaluations
DIGITS = 16  # hexadecimal digits of a digest in `evaluations.csv`
LONGEST = 100_000  # steps of an episode where the environment has no time limit
_TAIL = 0.01  # a cut episode's steps count while γ^(steps left) is below this
# Rewards of an odd task may be infinite or nan: so are the results, and that says it.
_QUIET = np.errstate(invalid="ignore", over="ignore")


class Evaluation(NamedTuple):
    """Of each lane; K episodes."""

    returns: np.ndarray  # [lanes, K]
    lengths: np.ndarray  # [lanes, K]
    value_bias: np.ndarray  # [lanes]: mean of Q - G, nan where no step has a full return
    value_spread: np.ndarray  # [lanes]: its standard deviation


def seeds(seed: int, stream: Stream, count: int) -> list[int]:
    """`count` environment seeds of a lane for one purpose, whatever its position."""
    sequence = np.random.SeedSequence([seed, int(stream)])
    return [int(x) & MAX_SEED for x in sequence.generate_state(count)]


class Interrupted(Exception):
    """An evaluation was given up because the run has to stop."""


class Judge(Protocol):
    """Lanes that return actions and Q values; a `Program` is one."""

    @property
    def lanes(self) -> Sequence[Lane]: ...

    def judge(self, state: Any, obs: np.ndarray) -> tuple[Array, Array]:
        """Noise-free actions and their Q for `obs: [lanes, k, obs]`; nan where there is no Q."""
        ...


class HostEvaluator:
    """Evaluates all lanes of a program side by side in host environments."""

    def __init__(self, envs: HostEnvs, program: Judge, episodes: int = EPISODES):
        self.envs, self._program, self._episodes = envs, program, episodes
        self._seeds = [
            s for lane in program.lanes for s in seeds(lane.seed, Stream.EVALUATION, episodes)
        ]
        self._discount = np.array([lane.discount for lane in program.lanes])
        self._longest = envs.spec.max_episode_steps or LONGEST

    def __call__(self, state: Any, stop: Callable[[], bool] = lambda: False) -> Evaluation:
        """One episode in every environment.

        Raises:
          Interrupted: `stop()` became true on the way.
          EnvironmentFailure: an environment raised, or does not end an episode.
        """
        lanes, k = len(self._program.lanes), self._episodes
        obs = self.envs.reset(self._seeds)
        active = np.ones(lanes * k, bool)
        rewards, values, actives = [], [], []
        cut = np.zeros(lanes * k, bool)
        while active.any():
            if stop():
                raise Interrupted
            if len(rewards) >= self._longest:
                raise self._endless(int(np.argmax(active)))
            action, q = self._program.judge(state, obs.reshape(lanes, k, -1))
            step = self.envs.step(np.array(action).reshape(lanes * k, -1), active)
            rewards.append(np.where(active, step.reward, 0.0))
            values.append(np.array(q).reshape(-1))
            actives.append(active.copy())
            cut |= active & step.truncated & ~step.terminated
            active &= ~(step.terminated | step.truncated)
            obs = step.obs
        return summarize(
            np.array(rewards), np.array(values), np.array(actives), cut, self._discount, k
        )

    def _endless(self, index: int) -> EnvironmentFailure:
        error = TimeoutError(
            f"an evaluation episode has not ended after {self._longest:,} steps and the "
            f"environment has no time limit: add one with --max_episode_steps"
        )
        return EnvironmentFailure("evaluation", index, error)


class DeviceEvaluator:
    """The same inside XLA: one scan over the time limit."""

    def __init__(self, env: DeviceEnv, program: Program, episodes: int = EPISODES):
        horizon = env.spec.max_episode_steps
        if horizon is None:
            raise ValueError(
                "evaluation on the device needs a time limit: add one with --max_episode_steps"
            )
        self._program, self._episodes = program, episodes
        config = program.config
        self._discount = np.array([lane.discount for lane in program.lanes])

        def episode(key, actor, critic):
            def body(carry, _):
                env_state, active = carry
                obs = env_state.obs[None]
                action, q = judge_lane(actor, critic, obs, config.algo, config.critic_bounds)
                env_state, step = env.step(env_state, action[0])
                ended = step.terminated | step.truncated
                out = (step.reward, q[0], active, active & step.truncated & ~step.terminated)
                return (env_state, active & ~ended), out

            return jax.lax.scan(body, (env.reset(key), jnp.ones((), bool)), None, horizon)[1]

        def lane(seed, actor, critic):
            keys = jax.vmap(lambda i: stream_key(seed, Stream.EVALUATION, i))(jnp.arange(episodes))
            return jax.vmap(episode, (0, None, None))(keys, actor, critic)

        self._run = jax.jit(jax.vmap(lane))

    def __call__(self, state: LaneState) -> Evaluation:
        agent = state.agent
        outs = self._run(state.seed, networks.online(agent.actor), networks.online(agent.critic))
        reward, q, active, cut = (
            np.moveaxis(np.array(x).reshape(-1, np.shape(x)[-1]), 1, 0) for x in outs
        )
        reward = np.where(active, reward, 0.0)
        cut = np.asarray(cut.any(axis=0))
        return summarize(reward, q, active, cut, self._discount, self._episodes)


@_QUIET
def summarize(
    rewards: np.ndarray,
    values: np.ndarray,
    active: np.ndarray,
    cut: np.ndarray,
    discounts: np.ndarray,
    episodes: int,
) -> Evaluation:
    """Returns and value errors of `[time, lanes * K]` records; `cut` tells truncated episodes.

    G of a step in an episode that was cut lacks what would have followed, so such steps count
    only while γ^(steps left) is below one per cent.
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
        own = error[:, lane][~np.isnan(error[:, lane])]
        if own.size:
            bias[lane], spread[lane] = own.mean(), own.std()
    return Evaluation(
        returns=rewards.sum(axis=0).reshape(-1, episodes),
        lengths=lengths.reshape(-1, episodes),
        value_bias=bias,
        value_spread=spread,
    )


@_QUIET
def rows(
    found: Evaluation, lanes: Sequence[Lane], step: int, digests: Sequence[str], first: int = 0
) -> list[dict]:
    """The rows of `evaluations.csv`; `digests` are of the lanes' weights, `first` is the number of
    the first lane."""
    return [
        {
            "lane": first + i,
            "method": lane.method,
            "seed": lane.seed,
            "step": step,
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
    """The mean of the last 30 evaluations, and how many there were. The one at step 0 is not
    among `means`."""
    last = means[-SCORED:]
    return (float(np.mean(last)) if len(last) else float("nan")), len(last)
