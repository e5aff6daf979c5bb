"""The description of an algorithm: pure functions of one lane, and its use of networks."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rlx2_jax.algorithms import NetworkUse
from rlx2_jax.networks import BoundNetwork
from rlx2_jax.types import Array


class Algorithm(NamedTuple):
    """Everything the training loop knows about an algorithm.

    Attributes:
      name: its name in `Config.algo`.
      networks: how it shapes and runs its networks.
      init: `(key, config, lane) -> state`; the state has the fields `actor` and, unless
        `networks.has_critic` is False, `critic`.
      act: `(state, obs, key, config, hyper) -> (action, noise-free action)`.
      update: `(state, batch, key, step, count, config, hyper) -> (state, metrics)`; `metrics` has
        `finite`, whether all gradients were.
      mean_action: `(actor, obs) -> noise-free action`, of a bound actor (`networks.online`).
    """

    name: str
    networks: NetworkUse
    init: Callable[..., Any]
    act: Callable[..., tuple[Array, Array]]
    update: Callable[..., tuple[Any, dict[str, Array]]]
    mean_action: Callable[[BoundNetwork, Array], Array]
