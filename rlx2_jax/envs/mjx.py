"""Gymnasium's MuJoCo tasks on the device, simulated by MuJoCo MJX.

Models, rewards, terminations, initial states, observations and time limits are Gymnasium's
(`mujoco_tasks.TASKS`), and the physics is MuJoCo's in float32; see [docs/mjx.md](../../docs/mjx.md)
for the measured differences. Two things differ by design. MJX lacks the PGS solver that Humanoid's
model selects; its Newton solver finds the same optimum. And a diverged simulation is reset to the
model's reference state after the environment step instead of the physics step.

On Nvidia GPUs, uses the Warp implementation of MJX if `warp-lang` is installed.
"""

import contextlib
import importlib
import importlib.util
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.envs.base import EnvSpec, quiet_mujoco, unknown_id
from rlx2_jax.envs.device import DeviceEnv, from_functions
from rlx2_jax.envs.mujoco_tasks import TASKS, Physics, Step
from rlx2_jax.envs.spaces import check_limit

IMPLEMENTATIONS = ("jax", "warp")
# Warp has one contact pool for all simulations of a batch.
WORLDS, CONTACTS = 8192, 24
LARGEST = 1e10  # MuJoCo treats larger values as divergence


class State(NamedTuple):
    """The state of a simulation between two steps."""

    qpos: jax.Array  # [nq]
    qvel: jax.Array  # [nv]
    warmstart: jax.Array  # [nv]: accelerations from which the solver starts
    place: jax.Array  # []: the task's x coordinate, as MuJoCo last computed it


class Simulation:
    """One task as pure functions, without restarts or a time limit.

    Attributes:
      task, settings: the entry of `TASKS`, and its settings with the options applied.
      timestep: seconds of an environment step.
      obs_dim, action_dim, action_low, action_high: sizes and bounds.
    """

    def __init__(self, name: str, impl: str | None = None, **options: Any):
        mujoco, mjx = _import()
        if name not in TASKS:
            raise unknown_id(name, TASKS, "The MJX backend")
        self.task = TASKS[name]
        self.settings = _settings(name, self.task.settings, options)
        self.impl = _implementation(impl)
        with quiet_mujoco():
            model: Any = mujoco.MjModel.from_xml_path(str(_assets() / self.task.xml))
        self.timestep = model.opt.timestep * self.task.frame_skip
        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        self._mjx = mjx
        self._plain = mjx.put_model(model, impl="jax")
        self._rest = mjx.make_data(model, impl="jax")
        self._model, self._data = self._plain, self._rest
        if self.impl == "warp":
            self._model = _with_forces(mjx.put_model(model, impl="warp"))
            self._data = mjx.make_data(model, impl="warp", naconmax=WORLDS * CONTACTS)
        self._advance = lambda data: mjx.step(self._model, data)
        if self.impl == "jax" and model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4:
            free = bool(model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE)
            self._advance = lambda data: _rk4(mjx, self._model, data, free=free)
        self._mass = np.asarray(model.body_mass)
        low, high = model.actuator_ctrlrange.astype(np.float32).T
        self.action_dim = model.nu
        self.action_low, self.action_high = tuple(map(float, low)), tuple(map(float, high))
        self._centre, self._half = (high + low) / 2, (high - low) / 2
        start = jax.eval_shape(lambda: self.begin(self._rest.qpos, self._rest.qvel))[1]
        self.obs_dim = start.shape[0]

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """An initial state and its observation [obs], with Gymnasium's distribution."""
        scale = self.settings.get("reset_noise_scale", 0.01)  # -v4's pendulum has no setting
        for_qpos, for_qvel = jax.random.split(key)
        qpos, qvel = self._rest.qpos, self._rest.qvel
        uniform = lambda key, x: jax.random.uniform(key, x.shape, x.dtype, -scale, scale)  # noqa: E731
        qpos = qpos + uniform(for_qpos, qpos)
        if self.task.normal_velocity:
            return self.begin(qpos, scale * jax.random.normal(for_qvel, qvel.shape, qvel.dtype))
        return self.begin(qpos, uniform(for_qvel, qvel))

    def begin(self, qpos: jax.Array, qvel: jax.Array) -> tuple[State, jax.Array]:
        """Starts an episode at the given state; also returns the observation [obs]."""
        data = self._rest.replace(qpos=qpos, qvel=qvel)
        for stage in (self._mjx.kinematics, self._mjx.com_pos, self._mjx.com_vel):
            data = stage(self._plain, data)
        physics = self._read(data.replace(qpos=qpos))._replace(
            qfrc_actuator=jnp.zeros_like(qvel), cfrc_ext=jnp.zeros_like(self._rest._impl.cfrc_ext)
        )
        state = State(qpos, qvel, jnp.zeros_like(qvel), self.task.place(physics))
        return state, self.task.observation(physics, self.settings)

    def step(
        self, state: State, action: jax.Array
    ) -> tuple[State, jax.Array, jax.Array, jax.Array]:
        """One environment step.

        Args:
          action: [act] in [-1, 1].

        Returns:
          The next state, observation [obs], reward [] and terminated bool[].
        """
        ctrl = self._centre + self._half * action
        data = self._data.replace(
            qpos=state.qpos,
            qvel=state.qvel,
            qacc_warmstart=state.warmstart,
            ctrl=jnp.asarray(ctrl, state.qpos.dtype),
        )
        with _capsule_frames():
            data = jax.lax.fori_loop(
                0, self.task.frame_skip, lambda _, data: self._advance(data), data
            )
        bad = ~(jnp.abs(jnp.concatenate([data.qpos, data.qvel])) < LARGEST).all()
        rest = self._rest.replace(ctrl=data.ctrl)
        physics = self._read(_forces(self._mjx, self._model, data))
        physics = jax.tree.map(
            lambda x, at_rest: jnp.where(bad, at_rest, x), physics, self._read(rest)
        )
        place = self.task.place(physics)
        velocity = jnp.where(bad, 0.0, (place - state.place) / self.timestep)
        healthy = jnp.asarray(self.task.healthy(physics, self.settings))
        reward = self.task.reward(Step(physics, velocity, healthy, self.settings))
        ends = self.settings.get("terminate_when_unhealthy", True)
        warmstart = jnp.where(bad, 0.0, data.qacc_warmstart)
        state = State(physics.qpos, physics.qvel, warmstart, place)
        obs = self.task.observation(physics, self.settings)
        return state, obs, reward, ~healthy & ends

    def _read(self, data: Any) -> Physics:
        mass = jnp.asarray(self._mass, data.qpos.dtype)
        return Physics(
            data.qpos,
            data.qvel,
            data.ctrl,
            data.qfrc_actuator,
            data.xpos[1],
            mass @ data.xipos / mass.sum(),
            data._impl.cinert,
            data.cvel,
            data._impl.cfrc_ext,
        )


def make(
    name: str, *, max_episode_steps: int | None = 1000, impl: str | None = None, **options: Any
) -> DeviceEnv:
    """One of `TASKS` with restarts and a time limit.

    Args:
      name: Gymnasium's id, e.g. "Hopper-v5" or "Ant-v4".
      max_episode_steps: the time limit; None for none.
      impl: "jax" or "warp"; default: warp on Nvidia GPUs if installed.
      **options: arguments of the task's Gymnasium constructor, e.g. `ctrl_cost_weight=0.1`.
    """
    limit = check_limit("max_episode_steps", max_episode_steps)
    with jax.numpy_rank_promotion("allow"):
        task = Simulation(name, impl, **options)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        with jax.numpy_rank_promotion("allow"):
            return task.reset(key)

    def step(state: Any, action: jax.Array) -> tuple[Any, jax.Array, Any, jax.Array]:
        with jax.numpy_rank_promotion("allow"):
            return task.step(state, action)

    bounds = task.action_low, task.action_high
    return from_functions(reset, step, EnvSpec(task.obs_dim, task.action_dim, limit, *bounds))


def _import() -> tuple[Any, Any]:
    try:
        # MJX prints messages about missing optional packages.
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("mujoco"), importlib.import_module("mujoco.mjx")
    except ImportError as error:
        raise ImportError(
            "the mjx backend needs MuJoCo MJX: pip install 'rlx2_jax[mjx]'"
        ) from error


def _assets() -> Path:
    """Gymnasium's folder of models, which needs no MuJoCo extra."""
    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None and spec.origin is not None  # a dependency of this package
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"


def _settings(name: str, known: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(
            f"{name} has no option {', '.join(unknown)} on MJX; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return {**known, **options}


def _implementation(impl: str | None) -> str:
    """The implementation of MJX to use."""
    installed = importlib.util.find_spec("warp") is not None
    if impl is None:
        cuda = any(d.platform == "gpu" and "nvidia" in d.device_kind.lower() for d in jax.devices())
        return "warp" if installed and cuda else "jax"
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is {impl!r}: use one of {IMPLEMENTATIONS}, or omit it")
    if impl == "warp" and not installed:
        raise ImportError("impl='warp' needs Warp: pip install warp-lang")
    return impl


@contextlib.contextmanager
def _capsule_frames() -> Iterator[None]:
    """Gives contacts of capsules with planes MuJoCo's frames while a program is traced.

    MuJoCo's friction pyramid has an edge along the capsule's axis. MJX's does not if the capsule is
    steeper than 60 degrees, as Ant's legs often are.
    """
    driver: Any = importlib.import_module("mujoco.mjx._src.collision_driver")
    functions = driver._COLLISION_FUNC
    pair = (driver.GeomType.PLANE, driver.GeomType.CAPSULE)
    before = functions[pair]
    functions[pair] = _aligned(before)
    try:
        yield
    finally:
        functions[pair] = before


def _aligned(collide: Any) -> Any:
    """A collision function of planes and capsules, two contacts for each pair, with frames along
    the capsules' axes."""

    def aligned(model: Any, data: Any, key: Any, pairs: Any) -> Any:
        distance, position, frame = collide(model, data, key, pairs)
        normal, axis = (data.geom_xmat[pairs[:, i], :, 2] for i in (0, 1))
        along = axis - normal * (normal * axis).sum(axis=1, keepdims=True)
        size = jnp.sqrt((along**2).sum(axis=1, keepdims=True))
        upright = size < 1e-6
        along = jnp.where(upright, frame[::2, 1], along / jnp.where(upright, 1.0, size))
        found = jnp.stack([normal, along, jnp.cross(normal, along)], axis=1)
        return distance, position, jnp.repeat(found, 2, axis=0)

    aligned.ncon = collide.ncon  # pyright: ignore[reportFunctionMemberAccess]
    return aligned


def _rk4(mjx: Any, model: Any, data: Any, *, free: bool) -> Any:
    """`mjx.step` with the RK4 integrator, as a scan with one copy of the forward pass instead of
    four, which compiles much faster.

    Args:
      free: whether the first joint is free; all others must be hinges and slides.
    """
    dt, qpos, qvel = model.opt.timestep, data.qpos, data.qvel
    stages = jnp.array([[1 / 2, 1 / 6], [1 / 2, 1 / 3], [1, 1 / 3], [0, 1 / 6]], qpos.dtype)

    def stage(carry: Any, numbers: jax.Array) -> tuple[Any, None]:
        data, velocity, acceleration = carry
        ahead, weight = numbers
        data = mjx.forward(model, data)
        velocity = velocity + weight * data.qvel
        acceleration = acceleration + weight * data.qacc
        data = data.replace(
            qpos=_integrate(qpos, ahead * dt * data.qvel, free=free),
            qvel=qvel + ahead * dt * data.qacc,
        )
        return (data, velocity, acceleration), None

    zero = jnp.zeros_like(qvel)
    (data, velocity, acceleration), _ = jax.lax.scan(stage, (data, zero, zero), stages)
    return data.replace(
        qpos=_integrate(qpos, dt * velocity, free=free),
        qvel=qvel + dt * acceleration,
        qacc_warmstart=data.qacc,
    )


def _integrate(qpos: jax.Array, moved: jax.Array, *, free: bool) -> jax.Array:
    """Integrates positions [nq] by displacements [nv]; a free joint's rotation is a unit quaternion
    (w, x, y, z), rotated in the body frame."""
    if not free:
        return qpos + moved
    turn = moved[3:6]
    square = (turn**2).sum()
    angle = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    w1, v1 = qpos[3], qpos[4:7]
    w2 = jnp.where(square > 0, jnp.cos(angle / 2), 1.0)
    v2 = jnp.where(square > 0, jnp.sin(angle / 2) / angle, 0.5) * turn
    w, v = w1 * w2 - v1 @ v2, w1 * v2 + w2 * v1 + jnp.cross(v1, v2)
    quaternion = jnp.concatenate([w[None], v])
    quaternion = quaternion / jnp.sqrt((quaternion**2).sum())
    return jnp.concatenate([qpos[:3] + moved[:3], quaternion, qpos[7:] + moved[6:]])


def _with_forces(model: Any) -> Any:
    """Makes Warp compute contact forces on bodies, which it skips by default."""
    return model.tree_replace({"opt._impl.run_rne_postconstraint": True})


def _forces(mjx: Any, model: Any, data: Any) -> Any:
    """`data` with contact forces on bodies, which Warp has already computed."""
    return mjx.rne_postconstraint(model, data) if model.impl == mjx.Impl.JAX else data
