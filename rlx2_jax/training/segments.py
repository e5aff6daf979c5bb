"""Which time steps are plain and which are events, and loops of plain steps without branches.

An event is a time step at which masks may evolve or the buffer is checked; when these happen is
known in advance. All other steps are plain: policy delay and target updates repeat with a fixed
period, so the loop's body makes one whole period of time steps and decides nothing at run time.
On a GPU every conditional would be a round trip to the host.

A body begins at a fixed multiple of the period after warm-up, whatever time the loop begins at,
and leaves out the steps that are not asked for. So a time step is always made by the same machine
code, and a run that was stopped anywhere continues bit for bit.
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
Dues = tuple[Due, ...]  # of the updates of one time step
# A body makes at most so many updates: each is compiled separately.
UNROLLED = 8
_PLAIN = Due(evolve_critic=False, evolve_actor=False)


def phases(config: Config, learn: bool) -> tuple[Dues, ...]:
    """The plain time steps of one loop body: the updates of each, for `lane.plain_step`.

    One whole period of policy delay and target updates, if that is at most `UNROLLED` updates.
    With more updates in one time step than that, a time step repeats the updates of a period in a
    loop, and so it does with equal updates that follow one another in a long period. Where neither
    divides the time step, the body branches on the count.
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
    found = phases(config, t > warm)
    return found[(t - warm - 1) % len(found)]


def next_event(config: Config, t: Any) -> Any:
    """The first event after time `t` (an int, or traced); a time beyond the end if there is none.

    Evolution is due at multiples of Δ_m updates, or pruning at one update; the buffer's check at
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
    """The updates at which networks are pruned, by methods that do it once."""
    delays = (1, config.policy_delay)
    at = [(config.topology.delayed(d).traits.at, d) for d in delays]
    return tuple(sorted({count * d for count, d in at if count is not None}))


def body_start(config: Config, time: Any, learn: bool) -> Any:
    """The time before the first step of the body that makes the step after `time`."""
    size, first = len(phases(config, learn)), warmup_time(config) if learn else 0
    return first + (time - first) // size * size


def plain_steps(
    carry: Carry,
    time: Array,
    until: Array,
    config: Config,
    learn: bool,
    step: Callable[[Carry, Array, Dues, Array | bool], Carry],
    going: Callable[[Carry], Array | bool] = lambda carry: True,
) -> Carry:
    """Time steps after `time` up to `until`, none of them an event, in a loop without branches.

    Args:
      learn: static; False in warm-up, which must not end before `until`.
      step: `(carry, t, dues, active)` to the next carry; `dues` (static) are the updates, and
        where `active` is False nothing may change.
      going: False ends the loop after the current body.
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
        return (time < until) & (args[0] < until) & going(args[1])

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
    """Time steps after `time` up to `until`, events included, in one traced program: a loop over
    segments, each a loop of plain steps (as in `plain_steps`) and the event after them."""
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
    """`new` where `active`, else `old`; for small arrays."""
    if active is True:
        return new
    return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, old)
