"""A functional circular replay buffer that can drop its oldest transitions (Algorithm 3).

There is one row per time step, with the observation, action and reward of each of `envs`
environments. The next observation is in the next row, so every observation is stored once. Final
observations of truncated steps go to a separate small ring. `length` and `written` track the
logical start and the write position, so trimming is one subtraction.

All functions are pure. Under `jit` with the buffer donated, or in a `scan` carry, `add` writes in
place, and the cost of a step does not depend on the capacity.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.types import Array, Batch, Transition

DISTANCES = ("mse", "l2")
BEHAVIOURS = ("mean", "action")
# A row's flag: 0 continues, 1 terminated, 2 + 2 slot truncated, 3 + 2 slot both.
_TERMINATED, _TRUNCATED = 1, 2
_MAX_FINALS = (2**16 - _TRUNCATED) // 2


class Buffer(NamedTuple):
    """A ring of `rows + 1` rows (the spare one holds the newest next observation), and one scratch
    row, always 0, for invalid steps.

    Attributes:
      data: observation, action and reward: f32[rows + 2, envs, obs + act + 1].
      flags: how each step ended: u16[rows + 2, envs].
      mean: noise-free actions for the policy distance, f16[rows + 2, envs, act], or None.
      finals: final observations of truncated steps: f32[slots, obs].
      owners: the step of each final observation, counted as `written`: i32[slots].
      finals_written: final observations ever written: i32[].
      written: steps ever written; the next one goes to row `written % (rows + 1)`: i32[].
      length: valid steps, of which the newest is `written - 1`: i32[].
    """

    data: Array
    flags: Array
    mean: Array | None
    finals: Array
    owners: Array
    finals_written: Array
    written: Array
    length: Array


def init(capacity: int, example: Transition, *, horizon: int | None = None, n: int = 1) -> Buffer:
    """An empty buffer for `capacity` transitions.

    Args:
      capacity: transitions, summed over environments.
      example: one transition, or `[envs, ...]`; only its shapes are used. If `mean` is None,
        noise-free actions are not stored, and the policy distance uses the actions taken.
      horizon: the environments' time limit, if known, which bounds the number of truncated steps.
        By default there is room for one in 64, but at least 1,024. If there are more, the oldest
        transitions are dropped earlier; final observations are always correct.
      n: the longest window that will be sampled; the capacity must be at least as large.
    """
    obs, action = _checked_example(example)
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer):
        raise ValueError(f"capacity={capacity!r}: give an integer number of transitions")
    envs = obs.shape[0]
    rows = capacity // envs
    if rows < max(n, 1):
        raise ValueError(
            f"capacity {capacity} gives {rows} steps of {envs} environment(s), fewer than the "
            f"window n = {n}: use a capacity of at least {max(n, 1) * envs}"
        )
    bound = max(1024, capacity // 64)
    if horizon is not None:
        bound = (math.ceil(rows / max(horizon, 1)) + 1) * envs
    slots = max(envs, min(bound, capacity, _MAX_FINALS))
    keep_mean = example.mean is not None
    return Buffer(
        data=jnp.zeros((rows + 2, envs, obs.shape[1] + action.shape[1] + 1), jnp.float32),
        flags=jnp.zeros((rows + 2, envs), jnp.uint16),
        mean=jnp.zeros((rows + 2, *action.shape), jnp.float16) if keep_mean else None,
        finals=jnp.zeros((slots, obs.shape[1]), jnp.float32),
        owners=jnp.full(slots, -1, jnp.int32),
        finals_written=jnp.zeros((), jnp.int32),  # no shared leaves, so that all can be donated
        written=jnp.zeros((), jnp.int32),
        length=jnp.zeros((), jnp.int32),
    )


def add(
    buffer: Buffer,
    transition: Transition,
    *,
    limit: Array | int | None = None,
    valid: Array | bool = True,
) -> Buffer:
    """Adds one time step: `[envs, ...]`, or without that axis for one environment.

    Args:
      limit: B_max of this lane in transitions; default and maximum: the capacity.
      valid: if False, adds nothing (an environment's reset step).
    """
    envs, obs_dim = buffer.data.shape[1], buffer.finals.shape[1]
    t = jax.tree.map(jnp.asarray, transition)
    t = jax.tree.map(lambda x: x[None], t) if t.obs.ndim == 1 else t
    _check_shapes(t, envs, obs_dim, buffer.data.shape[2] - obs_dim - 1)
    ring, slots, valid = _ring(buffer), buffer.finals.shape[0], jnp.asarray(valid)
    if valid.ndim:
        raise ValueError(f"valid has shape {valid.shape}: give one value for all environments")
    cut = t.truncated & valid
    slot = (buffer.finals_written + jnp.cumsum(cut) - 1) % slots
    flags = jnp.where(cut, _TRUNCATED + 2 * slot, 0) + jnp.where(t.terminated, _TERMINATED, 0)

    row = jnp.where(valid, buffer.written % ring, ring)  # `ring` itself is the scratch row
    spare = jnp.where(valid, (buffer.written + 1) % ring, ring)
    stored = lambda x: jnp.where(valid, x, jnp.zeros_like(x))  # noqa: E731  # scratch stays 0
    values = jnp.concatenate([t.obs, t.action, t.reward[:, None]], axis=1)
    data = _write(_write(buffer.data, stored(values), row), stored(t.next_obs), spare)
    mean = buffer.mean
    if mean is not None:
        mean = _write(mean, stored(t.action if t.mean is None else t.mean), row)

    # Overwriting a final observation invalidates its step and all older ones.
    age = buffer.written - 1 - buffer.owners[slot]
    length = jnp.minimum(buffer.length, jnp.min(jnp.where(cut, age, buffer.length)))
    most = capacity(buffer) if limit is None else jnp.minimum(limit, capacity(buffer))
    length = jnp.minimum(length + 1, most // envs)
    target = jnp.where(cut, slot, slots)  # out of range: not written
    return Buffer(
        data=data,
        flags=_write(buffer.flags, stored(flags), row),
        mean=mean,
        finals=buffer.finals.at[target].set(t.next_obs.astype(jnp.float32), mode="drop"),
        owners=buffer.owners.at[target].set(buffer.written, mode="drop"),
        finals_written=buffer.finals_written + cut.sum(dtype=jnp.int32),
        written=buffer.written + valid,
        length=jnp.where(valid, length, buffer.length).astype(jnp.int32),
    )


def cut(buffer: Buffer) -> Buffer:
    """Truncates every unfinished episode at the newest step, after environments were reset."""
    newest = (buffer.written - 1) % _ring(buffer)
    spare = buffer.written % _ring(buffer)
    flags, slots, obs_dim = buffer.flags[newest], buffer.finals.shape[0], buffer.finals.shape[1]
    open_end = (flags == 0) & (buffer.length > 0)
    slot = (buffer.finals_written + jnp.cumsum(open_end) - 1) % slots
    age = buffer.written - 1 - buffer.owners[slot]
    target = jnp.where(open_end, slot, slots)
    final = buffer.data[spare, :, :obs_dim]
    new_flags = jnp.where(open_end, _TRUNCATED + 2 * slot, flags.astype(slot.dtype))
    return buffer._replace(
        flags=buffer.flags.at[newest].set(new_flags.astype(jnp.uint16)),
        finals=buffer.finals.at[target].set(final, mode="drop"),
        owners=buffer.owners.at[target].set(buffer.written - 1, mode="drop"),
        finals_written=buffer.finals_written + open_end.sum(dtype=jnp.int32),
        length=jnp.minimum(buffer.length, jnp.min(jnp.where(open_end, age, buffer.length))),
    )


def sample(
    buffer: Buffer, key: Array, batch_size: int, n: int, *, reach: Array | int | None = None
) -> Batch:
    """`batch_size` windows of n consecutive steps of one environment, drawn with replacement and
    uniformly over all starts with n steps before the write position.

    Args:
      n: window length (static).
      reach: number of steps of each window that will be used, if fewer than n (traced). Only these
        must lie before the write position; later ones are arbitrary.

    The buffer must hold at least `reach` steps.
    """
    ring, envs, obs_dim = _ring(buffer), buffer.data.shape[1], buffer.finals.shape[1]
    key_row, key_env = jax.random.split(key)
    starts = jnp.maximum(buffer.length - (n if reach is None else reach) + 1, 1)
    start = jax.random.randint(key_row, (batch_size,), 0, starts)
    env = jnp.zeros((batch_size, 1), jnp.int32)
    if envs > 1:
        env = jax.random.randint(key_env, (batch_size, 1), 0, envs)
    rows = (_first(buffer) + start[:, None] + jnp.arange(n + 1)[None]) % ring
    data = buffer.data[rows, env]
    flags = buffer.flags[rows[:, :n], env].astype(jnp.int32)
    truncated = flags >= _TRUNCATED
    slot = jnp.clip((flags - _TRUNCATED) // 2, 0, buffer.finals.shape[0] - 1)
    return Batch(
        obs=data[:, 0, :obs_dim],
        action=data[:, 0, obs_dim:-1],
        reward=data[:, :n, -1],
        next_obs=jnp.where(truncated[..., None], buffer.finals[slot], data[:, 1:, :obs_dim]),
        terminated=flags % 2 == _TERMINATED,
        truncated=truncated,
    )


def policy_distance(
    buffer: Buffer,
    policy: Callable[[Array], Array],
    k: int,
    *,
    distance: str = "mse",
    behaviour: str = "mean",
) -> Array:
    """D(B, φ) of the oldest K transitions (equation 6): f32[].

    Args:
      policy: the current noise-free policy, `[..., obs] -> [..., act]` in [-1, 1].
      k: K, in transitions; if the buffer holds fewer, uses all of them.
      distance: `mse`, the mean of (π(s) - a)²/2 over transitions and dimensions (the released
        code's, for which D_0 was tuned), or `l2`, the mean of ‖π(s) - a‖ (the paper's).
      behaviour: compare with the noise-free `mean` action, or with the `action` taken.
    """
    count = -(-k // buffer.data.shape[1])
    gaps = _gaps(buffer, policy, 0, count, distance, behaviour)
    return _mean_of_oldest(gaps, buffer.length, count)


def trim(
    buffer: Buffer,
    distance: Array,
    threshold: Array | float,
    *,
    ratio: Array | float = 0.1,
    b_min: Array | int = 0,
    b_max: Array | int | None = None,
    hard: bool = True,
    full: bool = True,
) -> Buffer:
    """Algorithm 3, lines 11-18: drops the oldest fraction ρ if D(B, φ) > D_0.

    Args:
      distance, threshold: D(B, φ) and D_0.
      ratio: ρ, the fraction of transitions to drop; 0 for a fixed-size buffer.
      b_min, b_max: bounds in transitions; nothing is dropped at or below `b_min`.
      hard: never go below `b_min`; otherwise one cut may (the released code).
      full: also trim a buffer that has reached `b_max` (unlike the text of Algorithm 3).
    """
    drop = jnp.floor(buffer.length.astype(jnp.float32) * ratio * (1.0 + 2.0**-22))
    wanted = jnp.where(distance > threshold, drop.astype(jnp.int32), 0)
    return _forget(buffer, wanted, b_min, b_max, hard, full)


def trim_until(
    buffer: Buffer,
    policy: Callable[[Array], Array],
    threshold: Array | float,
    k: int,
    *,
    distance: str = "mse",
    behaviour: str = "mean",
    b_min: Array | int = 0,
    b_max: Array | int | None = None,
    full: bool = True,
) -> Buffer:
    """Section 4.2.2: pops the oldest step repeatedly until D(B, φ) <= D_0 or `b_min` is reached.

    The distances of 2K transitions give the mean over the oldest K after each of the next K pops,
    so each dropped transition costs two policy evaluations.
    """
    envs = buffer.data.shape[1]
    count = -(-k // envs)
    most = jnp.maximum(buffer.length - -(-jnp.asarray(b_min, jnp.int32) // envs), 0)

    def search(state: tuple[Array, Array]) -> tuple[Array, Array]:
        popped, _ = state
        gaps = _gaps(buffer, policy, popped, 2 * count, distance, behaviour)
        left = buffer.length - popped - jnp.arange(count)
        inside = jnp.arange(2 * count) < buffer.length - popped
        sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.where(inside, gaps, 0.0))])
        means = (sums[count : 2 * count] - sums[:count]) / jnp.clip(left, 1, count)
        close = means <= threshold
        further = jnp.where(close.any(), jnp.argmax(close), count)
        return popped + further.astype(popped.dtype), close.any()

    popped, _ = jax.lax.while_loop(
        lambda state: ~state[1] & (state[0] < most), search, (jnp.zeros_like(most), most <= 0)
    )
    return _forget(buffer, jnp.minimum(popped, most), b_min, b_max, True, full)


def size(buffer: Buffer) -> Array:
    """|B|, the number of transitions held: i32[]."""
    return buffer.length * buffer.data.shape[1]


def capacity(buffer: Buffer) -> int:
    """The maximum number of transitions."""
    return (buffer.data.shape[0] - 2) * buffer.data.shape[1]


def nbytes(buffer: Buffer) -> int:
    """Memory of all arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(buffer))


def _forget(
    buffer: Buffer,
    wanted: Array,
    b_min: Array | int,
    b_max: Array | int | None,
    hard: bool,
    full: bool,
) -> Buffer:
    envs, held = buffer.data.shape[1], size(buffer)
    allowed = held > b_min
    if not full:
        allowed &= held < (capacity(buffer) if b_max is None else b_max)
    if hard:
        wanted = jnp.minimum(wanted, buffer.length - -(-jnp.asarray(b_min) // envs))
    drop = jnp.where(allowed, jnp.clip(wanted, 0, buffer.length), 0)
    return buffer._replace(length=buffer.length - drop.astype(jnp.int32))


def _gaps(
    buffer: Buffer,
    policy: Callable[[Array], Array],
    skip: Array | int,
    count: int,
    distance: str,
    behaviour: str,
) -> Array:
    """The policy distance of `count` steps after the `skip` oldest, averaged over environments:
    f32[count]. Steps after the newest give arbitrary values."""
    if distance not in DISTANCES:
        raise ValueError(f"unknown distance {distance!r}: use one of {DISTANCES}")
    if behaviour not in BEHAVIOURS:
        raise ValueError(f"unknown behaviour {behaviour!r}: use one of {BEHAVIOURS}")
    obs_dim = buffer.finals.shape[1]
    rows = (_first(buffer) + skip + jnp.arange(count)) % _ring(buffer)
    data = buffer.data[rows]
    taken = data[..., obs_dim:-1]
    if behaviour == "mean" and buffer.mean is not None:
        taken = buffer.mean[rows].astype(jnp.float32)
    gap = policy(data[..., :obs_dim]) - taken
    if distance == "mse":
        return 0.5 * jnp.mean(gap**2, axis=(1, 2))
    return jnp.mean(jnp.linalg.norm(gap, axis=-1), axis=1)


def _mean_of_oldest(gaps: Array, length: Array, count: int) -> Array:
    inside = jnp.arange(count) < length
    return jnp.sum(jnp.where(inside, gaps, 0.0)) / jnp.clip(length, 1, count)


def _check_shapes(t: Transition, envs: int, obs_dim: int, action_dim: int) -> None:
    """Raises on wrong shapes, since a narrower row would be written silently."""
    wanted = {
        "obs": (envs, obs_dim),
        "action": (envs, action_dim),
        "reward": (envs,),
        "next_obs": (envs, obs_dim),
        "terminated": (envs,),
        "truncated": (envs,),
        "mean": (envs, action_dim),
    }
    for name, field in t._asdict().items():
        if field is not None and field.shape != wanted[name]:
            raise ValueError(f"{name} has shape {field.shape}, this buffer takes {wanted[name]}")


def _checked_example(example: Transition) -> tuple[Array, Array]:
    """Validates an example; returns its observation and action as [envs, ...]."""
    if not isinstance(example, Transition):
        raise ValueError(f"the example is a {type(example).__name__}: give a Transition")
    for name, field in example._asdict().items():
        if name == "mean" and field is None:
            continue
        dtype = field.dtype if hasattr(field, "dtype") else np.asarray(field).dtype
        if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
            raise ValueError(f"{name} has dtype {dtype}: give an array of real numbers")
    t = jax.tree.map(jnp.asarray, example)
    if (
        t.action.ndim != t.obs.ndim
        or t.obs.ndim not in (1, 2)
        or not t.obs.size
        or not t.action.size
    ):
        raise ValueError(
            f"obs has shape {t.obs.shape}, action has shape {t.action.shape}: give [obs], [act] "
            "with at least one element, or [envs, obs] and [envs, act]; flatten images"
        )
    t = jax.tree.map(lambda x: x[None], t) if t.obs.ndim == 1 else t
    envs, obs_dim = t.obs.shape
    _check_shapes(t, envs, obs_dim, t.action.shape[-1])
    for name in ("terminated", "truncated"):
        if (kind := getattr(t, name).dtype) != jnp.bool_:
            raise ValueError(f"{name} is {kind}: give bool")
    return t.obs, t.action


def _ring(buffer: Buffer) -> int:
    return buffer.data.shape[0] - 1


def _first(buffer: Buffer) -> Array:
    return buffer.written - buffer.length


def _write(array: Array, values: Array, row: Array) -> Array:
    """`array[row, :, :width] = values`, in place if the array may be overwritten."""
    start = (row,) + (jnp.zeros_like(row),) * (array.ndim - 1)
    return jax.lax.dynamic_update_slice(array, values[None].astype(array.dtype), start)
