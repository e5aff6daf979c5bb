"""The data that flows between modules: time steps, transitions, n-step batches, networks."""

import dataclasses
import functools
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

Array = jax.Array
Params = Any  # a pytree of arrays
Masks = Any  # the same pytree, boolean
Bounds = tuple[tuple[float, ...], tuple[float, ...]]  # low and high of each component


AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)


class TimeStep(NamedTuple, Generic[AnyArray]):
    """What environments return for an action, on the host (NumPy) and on the device (JAX).

    Leading axes are free: none for one device environment, `[E]` for E host environments,
    `[lanes, envs]` in training loops. An episode that ended has already been restarted: `next_obs`
    and `obs` differ exactly there. Learn from `next_obs`, act on `obs`.
    """

    next_obs: AnyArray  # f32[obs]: where the action led; at an episode's end, its last observation
    obs: AnyArray  # f32[obs]: the one to act on next; after an episode's end, a new one's first
    reward: AnyArray  # f32[]
    terminated: AnyArray  # bool[]: the task ended, its value beyond is 0; may come with truncated
    truncated: AnyArray  # bool[]: the time limit ended the episode; bootstrap from `next_obs`


class Transition(NamedTuple):
    """One environment step as replay stores it: a `TimeStep` and the action that led to it.

    Leading axes are free; `buffer.add` takes `[envs, ...]` or none.
    """

    obs: Array  # [obs]: what the action was chosen for
    action: Array  # [act], in [-1, 1]
    reward: Array  # []
    next_obs: Array  # [obs]: of the `TimeStep`, as are the other fields without a comment
    terminated: Array  # [] bool
    truncated: Array  # [] bool
    mean: Array | None = None  # [act]: the policy's noise-free action; None: not kept


class Batch(NamedTuple):
    """n-step windows `(s_t, a_t, r_t, s_{t+1}, ..., r_{t+n-1}, s_{t+n})`, one per row.

    What lies behind a window's first terminated or truncated step belongs to another episode.
    """

    obs: Array  # [batch, obs]
    action: Array  # [batch, act]
    reward: Array  # [batch, n]
    next_obs: Array  # [batch, n, obs]
    terminated: Array  # [batch, n] bool
    truncated: Array  # [batch, n] bool


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "masks", "moments", "target", "moved", "stats", "smoothed"],
    meta_fields=["form", "members", "module"],
)
@dataclasses.dataclass(frozen=True)
class Network:
    """One trained network: θ, its mask M_θ, Adam's moments, and the target θ' (or None).

    Attributes:
      params, moments, target: dense pytrees (masked form), or vectors of live links (compact).
      masks: boolean pytrees (masked form), or a `layout.Index` (compact).
      moved: links replaced by the last mask update, i32[].
      stats: running statistics of observations, where the architecture has them; shared by θ and
        θ', and by the members of an ensemble.
      form: `masked` or `compact`: the module of `networks` that handles it.
      members: None for a single network; for an ensemble (the critics) their number, the leading
        axis of every array above but `stats`.
      module: its architecture, a Flax module; None is a plain MLP.
      smoothed: exponentially smoothed dense gradients of the kernels by name, [in, out] in both
        forms; None unless a growth rule of the program needs them.
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

    def _replace(self, **fields: Any) -> "Network":
        return dataclasses.replace(self, **fields)
