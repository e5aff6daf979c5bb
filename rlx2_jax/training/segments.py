"""Divides time steps into plain steps and events, and loops over plain steps without branches.

An event is a time step at which masks may evolve or the buffer is checked; event times are known in
advance. All other steps are plain: policy delay and target updates repeat with a fixed period, so
the loop body runs one full period and needs no run-time conditions. On a GPU every conditional
would cost a round trip to the host.

Bodies always start at a multiple of the period after warm-up and skip steps that are not
requested, so the same machine code always executes a given time step. Numbers can still depend on
where a body is cut in two: XLA may recompute the result of one step inside the next, and round it
differently there. A run therefore stops only at the end of a body, and continues bit for bit.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from rlx2_jax.agents.common import Due
from rlx2_jax.config import Config
from rlx2_jax.control_flow import when
from rlx2_jax.training.lane import total_time, warmup_time
from rlx2_jax.types import Array

Carry = TypeVar("Carry")
Dues = tuple[Due, ...]  # one `Due` per update of a time step
# The maximum number of updates in a body, each of which is compiled separately.
UNROLLED = 8
_PLAIN = Due(evolve_critic=False, evolve_actor=False)


def phases(config: Config, learn: bool) -> tuple[Dues, ...]:
    """The plain time steps of one loop body: the updates of each, for `lane.plain_step`.

    The body is one full period of policy delay and target updates if that has at most `UNROLLED`
    updates. If a time step has more updates, it loops over the period, or over runs of equal
    updates in a long period. If neither works, the body branches on the update count.
    """
    if not learn:
        return ((),)
    delay, interval, updates = config.policy_delay, config.target_interval, config.updates_per_step
    period = math.lcm(delay, interval)
    whole = math.lcm(period, updates)

    def dues(first: int, last: int) -> Dues:
        return tuple(
            _PLAIN._replace(actor=count % delay == 0, targets=count % interval == 0)
            for count in range(first, last + 1)
        )

    if whole <= UNROLLED:
        return tuple(dues(i + 1, i + updates) for i in range(0, whole, updates))
    if updates % period == 0 and period <= UNROLLED:
        return (dues(1, period),)
    if updates % period == 0:
        runs = [(due, len(list(run))) for due, run in itertools.groupby(dues(1, period))]
        if len(runs) <= UNROLLED:
            return (tuple(due._replace(times=times) for due, times in runs),)
    return ((_PLAIN,),)


def phase(config: Config, t: int) -> Dues:
    """The updates of a plain time step `t`."""
    warm = warmup_time(config)
    body = phases(config, t > warm)
    return body[(t - warm - 1) % len(body)]


def next_event(config: Config, t: Any) -> Any:
    """The first event after time `t` (an int, or traced), or a time after the end if there is none.

    Masks evolve at multiples of Δ_m updates, or are pruned at one update; the buffer is checked at
    multiples of Δ_b steps. Δ_m and Δ_b are the gcd over lanes.
    """
    traced = isinstance(t, jax.Array)
    least, most = (jnp.minimum, jnp.maximum) if traced else (min, max)
    warm, end, updates = warmup_time(config), total_time(config), config.updates_per_step
    found = end + 1 + 0 * t
    check = max(config.buffer_interval // config.num_envs, 1)
    if check <= end:
        found = least(found, (t // check + 1) * check)
    for count in prune_counts(config):
        prune = warm - (-count // updates)
        found = (
            jnp.where(t < prune, least(found, prune), found)
            if traced
            else (min(found, prune) if t < prune else found)
        )
    if not prune_counts(config) and config.mask_interval <= (end - warm) * updates:
        done = (most(t, warm) - warm) * updates
        due = (done // config.mask_interval + 1) * config.mask_interval
        found = least(found, warm - (-due // updates))
    return found


def prune_counts(config: Config) -> tuple[int, ...]:
    """The update counts at which one-shot methods prune networks."""
    delays = (1, config.policy_delay)
    at = [(config.topology.delayed(d).traits.at, d) for d in delays]
    return tuple(sorted({count * d for count, d in at if count is not None}))


def body_start(config: Config, time: Any, learn: bool) -> Any:
    """The time before the first step of the body that contains the step after `time`."""
    size, first = len(phases(config, learn)), warmup_time(config) if learn else 0
    return first + (time - first) // size * size


def body_end(config: Config, time: int) -> int:
    """The first end of a body at `time` or later; in warm-up, every step is one."""
    warm = warmup_time(config)
    size = len(phases(config, time > warm))
    return time + (warm - time) % size


def plain_steps(
    carry: Carry,
    time: Array,
    until: Array,
    config: Config,
    learn: bool,
    step: Callable[[Carry, Array, Dues, Array | bool], Carry],
    keep_going: Callable[[Carry], Array | bool] = lambda carry: True,
) -> Carry:
    """Plain time steps from `time + 1` to `until`, in a loop without branches.

    Args:
      learn: static; False in warm-up, which must not end before `until`.
      step: maps `(carry, t, dues, active)` to the next carry; `dues` (static) are the updates. If
        `active` is False, nothing may change.
      keep_going: False ends the loop after the current body.
    """
    bodies = phases(config, learn)
    size = len(bodies)
    begin = body_start(config, time, learn)

    def body(args: tuple[Array, Carry]) -> tuple[Array, Carry]:
        t, carry = args
        for dues in bodies:
            t = t + 1
            active = True if size == 1 else (t > time) & (t <= until)
            carry = step(carry, t, dues, active)
        return t, carry

    def more(args: tuple[Array, Carry]) -> Array:
        return (time < until) & (args[0] < until) & keep_going(args[1])

    return jax.lax.while_loop(more, body, (jnp.asarray(begin, jnp.int32), carry))[1]


def all_steps(
    carry: Carry,
    time: Array | int,
    until: Array | int,
    config: Config,
    learn: bool,
    plain: Callable[[Carry, Array, Dues, Array | bool], Carry],
    event: Callable[[Carry, Array], Carry],
) -> Carry:
    """Time steps from `time + 1` to `until`, including events, in one traced program: a loop over
    segments, each a loop of plain steps (as in `plain_steps`) followed by an event."""
    last = jnp.asarray(until, jnp.int32)

    def segment(args: tuple[Array, Carry]) -> tuple[Array, Carry]:
        t, carry = args
        stop = jnp.minimum(next_event(config, t) - 1, last)
        carry = plain_steps(carry, t, stop, config, learn, plain)
        carry = when(stop < last, lambda carry: event(carry, stop + 1), carry)
        return jnp.minimum(stop + 1, last), carry

    begin = (jnp.asarray(time, jnp.int32), carry)
    return jax.lax.while_loop(lambda args: args[0] < last, segment, begin)[1]


def select(active: Array | bool, new: Carry, old: Carry) -> Carry:
    """`new` if `active`, else `old`; for small arrays."""
    if active is True:
        return new
    return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, old)
