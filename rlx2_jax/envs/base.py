"""The interface of environment backends, and shared checks.

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
# Tasks may raise anything: some call sys.exit, and viewers raise KeyboardInterrupt. Handlers must
# call `check_interrupted` first.
RAISED = BaseException
_LONGEST = 2000  # characters of an exception


class EnvSpec(NamedTuple):
    """Sizes and bounds of a task.

    Attributes:
      obs_dim: size of observations.
      action_dim: size of actions.
      max_episode_steps: time limit; None for none.
      action_low: the task's lower action bounds; None: all -1.
      action_high: the task's upper action bounds; None: all 1.
    """

    obs_dim: int
    action_dim: int
    max_episode_steps: int | None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None


class HostEnvs(Protocol):
    """E environments stepped together on the host; each depends only on its seed."""

    spec: EnvSpec
    num_envs: int
    exact_restore: bool  # False: `restore` starts new episodes instead of continuing

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Seeds and starts every environment, with one seed each in [0, 2³¹).

        Later episodes continue each environment's random stream. Returns f32[E, obs].
        """
        ...

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> TimeStep[np.ndarray]:
        """Steps with actions [E, act] in [-1, 1], which are scaled to the task's bounds.

        Returns new read-only arrays `[E, ...]`. Environments where `active` (bool[E]; default: all)
        is False are not stepped: their rows have no reward and do not end. If an environment fails,
        raises `EnvironmentFailure` after stepping the others.
        """
        ...

    def state(self) -> dict[str, np.ndarray]:
        """The state for `restore` as plain arrays with leading axis E."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restores a saved state, in this or in a new object; returns f32[E, obs] to act on.

        Unless `exact_restore`, starts new episodes: callers must treat the last stored transition
        of each environment as truncated, or n-step windows would span two episodes.
        """
        ...

    def close(self) -> None: ...


class EnvironmentFailure(Exception):
    """An environment raised; the original exception is chained.

    Attributes:
      index: which of the E environments, or None if unknown.
      error: the exception.

    A state saved afterwards starts a new episode for the failed environment.
    """

    def __init__(self, env_id: str, index: int | None, error: BaseException):
        self.index = index
        self.error = error
        where = "" if index is None else f" {index}"
        super().__init__(f"environment{where} ({env_id}) raised {describe(error)}")


def check_interrupted(error: BaseException) -> None:
    """Re-raises a KeyboardInterrupt by the user; returns if a task raised it. Only Python's default
    SIGINT handler raises KeyboardInterrupt, and only in the main thread."""
    if (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        raise error


@contextlib.contextmanager
def failures_of(env_id: str, *besides: type[BaseException]) -> Iterator[None]:
    """Converts exceptions of a task into `EnvironmentFailure`, except the types in `besides`."""
    try:
        yield
    except (EnvironmentFailure, *besides):
        raise
    except RAISED as error:
        check_interrupted(error)
        raise EnvironmentFailure(env_id, None, error) from error


def describe(error: BaseException) -> str:
    """The type of an exception and its message, shortened if it is long."""
    try:
        text = f"{type(error).__name__}: {error}"
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    except Exception:  # its __str__ may raise
        return type(error).__name__


def unknown_id(env_id: str, known: Iterable[str], backend: str, advice: str = "") -> ValueError:
    """The error for an unknown id, with the closest ids of the backend."""
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
    """Suppresses a warning about the models of Gymnasium and Brax.

    When it loads HalfCheetah, MuJoCo reports a deprecated attribute on stderr and in
    MUJOCO_LOG.TXT, once per copy. Its other warnings become Python warnings.
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
    """Makes an array read-only, so that it can be returned without a copy."""
    array.flags.writeable = False
    return array


def check_seeds(seeds: Sequence[int], num_envs: int) -> list[int]:
    """The seeds as a list of E ints; raises if they are invalid."""
    seeds = [int(s) for s in seeds]
    if len(seeds) != num_envs:
        raise ValueError(f"got {len(seeds)} seeds for {num_envs} environments; give one each")
    if wrong := [s for s in seeds if not 0 <= s <= MAX_SEED]:
        raise ValueError(f"seeds must be in [0, 2**31), got {wrong}")
    return seeds


def fresh_seeds(seeds: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Seeds to restart environments with, given their first seeds and the steps taken since."""
    pairs = zip(seeds, steps)
    return [int(np.random.SeedSequence(p).generate_state(1)[0]) & MAX_SEED for p in pairs]
