"""Segments: when events are due, and loops of plain steps that contain no branch."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_tasks import Still, lanes_of, short_setting
from lanes import assert_equal

from rlx2_jax import config
from rlx2_jax.agents.common import Due
from rlx2_jax.kernels import native
from rlx2_jax.training import callback_runner, functional, lane, program, segments
from rlx2_jax.training.device_loop import DeviceLoop
from rlx2_jax.types import TimeStep

PLATFORMS = ("cpu", "cuda", "tpu")
# The algorithm, the form, updates per step.
PROGRAMS = [
    ("td3", "masked", 1),
    ("td3", "compact", 3),
    ("sac", "masked", 1),
    ("sac", "compact", 2),
]
SIMBA: dict[str, Any] = {"architecture": "simba", "hidden": None, "width": 8, "blocks": 2}
REDQ: dict[str, Any] = {"critics": 4, "critic_subset": 2, "updates_per_step": 3}
# Everything that can be in a loop's body: the algorithm and its settings.
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "td3": ("td3", {}),
    "td3-utd": ("td3", {"updates_per_step": 3}),
    "td3-momentum": ("td3", {"grow": ("gradient", "momentum")}),
    "td3-simba": ("td3", SIMBA),
    "sac": ("sac", {}),
    "sac-utd": ("sac", {"updates_per_step": 2}),
    "sac-simba": ("sac", SIMBA),
    "redq": ("sac", REDQ),
    "redq-simba": ("sac", SIMBA | REDQ),
    "droq": ("droq", {}),
    "droq-utd": ("droq", {"updates_per_step": 4, "policy_delay": 4}),
    "droq-long": ("droq", {"updates_per_step": 20, "policy_delay": 20}),
}
INNER_LOOPS = {"droq-long": 1}  # equal updates: so many are not compiled one by one


# ---- when events are due


@pytest.mark.fast
@pytest.mark.parametrize(
    ("updates", "mask", "check", "envs"),
    [(1, 4, 7, 1), (1, 1, 1, 1), (3, 4, 10, 2), (2, 6, 60, 4), (5, 2, 9, 1), (1, 2**31 - 1, 50, 1)],
)
def test_events_are_the_steps_at_which_something_is_due(updates, mask, check, envs):
    cfg = short_setting(
        updates_per_step=updates, mask_interval=mask, buffer_interval=check, num_envs=envs
    )
    warm, end = lane.warmup_time(cfg), lane.total_time(cfg)

    def due(t: int) -> bool:
        counts = range((t - warm - 1) * updates + 1, (t - warm) * updates + 1) if t > warm else ()
        return t % max(check // envs, 1) == 0 or any(count % mask == 0 for count in counts)

    events = [t for t in range(1, end + 1) if due(t)]
    for t in range(end + 1):
        expected = min((e for e in events if e > t), default=None)
        found = segments.next_event(cfg, t)
        assert found > end if expected is None else found == expected
        assert int(segments.next_event(cfg, jnp.int32(t))) == found


@pytest.mark.fast
@pytest.mark.parametrize(
    ("delay", "interval", "updates", "steps", "each"),
    [(2, 2, 1, 2, 1), (1, 1, 1, 1, 1), (2, 2, 3, 2, 3), (2, 3, 1, 6, 1), (2, 2, 20, 1, 2)],
)
def test_a_body_is_one_period_of_delays(delay, interval, updates, steps, each):
    cfg = short_setting(policy_delay=delay, target_interval=interval, updates_per_step=updates)
    assert segments.phases(cfg, False) == ((),)
    found = segments.phases(cfg, True)
    assert [len(dues) for dues in found] == [each] * steps
    for t in range(10, 22):  # warm-up ends at 9
        dues = segments.phase(cfg, t)
        for i in range(updates):
            count, due = (t - 10) * updates + i + 1, dues[i % each]
            assert due == Due(count % delay == 0, count % interval == 0, False, False)


@pytest.mark.fast
@pytest.mark.parametrize("learn", [True, False])
def test_bodies_follow_each_other(learn):
    cfg = short_setting(policy_delay=2, target_interval=3)  # six steps; warm-up ends at 9
    for t in range(9, 40) if learn else range(9):
        start, end = segments.body_start(cfg, t, learn), segments.body_end(cfg, t)
        assert start <= t <= end
        assert end - start == (6 if t > start else 0)
        assert (start - 9) % 6 == 0 or not learn


@pytest.mark.fast
@pytest.mark.parametrize(("interval", "runs"), [(1, [19, 1]), (10, [9, 1, 9, 1]), (20, [19, 1])])
def test_equal_updates_of_a_long_period_are_a_loop(interval, runs):
    cfg = short_setting(policy_delay=20, target_interval=interval, updates_per_step=40)
    (found,) = segments.phases(cfg, True)
    assert [due.times for due in found] == runs
    each = [due._replace(times=1) for due in found for _ in range(due.times)]
    counts = range(1, 21)
    assert each == [Due(n % 20 == 0, n % interval == 0, False, False) for n in counts]


@pytest.mark.fast
@pytest.mark.parametrize(("updates", "delay"), [(40, 20), (9, 9), (8, 2), (3, 2), (1, 1)])
def test_a_time_step_makes_all_its_updates_in_order(monkeypatch, updates, delay):
    """An algorithm that writes down its counts, and whether its actor was due."""
    cfg = short_setting("sac", updates_per_step=updates, policy_delay=delay)

    def update(log, batch, key, step, count, config, hyper, *, due, active):
        made = log[0] + 1
        log = log.at[0].set(made).at[made].set(10 * count + due.actor)
        return log, {"finite": jnp.bool_(True), "count": count}

    monkeypatch.setitem(lane.ALGORITHMS, "sac", lane.ALGORITHMS["sac"]._replace(update=update))
    monkeypatch.setattr(lane.buffer, "sample", lambda *args, **options: None)
    zero = jnp.zeros((), jnp.int32)
    stats = lane.Stats(jnp.bool_(True), jnp.zeros(()), zero, {}, {})
    hyper = config.hyper(cfg, lanes_of("masked")[0])
    dues = segments.phase(cfg, 10)  # warm-up ends at 9

    def learn(log: jax.Array):
        nothing: Any = None
        state = lane.LaneState(zero, log, nothing, nothing, stats)
        return lane._learn(state, nothing, stats, jnp.int32(10), cfg, hyper, dues, True)

    log, _, metrics = jax.jit(learn)(jnp.zeros(50, jnp.int32))
    counts = np.arange(1, updates + 1)
    np.testing.assert_array_equal(log[1 : updates + 1], 10 * counts + (counts % delay == 0))
    assert int(log[0]) == int(metrics["count"]) == updates


@pytest.mark.fast
def test_a_period_too_long_to_unroll_decides_by_count():
    found = segments.phases(short_setting(policy_delay=7, target_interval=5), True)
    assert found == ((Due(None, None, False, False),),)


# ---- no branch in the loop


def branches(text: str) -> dict[str, int]:
    """Loops and conditionals of a lowered program, in any function. A conditional
    on a constant is none: `platform_dependent` becomes one, and the compiler removes it."""
    found, known = {"loops": 0, "conditionals": 0}, set()
    for line in text.splitlines():
        if "func.func" in line:  # names begin anew
            known = set()
        made = re.match(r"\s*(%\w+)(?::\d+)? = \"?stablehlo\.(\w+)\"?(?:\((%\w+)\))?", line)
        if made is None:
            continue
        name, kind, index = made.groups()
        if kind == "constant" or (kind == "case" and index in known):
            known.add(name)
        found["loops"] += kind == "while"
        found["conditionals"] += kind in ("case", "if") and index not in known
    return found


def need_kernels(form: str) -> None:
    if form == "compact" and native.execution() != "native":
        pytest.skip("without the kernel library, products of the compact form are loops on a CPU")


def lowered(f, platform: str, *args) -> str:
    return jax.jit(f).trace(*args).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(("algo", "form", "updates"), PROGRAMS)
def test_the_loop_on_the_device_has_no_branch(algo, form, updates):
    need_kernels(form)
    cfg = short_setting(algo, updates_per_step=updates, execution=form)
    (group,) = DeviceLoop(cfg, lanes_of(form), Still().env())._groups
    carry, t = (group.state, group.env_state), jnp.int32(20)
    for learn in (False, True):
        plain = functools.partial(group._steps._plain, config=group.program.config, learn=learn)
        traced = jax.jit(plain).trace(carry, t, t, group.program.hyper)
        for platform in PLATFORMS:
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert branches(text) == {"loops": 1, "conditionals": 0}


def test_the_event_has_loops():
    """Also a test of the search for branches."""
    (group,) = DeviceLoop(short_setting(), lanes_of("masked"), Still().env())._groups
    carry = (group.state, group.env_state)
    event = functools.partial(group._steps._event, config=group.program.config, learn=True)
    text = lowered(event, "cuda", carry, jnp.int32(20), group.program.hyper)
    assert branches(text)["loops"] > 5


def host_program(algo: str, form: str, **fields):
    """A program, the shapes of its state, and a time step."""
    own = program.Program(short_setting(algo, execution=form, **fields), lanes_of(form))
    state = jax.eval_shape(lambda: own.init(np.zeros((2, 1, 4), np.float32), None))
    ends = jnp.zeros((2, 1), bool)
    return (
        own,
        state,
        TimeStep(jnp.zeros((2, 1, 4)), jnp.ones((2, 1, 4)), jnp.ones((2, 1)), ends, ends),
    )


@pytest.mark.parametrize("form", ["masked", "compact"])
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x == "redq-simba")) for x in BODIES]
)
def test_no_algorithm_has_a_branch_in_its_steps(name, form):
    """In the loop that calls the host, and on the other platforms in a step by itself."""
    need_kernels(form)
    algo, fields = BODIES[name]
    own, state, after = host_program(algo, form, **fields)
    one, handles = jnp.int32(1), jnp.zeros(2, jnp.uint32)
    for learn in (False, True):
        run = functools.partial(callback_runner._run, config=own.config, learn=learn)
        text = lowered(run, "cpu", state, one, one, handles, own.hyper)
        inner = INNER_LOOPS.get(name, 0) if learn else 0
        assert branches(text) == {"loops": 1 + inner, "conditionals": 0}
        assert text.count("@rlx2_host") == len(segments.phases(own.config, learn))
    for dues in set(segments.phases(own.config, True)):
        step = functools.partial(program.plain_lanes, config=own.config, dues=dues)
        traced = jax.jit(step).trace(state, after, jnp.int32(20), own.hyper)
        for platform in ("cuda", "tpu"):
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert branches(text) == {"loops": INNER_LOOPS.get(name, 0), "conditionals": 0}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_make_train_is_loops_of_plain_steps_and_events(platform):
    cfg = short_setting()
    train = functional.make_train(Still().env(), cfg, lanes_of("masked")[0], evaluations=0)
    text = lowered(jax.vmap(train), platform, jax.random.split(jax.random.key(0), 2))
    assert branches(text)["conditionals"] == 0
    innermost = [body for body in bodies(text) if "stablehlo.while" not in body]
    # One of warm-up, one of learning: the others (of an event, of drawing weights) have no step.
    learning = [body for body in innermost if body.count("stablehlo.dot_general") > 20]
    assert len(learning) == 1


def replay_copies(f, *args) -> list[str]:
    """Copies of replay arrays in a compiled program; their ring of 40 rows has 2 more."""
    text = str(jax.jit(f, donate_argnums=0).trace(*args).lower().compile().as_text())
    assert re.search(r"\[2,42,1", text)
    return re.findall(r"= \w+\[2,42,1[\d,]*\]\S* copy\(.*", text)


@pytest.mark.parametrize(("algo", "form", "updates"), PROGRAMS)
def test_no_loop_copies_the_replay_arrays(algo, form, updates):
    """A step may overwrite the buffer in place only once all reads of the step before are done."""
    need_kernels(form)
    cfg, one = short_setting(algo, updates_per_step=updates, execution=form), jnp.int32(20)
    (group,) = DeviceLoop(cfg, lanes_of(form), Still().env())._groups
    plain = functools.partial(group._steps._plain, config=group.program.config, learn=True)
    carry = (group.state, group.env_state)
    assert not replay_copies(plain, carry, one, one, group.program.hyper)
    if native.execution() == "native":
        own, state, _ = host_program(algo, form, updates_per_step=updates)
        run = functools.partial(callback_runner._run, config=own.config, learn=True)
        assert not replay_copies(run, state, one, one, jnp.zeros(2, jnp.uint32), own.hyper)


def bodies(text: str) -> list[str]:
    """The text of each `while` of a lowered program, functions that it calls included."""
    functions = dict(re.findall(r"func\.func \w+ @([\w.]+)(.*?\n  \})", text, re.DOTALL))

    def inlined(part: str, depth: int = 0) -> str:
        called = re.findall(r"call @([\w.]+)", part) if depth < 9 else []
        return part + "".join(inlined(functions[name], depth + 1) for name in called)

    found = []
    for match in re.finditer(r"\n( *)%\S+ = stablehlo\.while", text):
        rest = text[match.end() :]
        found.append(inlined(rest[: rest.index(f"\n{match[1]}}}\n")]))
    return found


# ---- the same numbers


def test_a_loop_may_be_interrupted_anywhere():
    loops = [DeviceLoop(short_setting(), lanes_of("masked"), Still().env()) for _ in range(2)]
    for until in (4, 9, 12, 13, 17, 30, 31, 60):
        loops[0].advance(until, lambda: False)
        assert loops[0].time == until
    loops[1].advance(60, lambda: False)
    assert_equal(loops[0].states(), loops[1].states())
    assert_equal(loops[0].report(), loops[1].report())


@pytest.mark.parametrize(
    ("algo", "updates", "delay"), [("td3", 1, 2), ("sac", 3, 1), ("sac", 18, 9)]
)
def test_segments_equal_a_step_that_branches(algo, updates, delay):
    """Other programs, so the last bits may differ; over so few updates no more."""
    cfg, lanes = (
        short_setting(algo, updates_per_step=updates, policy_delay=delay),
        lanes_of("masked"),
    )
    loop = DeviceLoop(cfg, lanes, Still().env())
    (group,) = loop._groups
    state, env_state = jax.tree.map(jnp.copy, (group.state, group.env_state))
    for t in range(1, 31):
        own = (group.program.hyper, group.program.config, t > 9)
        state, env_state, _ = group._steps.event((state, env_state), np.int32(t), *own)
    loop.advance(30, lambda: False)
    assert int(state.stats.evolutions["critic"][0]) > 4
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    jax.tree.map(close, (group.state, group.env_state), (state, env_state))


@pytest.mark.parametrize("form", ["masked", "compact"])
@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_a_step_that_is_not_active_changes_nothing(algo, form):
    cfg = short_setting(algo, execution=form)
    own = lanes_of(form, 1)[0]
    state, hyper = lane.init(cfg, own, jnp.zeros((1, 4))), config.hyper(cfg, own)
    ends = jnp.ones(1, bool)
    after = TimeStep(jnp.ones((1, 4)), jnp.ones((1, 4)), jnp.ones(1), ~ends, ends)
    dues = (Due(True, True, False, False),)
    step = jax.jit(
        lambda state, t, active: lane.plain_step(
            state, after, t, cfg, hyper, dues=dues, active=active
        )[0]
    )
    for t in range(10, 14):
        state = step(state, jnp.int32(t), jnp.asarray(True))
    after = step(state, jnp.int32(14), jnp.asarray(False))
    assert_equal(after, state)
    moved = step(state, jnp.int32(14), jnp.asarray(True))
    assert not np.array_equal(moved.acting.action, state.acting.action)
