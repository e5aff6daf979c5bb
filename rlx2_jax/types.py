"""Shared data types: time steps, transitions, n-step batches, networks."""

import dataclasses
import functools
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

Array = jax.Array
Device = Any  # a jax.Device, which type checkers treat as a variable
Params = Any  # a pytree of arrays
Masks = Any  # the same pytree, boolean
Bounds = tuple[tuple[float, ...], tuple[float, ...]]  # low and high of each component


AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)


class TimeStep(NamedTuple, Generic[AnyArray]):
    """The result of an environment step, on the host (NumPy) or on the device (JAX).

    Leading axes are free: none for one device environment, `[E]` for E host environments,
    `[lanes, envs]` in training loops. Ended episodes have already been restarted; only then do
    `next_obs` and `obs` differ. Learn from `next_obs`, act on `obs`.

    Attributes:
      next_obs: the next observation; at an episode's end, its final one: f32[obs].
      obs: the observation to act on; after an episode's end, the first of a new one: f32[obs].
      reward: of the step: f32[].
      terminated: the task ended, with a value of 0 beyond; may coincide with `truncated`: bool[].
      truncated: the time limit ended the episode; bootstrap from `next_obs`: bool[].
    """

    next_obs: AnyArray
    obs: AnyArray
    reward: AnyArray
    terminated: AnyArray
    truncated: AnyArray


class Transition(NamedTuple):
    """One environment step as stored in replay: a `TimeStep` and the action that led to it.

    Leading axes are free; `buffer.add` takes `[envs, ...]` or none.

    Attributes:
      obs: s_t, the observation that the action was chosen for: [obs].
      action: a_t, in [-1, 1]: [act].
      reward: r_t: [].
      next_obs: s_{t+1}, `next_obs` of the `TimeStep`: [obs].
      terminated: whether the task ended at this step: bool[].
      truncated: whether the time limit ended the episode: bool[].
      mean: the policy's noise-free action, for the policy distance: [act]; None: not stored.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    mean: Array | None = None


class Batch(NamedTuple):
    """n-step windows `(s_t, a_t, r_t, s_{t+1}, ..., r_{t+n-1}, s_{t+n})`, one per row.

    Steps after a window's first terminated or truncated step belong to another episode.

    Attributes:
      obs: s_t, the first observation of each window: [batch, obs].
      action: a_t, its first action: [batch, act].
      reward: r_t .. r_{t+n-1}: [batch, n].
      next_obs: s_{t+1} .. s_{t+n}: [batch, n, obs].
      terminated: whether the task ended at each step: bool[batch, n].
      truncated: whether the time limit ended the episode at each step: bool[batch, n].
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "masks", "moments", "target", "moved", "stats", "smoothed", "signs"],
    meta_fields=["form", "members", "module"],
)
@dataclasses.dataclass(frozen=True)
class Network:
    """One trained network: θ, its mask M_θ, Adam's moments, and the target θ' (or None).

    Attributes:
      params, moments, target: dense pytrees (masked), or vectors of live links (compact).
      masks: boolean pytrees (masked), or a `layout.Index` (compact).
      moved: links replaced by the last mask update, i32[].
      stats: running observation statistics, if the architecture has any; shared by θ and θ', and
        by the members of an ensemble.
      form: `masked` or `compact`, the module of `networks` that handles it.
      members: the size of an ensemble (the critics), which is the leading axis of every array above
        except `stats`; None for a single network.
      module: its architecture, a Flax module; None for a plain MLP.
      smoothed: exponentially smoothed dense gradients of the kernels by name, [in, out], masked or
        compact; None unless the program's growth rules or method need them.
      signs: whether each initial weight was positive, by kernel name; None unless the program's
        method needs them.
    """

    params: Params
    masks: Masks
    moments: Any  # optax.ScaleByAdamState
    target: Params | None = None
    moved: Array | None = None
    form: str = "masked"
    members: int | None = None
    stats: Params | None = None
    module: Any = None
    smoothed: dict[str, Array] | None = None
    signs: dict[str, Array] | None = None

    def _replace(self, **fields: Any) -> "Network":
        return dataclasses.replace(self, **fields)
