"""Code shared by the algorithms: network creation, the delayed switch, topology options."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax import networks
from rlx2_jax.config import Config, Hyper, Lane, live_links, resolve, topology_of, widths
from rlx2_jax.control_flow import over_members, reduce_members
from rlx2_jax.networks import optimize
from rlx2_jax.networks.evolution import Evolution
from rlx2_jax.networks.forms import FORMS
from rlx2_jax.sparse import masks
from rlx2_jax.sparse.lane_topology import RIGL
from rlx2_jax.types import Array, Masks, Network, Params


class Due(NamedTuple):
    """The parts of a gradient update that do not run at every update. Static.

    True or False compiles the part in or out; None branches on the update's count. `BY_COUNT`, all
    None, is correct at every update.

    Attributes:
      actor: whether the actor is updated (policy delay).
      targets: whether targets take a Polyak step.
      evolve_critic: whether the critics' masks are updated.
      evolve_actor: whether the actor's mask is updated.
      times: number of consecutive updates like this; only used by `training.lane`.
    """

    actor: bool | None = None
    targets: bool | None = None
    evolve_critic: bool | None = None
    evolve_actor: bool | None = None
    times: int = 1

    @property
    def evolves(self) -> bool:
        """Whether masks may change."""
        return self.evolve_critic is not False or self.evolve_actor is not False


BY_COUNT = Due()


def make_network(
    key: Array,
    config: Config,
    lane: Lane,
    module: networks.Architecture,
    inputs: int,
    sparsity: float | Sequence[float],
    width: int | None,
    *,
    members: int | None = None,
    target: bool = True,
    links: tuple[int, ...] = (),
) -> Network:
    """A sparse network and its target: θ ← θ ⊙ M_θ, θ' ← θ (Algorithm 4, lines 1-3).

    Equal keys give equal dense weights for any sparsity, masked or compact. `members` makes an
    ensemble, `width` a small dense block (Tiny); `links` is the room of each compact layer.
    """
    lane = resolve(config, lane)
    topology = topology_of(lane, started=False)

    def draw(key: Array) -> tuple[Params, Params, Masks, Params | None]:
        """Dense weights, masked weights, masks and statistics of one network."""
        weight_key, mask_key = jax.random.split(key)
        dense, block, stats = networks.init(
            weight_key, module, inputs, width=width, dtype=config.dtype
        )
        options = lane.distribution, config.mask_init
        if width or topology.prunes:
            chosen = RIGL.initial_masks(mask_key, dense, 0.0, *options)
        else:
            chosen = topology.initial_masks(mask_key, dense, sparsity, *options)
        mask = jax.tree.map(jnp.logical_and, chosen, block)
        return dense, masks.apply(dense, mask), mask, stats

    if members is None:
        dense, params, mask, stats = draw(key)
    else:
        dense, params, mask, stats = jax.vmap(draw)(jax.random.split(key, members))
        stats = jax.tree.map(lambda leaf: leaf[0], stats)  # identical for all members
    target_params = None
    if target:  # a copy: a donated state must not contain an array twice
        target_params = jax.tree.map(jnp.copy, params if config.targets == "masked" else dense)
    network = optimize.init(
        params,
        mask,
        target=target_params,
        grow=config.grow,
        topology=config.topology,
        dense=dense,
        members=members,
        module=module,
        stats=stats,
    )
    return FORMS[config.execution].pack(network, networks.spec(module, inputs, links))


def make_actor(key: Array, config: Config, lane: Lane, *, target: bool = True) -> Network:
    """π_φ of a lane, with a target network if `target`."""
    lane = resolve(config, lane)  # sets a dense lane's sparsities to 0
    return make_network(
        key,
        config,
        lane,
        config.actor_module,
        config.actor_inputs,
        lane.actor_sparsity,
        widths(config, lane)[0],
        target=target,
        links=live_links(config, lane).actor,
    )


def make_critic(key: Array, config: Config, lane: Lane) -> Network:
    """Q_θ1 .. Q_θN of a lane, with their targets."""
    lane = resolve(config, lane)
    return make_network(
        key,
        config,
        lane,
        config.critic_module,
        config.critic_inputs,
        lane.critic_sparsity,
        widths(config, lane)[1],
        members=config.critics,
        links=live_links(config, lane).critic,
    )


def networks_of(agent: Any) -> dict[str, Network]:
    """The networks of an agent's state, by field."""
    return {name: x for name, x in agent._asdict().items() if isinstance(x, Network)}


def observe(agent: Any, obs: Array, active: Array | bool = True) -> Any:
    """Updates the running statistics of an agent's networks with new observations `[envs, obs]` if
    `active`. Does nothing for architectures without statistics."""
    nets = networks_of(agent).items()
    return agent._replace(**{name: networks.observe(x, obs, active) for name, x in nets})


def switched_n(step: Array, count: Array, config: Config, hyper: Hyper) -> Array:
    """N = 1 while t < T_0, then n (Algorithm 4, line 10); t counts updates or steps."""
    t = count if config.switch == "updates" else step
    return jnp.where(t < hyper.t0, 1, hyper.n)


def evolution_of(config: Config, delay: int = 1) -> Evolution:
    """Options of mask updates, for a network that is updated every `delay` updates."""
    return Evolution(
        rows=config.batch_size,
        interval=config.mask_interval,
        topology=config.topology.delayed(delay),
        grow=config.grow,
        drop=config.drop,
        mask_step=config.mask_step,
        moments=config.moments,
        regrow=config.regrow,
        remask_target=config.targets == "masked",
    )


def target_value(q: Array, key: Array, config: Config) -> Array:
    """min_j Q_θ'j over all critics or, as in REDQ, over a random subset: `[critics, ...] -> [...]`.

    The whole batch shares one subset of `config.critic_subset` critics.
    """
    if not config.critic_subset:
        return networks.minimum(q)
    subset_key = jax.random.fold_in(key, 3)  # a separate stream: does not affect other draws
    chosen = jax.random.choice(subset_key, len(q), (config.critic_subset,), replace=False)
    return jnp.min(q[chosen], axis=0)


def squared_errors(q: Array, y: Array) -> Array:
    """Σ_j 1/B Σ_i (Q_θj(s_i, a_i) - y_i)²: f[], for `q: [critics, batch]`."""
    return reduce_members(
        jnp.add, over_members(lambda each: jnp.mean((each - y) ** 2), q, members=len(q))
    )
