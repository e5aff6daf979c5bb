"""The data that flows between modules: transitions, n-step batches, networks."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax

Array = jax.Array
Params = Any  # a pytree of arrays
Masks = Any  # the same pytree, boolean
Bounds = tuple[tuple[float, ...], tuple[float, ...]]  # low and high of each component


class Transition(NamedTuple):
    """One environment step. Leading axes are free; `buffer.add` takes `[envs, ...]` or none.

    `next_obs` is the observation that the action really led to (the final one at an episode's
    end), `mean` the noise-free action of the policy that acted, or None where it is not kept.
    """

    obs: Array  # [obs]
    action: Array  # [act], in [-1, 1]
    reward: Array  # []
    next_obs: Array  # [obs]
    terminated: Array  # [] bool: the episode ended in the task, nothing follows
    truncated: Array  # [] bool: the episode was cut, the state has a value
    mean: Array | None = None  # [act]


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
    data_fields=["params", "masks", "moments", "target", "moved", "stats"],
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

    def _replace(self, **fields: Any) -> "Network":
        return dataclasses.replace(self, **fields)
