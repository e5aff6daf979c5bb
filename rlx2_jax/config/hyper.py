"""`Hyper`, the traced hyper-parameters of a lane."""

from typing import NamedTuple

import jax.numpy as jnp

from rlx2_jax.config.links import lane_links
from rlx2_jax.config.records import Config, Lane
from rlx2_jax.config.resolve import resolve, topology_of
from rlx2_jax.networks import Layers
from rlx2_jax.sparse.topology import Schedule
from rlx2_jax.types import Array


class Hyper(NamedTuple):
    """The traced hyper-parameters of a lane, all scalars.

    Attributes:
      learning_rate: Adam's step size λ.
      discount: γ.
      tau: target update rate τ.
      exploration_noise: σ of TD3's exploration.
      target_noise: σ̃ of TD3's target smoothing.
      target_noise_clip: c, its bound.
      target_entropy: SAC's H̄.
      critic: when and how the critics' masks are updated.
      actor: when and how the actor's mask is updated.
      n: steps of the multi-step target.
      t0: T_0, before which targets are 1-step.
      d0: D_0, the policy distance above which the buffer is trimmed.
      buffer_interval: Δ_b, environment steps between checks of the buffer.
      trim_ratio: ρ, the fraction that is dropped at a check; 0: a fixed-size buffer.
      b_min: B_min, in transitions.
      b_max: B_max, in transitions.
    """

    learning_rate: Array
    discount: Array
    tau: Array
    exploration_noise: Array
    target_noise: Array
    target_noise_clip: Array
    target_entropy: Array
    critic: Schedule
    actor: Schedule
    n: Array
    t0: Array
    d0: Array
    buffer_interval: Array
    trim_ratio: Array
    b_min: Array
    b_max: Array


def hyper(config: Config, lane: Lane) -> Hyper:
    """The traced hyper-parameters of a lane, for `act` and `update` of an agent.

    >>> import rlx2_jax as rlx2
    >>> config = rlx2.Config("td3", obs_dim=3, action_dim=1)
    >>> int(rlx2.hyper(config, rlx2.Lane(method="rlx2")).n)
    3
    """
    lane = resolve(config, lane)
    topology = topology_of(lane)
    if topology != config.topology:
        raise ValueError(
            f"method={lane.method!r} of a lane needs {topology}, the program has "
            f"{config.topology}: create the Config with config.with_topology(config, lane)"
        )
    final = lane_links(config, lane, pruned=True) if topology.prunes else None
    f32 = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    i32 = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    critic = Schedule(
        zeta0=f32(lane.zeta0 if "zeta0" in topology.options else 1.0),
        interval=i32(lane.mask_interval),
        t_end=i32(lane.t_end),
        grow=i32(config.grow.index(str(lane.grow))),
        drop=i32(config.drop.index(lane.drop)),
        links=final and _by_kernel(config.critic_layers, final.critic),
    )
    # The mask interval counts updates of the network; TD3's actor is updated every d updates.
    actor = critic._replace(
        t_end=i32(max(1, int(lane.t_end or 0) // config.policy_delay)),
        links=final and _by_kernel(config.actor_layers, final.actor),
    )
    # Dtypes depend on the name, not the value: discount=1 and discount=0.99 share a program.
    whole = ("n", "t0", "buffer_interval", "b_min", "b_max")
    fields = {
        name: (i32 if name in whole else f32)(getattr(lane, name))
        for name in Hyper._fields
        if name not in ("critic", "actor")
    }
    return Hyper(critic=critic, actor=actor, **fields)


def _by_kernel(layers: Layers, links: tuple[int, ...]) -> dict[str, Array]:
    return {f"{name}/kernel": jnp.int32(n) for (name, _), n in zip(layers, links, strict=True)}
