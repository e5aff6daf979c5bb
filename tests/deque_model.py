"""A plain-Python deque model of the replay buffer, and environments to fill both."""

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lanes import quick

from rlx2_jax.replay import buffer
from rlx2_jax.types import Batch, Transition

OBS, ACT, N = 3, 2, 3
# (environments, capacity, horizon): a long horizon leaves few slots for final observations.
SHAPES = [(1, 17, None), (1, 23, 1000), (3, 31, None), (3, 36, 1000)]
W = np.random.default_rng(9).normal(size=(OBS, ACT)).astype(np.float32) / 40


def policy(obs: Any) -> Any:
    """`[..., obs] -> [..., act]`, of NumPy and of JAX arrays."""
    return (jnp if isinstance(obs, jax.Array) else np).tanh(obs @ W)


def example(envs: int, obs: int = OBS, act: int = ACT, mean: bool = True) -> Transition:
    """Zeros of the right shapes."""
    return Transition(
        obs=jnp.zeros((envs, obs)),
        action=jnp.zeros((envs, act)),
        reward=jnp.zeros(envs),
        next_obs=jnp.zeros((envs, obs)),
        terminated=jnp.zeros(envs, bool),
        truncated=jnp.zeros(envs, bool),
        mean=jnp.zeros((envs, act)) if mean else None,
    )


class Stream:
    """Environments in which every observation, action and reward is unique."""

    def __init__(self, envs: int, seed: int, p_end: float = 0.15):
        self.rng, self.envs, self.p_end, self.count = np.random.default_rng(seed), envs, p_end, 0
        self.obs = self.fresh()

    def fresh(self) -> np.ndarray:
        ids = self.count + np.arange(self.envs, dtype=np.float32)
        self.count += self.envs
        return ids[:, None] + np.array([0.0, 0.25, 0.5], np.float32)

    def step(self) -> Transition:
        terminated, truncated = self.rng.random((2, self.envs)) < self.p_end  # both, at times
        obs, next_obs = self.obs, self.fresh()
        self.obs = np.where((terminated | truncated)[:, None], self.fresh(), next_obs)
        mean = self.rng.uniform(-1, 1, (self.envs, ACT)).astype(np.float16).astype(np.float32)
        action = mean + self.rng.normal(0, 0.1, mean.shape).astype(np.float32)
        reward = self.rng.normal(size=self.envs).astype(np.float32)
        fields = (obs, action, reward, next_obs, terminated, truncated, mean)
        return Transition(*fields)  # type: ignore[arg-type]


class Model:
    """The buffer as a deque of steps, and a deque of steps with a stored final observation."""

    def __init__(self, buf: buffer.Buffer):
        self.rows = buffer.capacity(buf) // buf.data.shape[1]
        self.steps: deque[tuple[int, Transition]] = deque()
        self.owners: deque[int] = deque()
        self.slots, self.count = buf.finals.shape[0], 0

    def add(self, t: Transition, limit: int) -> None:
        for _ in range(int(t.truncated.sum())):
            if len(self.owners) == self.slots:  # this one's final observation is overwritten
                lost = self.owners.popleft()
                while self.steps and self.steps[0][0] <= lost:
                    self.steps.popleft()
            self.owners.append(self.count)
        self.steps.append((self.count, t))
        self.count += 1
        while len(self.steps) > min(self.rows, limit // t.obs.shape[0]):
            self.steps.popleft()

    def pop(self, count: int) -> None:
        for _ in range(count):
            self.steps.popleft()

    def field(self, name: str) -> np.ndarray:
        """`[steps, envs, ...]`."""
        return np.stack([getattr(t, name) for _, t in self.steps])

    def windows(self, n: int) -> Batch:
        """All windows of n steps, ordered by start and then by environment."""

        def cut(name: str) -> np.ndarray:
            x = self.field(name)
            parts = [x[i : len(x) - n + 1 + i] for i in range(n)]
            x = np.stack(parts, axis=2)  # [starts, envs, n, ...]
            return x.reshape(-1, *x.shape[2:])

        obs, action = cut("obs")[:, 0], cut("action")[:, 0]
        rest = [cut(name) for name in ("reward", "next_obs", "terminated", "truncated")]
        return Batch(obs, action, *rest)  # type: ignore[arg-type]


def play(buf: buffer.Buffer, steps: Transition, valid, limit) -> tuple[buffer.Buffer, jax.Array]:
    """Adds `[steps, envs, ...]` transitions one by one; also gives the length after each."""

    def body(buf, step):
        buf = buffer.add(buf, step[0], limit=limit, valid=step[1])
        return buf, buf.length

    return jax.lax.scan(body, buf, (steps, valid))


playing = quick(play)


def filled(shape: tuple[int, int, int | None], steps: int, seed: int = 0):
    """A buffer after `steps` steps, and its model."""
    envs, capacity, horizon = shape
    stream, buf = Stream(envs, seed), buffer.init(capacity, example(envs), horizon=horizon)
    model, played = Model(buf), [stream.step() for _ in range(120)]
    for t in played[:steps]:
        model.add(t, capacity)
    stacked = jax.tree.map(lambda *x: np.stack(x), *played)
    return playing(buf, stacked, np.arange(120) < steps, capacity)[0], model  # one program
