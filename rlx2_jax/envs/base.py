"""What every environment backend offers the training loops, and the checks they share.

E is the number of environments, `obs` and `act` the observation and action sizes.
"""

import contextlib
import difflib
import importlib
import re
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlx2_jax.types import TimeStep

MAX_SEED = 2**31 - 1
# What a task may raise: some call sys.exit, and viewers raise KeyboardInterrupt. Whoever catches it
# calls `check_interrupted` first.
RAISED = BaseException


class EnvSpec(NamedTuple):
    """Sizes and bounds of a task.

    Attributes:
      obs_dim: size of observations.
      action_dim: size of actions.
      max_episode_steps: time limit; None: episodes are never cut.
      action_low: the task's own lower bounds of actions; None: -1 of each component.
      action_high: the upper bounds; None: 1 of each component.
    """

    obs_dim: int
    action_dim: int
    max_episode_steps: int | None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None


class HostEnvs(Protocol):
    """E environments stepped together on the host; each depends on its own seed only."""

    spec: EnvSpec
    num_envs: int
    exact_restore: bool  # False: `restore` starts new episodes instead of continuing

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Seeds and starts every environment, one seed each in [0, 2³¹).

        Later episodes draw from the environment's own random stream. Returns f32[E, obs].
        """
        ...

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> TimeStep[np.ndarray]:
        """Steps with actions [E, act] in [-1, 1], which are scaled to the task's bounds.

        Returns fresh arrays `[E, ...]`, not to be modified. Environments where `active` (bool[E];
        all, if not given) is False stay as they are: their rows have no reward and do not end.
        Raises `EnvironmentFailure` after the others have been stepped.
        """
        ...

    def state(self) -> dict[str, np.ndarray]:
        """All that `restore` needs as plain arrays, each of leading axis E."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Takes up a saved state, in this or in a new object; returns f32[E, obs] to act on.

        Unless `exact_restore`, new episodes begin: treat each environment's last stored
        transition as truncated, or n-step windows would run across the gap.
        """
        ...

    def close(self) -> None: ...


class EnvironmentFailure(Exception):
    """An environment raised; the original exception is chained.

    Attributes:
      index: which of the E environments, or None if unknown.
      error: the exception.

    A state saved afterwards begins a new episode for the environment that failed.
    """

    def __init__(self, env_id: str, index: int | None, error: BaseException):
        self.index = index
        self.error = error
        where = "" if index is None else f" {index}"
        super().__init__(f"environment{where} ({env_id}) raised {describe(error)}")


def check_interrupted(error: BaseException) -> None:
    """Raises the KeyboardInterrupt of a user again; one that a task itself raised returns. They
    differ in what SIGINT does: only Python's own handler raises, and only in the main thread."""
    if (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        raise error


@contextlib.contextmanager
def failures_of(env_id: str, *besides: type[BaseException]) -> Iterator[None]:
    """Turns whatever a task raises, except errors of the kinds `besides`, into
    `EnvironmentFailure`."""
    try:
        yield
    except (EnvironmentFailure, *besides):
        raise
    except RAISED as error:
        check_interrupted(error)
        raise EnvironmentFailure(env_id, None, error) from error


def describe(error: BaseException) -> str:
    """The kind of an exception and its text, if that can be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__
        return type(error).__name__


def unknown_id(env_id: str, known: Iterable[str], backend: str, advice: str = "") -> ValueError:
    """The error for an id that `backend` lacks, naming the nearest ids that it has."""
    known = sorted(known)
    same_task = [k for k in known if re.sub(r"-v\d+$", "", k) == re.sub(r"-v\d+$", "", env_id)]
    spelt = {k.lower(): k for k in known}
    near = [spelt[k] for k in difflib.get_close_matches(env_id.lower(), spelt, n=4, cutoff=0.6)]
    names = ", ".join(same_task[::-1] or near)
    every = f"use one of {', '.join(known)}" if len(known) <= 20 else f"it has {len(known)} others"
    hint = f"did you mean {names}?" if names else every
    return ValueError(f"{backend} has no environment {env_id!r}; {hint}{advice}")


@contextlib.contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Keeps back a complaint about the models that ship with Gymnasium and Brax.

    On loading HalfCheetah's, MuJoCo reports a deprecated attribute on stderr and in a file
    MUJOCO_LOG.TXT, once for every copy. Anything else that it reports becomes a Python warning.
    """
    mujoco: Any = importlib.import_module("mujoco")  # its functions have no static types

    def report(text: str) -> None:
        if "settotalmass" not in text:
            warnings.warn(text, stacklevel=2)

    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(report)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


def freeze(array: np.ndarray) -> np.ndarray:
    """Makes the array read-only, so that handing it out needs no copy, and returns it."""
    array.flags.writeable = False
    return array


def check_seeds(seeds: Sequence[int], num_envs: int) -> list[int]:
    """The seeds as a list of E ints; raises if they are invalid."""
    seeds = [int(s) for s in seeds]
    if len(seeds) != num_envs:
        raise ValueError(f"got {len(seeds)} seeds for {num_envs} environments; give one for each")
    if wrong := [s for s in seeds if not 0 <= s <= MAX_SEED]:
        raise ValueError(f"seeds must be in [0, 2**31), got {wrong}")
    return seeds


def fresh_seeds(seeds: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Seeds for episodes restarted after `steps` steps of environments seeded with `seeds`."""
    pairs = zip(seeds, steps)
    return [int(np.random.SeedSequence(p).generate_state(1)[0]) & MAX_SEED for p in pairs]
