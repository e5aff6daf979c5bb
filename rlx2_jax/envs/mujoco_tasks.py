"""Gymnasium's MuJoCo tasks as data: observations, rewards and terminations.

A task is a function of a `Physics`, from any engine, and of the settings of Gymnasium's
constructor, with the same names and defaults.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

INFINITY = float("inf")
Settings = Mapping[str, Any]


class Physics(NamedTuple):
    """One simulation after a step, or at an episode's start.

    Positions and velocities are current. The other fields are MuJoCo's last computed values: from
    the fourth stage of RK4, or from the beginning of the last substep with Euler.
    """

    qpos: Array  # [nq]
    qvel: Array  # [nv]
    ctrl: Array  # [nu]
    qfrc_actuator: Array  # [nv]
    torso: Array  # [3]: position of body 1
    com: Array  # [3]: centre of mass of all bodies
    cinert: Array  # [nbody, 10]
    cvel: Array  # [nbody, 6]
    cfrc_ext: Array  # [nbody, 6]: contact forces; 0 at an episode's start


class Step(NamedTuple):
    """The inputs of a reward."""

    physics: Physics
    velocity: Array  # []: of `Task.place` along x, over the whole step
    healthy: Array  # bool[]
    settings: Settings


Part = Callable[[Physics, Settings], Array]


class Task(NamedTuple):
    """One task.

    Attributes:
      xml: Gymnasium's model file.
      frame_skip: physics steps of an environment step.
      observe: parts of the observation, concatenated.
      place: the x coordinate whose velocity is rewarded.
      healthy: () -> bool[]; unhealthy states end the episode.
      rewards: terms of the reward.
      settings: arguments of Gymnasium's constructor that are accepted as options.
      normal_velocity: whether initial velocities are normally distributed.
    """

    xml: str
    frame_skip: int
    observe: tuple[Part, ...]
    place: Callable[[Physics], Array]
    healthy: Callable[[Physics, Settings], Any]
    rewards: tuple[Callable[[Step], Any], ...]
    settings: Settings
    normal_velocity: bool = False

    def observation(self, physics: Physics, settings: Settings) -> Array:
        """The observation [obs]."""
        return jnp.concatenate([part(physics, settings).ravel() for part in self.observe])

    def reward(self, step: Step) -> Array:
        """The reward []."""
        return sum((term(step) for term in self.rewards), start=jnp.zeros_like(step.velocity))


# Parts of observations


def _qpos(skipped: int) -> Part:
    """Positions, without the first `skipped` unless the settings include them."""
    name = "exclude_current_positions_from_observation"
    return lambda p, s: p.qpos[skipped:] if s.get(name, True) else p.qpos


def _qvel(p: Physics, s: Settings) -> Array:
    return p.qvel


def _qvel_clipped(p: Physics, s: Settings) -> Array:
    return jnp.clip(p.qvel, -10, 10)


def _optional(name: str, part: Part) -> Part:
    """`part`, unless the setting `name` is off."""
    return lambda p, s: part(p, s) if s[name] else jnp.zeros(0, p.qpos.dtype)


def _clipped_forces(p: Physics, s: Settings) -> Array:
    return jnp.clip(p.cfrc_ext, *s["contact_force_range"])


_NO_WORLD: tuple[Part, ...] = (
    _optional("include_cinert_in_observation", lambda p, s: p.cinert[1:]),
    _optional("include_cvel_in_observation", lambda p, s: p.cvel[1:]),
    _optional("include_qfrc_actuator_in_observation", lambda p, s: p.qfrc_actuator[6:]),
    _optional("include_cfrc_ext_in_observation", lambda p, s: p.cfrc_ext[1:]),
)
_WITH_WORLD: tuple[Part, ...] = (
    lambda p, s: p.cinert,
    lambda p, s: p.cvel,
    lambda p, s: p.qfrc_actuator,
    # Gymnasium's -v4 tasks also observe these: MuJoCo computes them after each step.
    lambda p, s: p.cfrc_ext,
)


# Health


def _within(x: Array, bounds: tuple[float, float]) -> Array:
    return (bounds[0] < x) & (x < bounds[1])


def _upright_pole(p: Physics, s: Settings) -> Array:
    finite = jnp.isfinite(p.qpos).all() & jnp.isfinite(p.qvel).all()
    return finite & (jnp.abs(p.qpos[1]) <= 0.2)


def _hopper_healthy(p: Physics, s: Settings) -> Array:
    state = jnp.concatenate([p.qpos, p.qvel])[2:]
    return _walker_healthy(p, s) & _within(state, s["healthy_state_range"]).all()


def _walker_healthy(p: Physics, s: Settings) -> Array:
    return _within(p.qpos[1], s["healthy_z_range"]) & _within(p.qpos[2], s["healthy_angle_range"])


def _ant_healthy(p: Physics, s: Settings) -> Array:
    low, high = s["healthy_z_range"]
    finite = jnp.isfinite(p.qpos).all() & jnp.isfinite(p.qvel).all()
    return finite & (low <= p.qpos[2]) & (p.qpos[2] <= high)


def _humanoid_healthy(p: Physics, s: Settings) -> Array:
    return _within(p.qpos[2], s["healthy_z_range"])


def _always(p: Physics, s: Settings) -> Array:
    return jnp.bool_(True)


# Rewards


def _forward(step: Step) -> Array:
    return step.settings.get("forward_reward_weight", 1.0) * step.velocity


def _control(step: Step) -> Array:
    return -step.settings["ctrl_cost_weight"] * jnp.square(step.physics.ctrl).sum()


def _alive(step: Step) -> Array:
    return step.healthy * step.settings["healthy_reward"]


def _alive_v4(step: Step) -> Array:
    """-v4 tasks also give this reward in the last step."""
    alive = step.healthy | step.settings["terminate_when_unhealthy"]
    return alive * step.settings["healthy_reward"]


def _ant_contact(step: Step) -> Array:
    forces = _clipped_forces(step.physics, step.settings)
    return -step.settings["contact_cost_weight"] * jnp.square(forces).sum()


def _ant_contact_v4(step: Step) -> Array | float:
    return _ant_contact(step) if step.settings["use_contact_forces"] else 0.0


def _humanoid_contact(step: Step) -> Array:
    cost = step.settings["contact_cost_weight"] * jnp.square(step.physics.cfrc_ext).sum()
    return -jnp.clip(cost, *step.settings["contact_cost_range"])


def _root(p: Physics) -> Array:
    return p.qpos[0]


def _torso(p: Physics) -> Array:
    return p.torso[0]


def _com(p: Physics) -> Array:
    return p.com[0]


_HEALTH = {"healthy_reward": 1.0, "terminate_when_unhealthy": True}
_EXCLUDE = {"exclude_current_positions_from_observation": True}
_RUN = {"forward_reward_weight": 1.0, **_EXCLUDE}
_LEGS = {"ctrl_cost_weight": 1e-3, "reset_noise_scale": 5e-3, **_HEALTH, **_RUN}
_FORCES = {"contact_cost_weight": 5e-4, "contact_force_range": (-1.0, 1.0)}

_pendulum = Task(
    "inverted_pendulum.xml",
    2,
    (_qpos(0), _qvel),
    _root,
    _upright_pole,
    (lambda step: step.healthy * 1.0,),
    {"reset_noise_scale": 0.01},
)
_hopper = Task(
    "hopper.xml",
    4,
    (_qpos(1), _qvel_clipped),
    _root,
    _hopper_healthy,
    (_forward, _alive, _control),
    _LEGS
    | {
        "healthy_state_range": (-100.0, 100.0),
        "healthy_z_range": (0.7, INFINITY),
        "healthy_angle_range": (-0.2, 0.2),
    },
)
_cheetah = Task(
    "half_cheetah.xml",
    5,
    (_qpos(1), _qvel),
    _root,
    _always,
    (_forward, _control),
    {"ctrl_cost_weight": 0.1, "reset_noise_scale": 0.1, **_RUN},
    normal_velocity=True,
)
_walker = Task(
    "walker2d_v5.xml",
    4,
    (_qpos(1), _qvel_clipped),
    _root,
    _walker_healthy,
    (_forward, _alive, _control),
    _LEGS | {"healthy_z_range": (0.8, 2.0), "healthy_angle_range": (-1.0, 1.0)},
)
_ant_settings = {
    "ctrl_cost_weight": 0.5,
    "reset_noise_scale": 0.1,
    "healthy_z_range": (0.2, 1.0),
    **_HEALTH,
    **_FORCES,
}
_ant = Task(
    "ant.xml",
    5,
    (
        _qpos(2),
        _qvel,
        _optional("include_cfrc_ext_in_observation", lambda p, s: _clipped_forces(p, s)[1:]),
    ),
    _torso,
    _ant_healthy,
    (_forward, _alive, _control, _ant_contact),
    {**_ant_settings, **_RUN, "include_cfrc_ext_in_observation": True},
    normal_velocity=True,
)
_humanoid_settings = {
    "forward_reward_weight": 1.25,
    "ctrl_cost_weight": 0.1,
    "healthy_reward": 5.0,
    "terminate_when_unhealthy": True,
    "healthy_z_range": (1.0, 2.0),
    "reset_noise_scale": 1e-2,
    **_EXCLUDE,
}
_humanoid = Task(
    "humanoid.xml",
    5,
    (_qpos(2), _qvel, *_NO_WORLD),
    _com,
    _humanoid_healthy,
    (_forward, _alive, _control, _humanoid_contact),
    {
        **_humanoid_settings,
        "contact_cost_weight": 5e-7,
        "contact_cost_range": (-np.inf, 10.0),
        **{f"include_{x}_in_observation": True for x in ("cinert", "cvel", "qfrc_actuator")},
        "include_cfrc_ext_in_observation": True,
    },
)

_V4_LEGS = (_forward, _alive_v4, _control)
TASKS = {
    "InvertedPendulum-v5": _pendulum,
    "Hopper-v5": _hopper,
    "HalfCheetah-v5": _cheetah,
    "Walker2d-v5": _walker,
    "Ant-v5": _ant,
    "Humanoid-v5": _humanoid,
    "InvertedPendulum-v4": _pendulum._replace(rewards=(lambda step: 1.0,), settings={}),
    "Hopper-v4": _hopper._replace(rewards=_V4_LEGS),
    "HalfCheetah-v4": _cheetah,
    "Walker2d-v4": _walker._replace(xml="walker2d.xml", rewards=_V4_LEGS),
    "Ant-v4": _ant._replace(
        observe=(_qpos(2), _qvel, _optional("use_contact_forces", _clipped_forces)),
        rewards=(*_V4_LEGS, _ant_contact_v4),
        settings={**_ant_settings, **_EXCLUDE, "use_contact_forces": False},
    ),
    "Humanoid-v4": _humanoid._replace(
        observe=(_qpos(2), _qvel, *_WITH_WORLD), rewards=_V4_LEGS, settings=_humanoid_settings
    ),
}
