"""Lanes on several devices: their division, equality of results, number of compilations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from several_devices import communication, in_a_process
from small_runs import small_run

from rlx2_jax import config
from rlx2_jax.training import devices, plan
from rlx2_jax.training.run import Run


def sizes(parts: list[plan.Part]) -> list[int]:
    return [len(block.lanes) for block in parts]


CONFIGS = [config.make("td3", 3, 1, n_max=n) for n in (1, 2, 3, 4)]


def parts_of(*counts: int) -> list[plan.Part]:
    """Programs with these numbers of lanes."""
    ends = np.cumsum([0, *counts]).tolist()
    return [plan.Part(CONFIGS[i], tuple(range(ends[i], ends[i + 1]))) for i in range(len(counts))]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("lanes", "shards", "turns", "expected"),
    [
        (8, 1, True, [4, 4]),  # as on one device
        (7, 1, True, [7]),
        (8, 1, False, [8]),
        (8, 2, True, [2, 2, 2, 2]),  # halves on each device
        (6, 2, True, [3, 3]),
        (8, 8, True, [1] * 8),
        (5, 4, True, [2, 1, 1, 1]),
        (7, 3, False, [3, 2, 2]),
        (3, 8, False, [1, 1, 1]),
    ],
)
def test_blocks(lanes, shards, turns, expected):
    found = plan.blocks(parts_of(lanes), shards, turns=turns)
    assert sizes(found) == expected
    assert [i for block in found for i in block.lanes] == list(range(lanes))


@pytest.mark.fast
def test_several_programs_are_not_halved():
    assert sizes(plan.blocks(parts_of(4, 2), 1, turns=True)) == [4, 2]
    assert sizes(plan.blocks(parts_of(4, 2), 4, turns=True)) == [1] * 6


@pytest.mark.fast
def test_blocks_go_to_devices_in_turn():
    blocks, (a, b, c) = parts_of(2, 2, 2, 2), jax.devices() * 3
    assert plan.place(blocks, [a, b, c]) == [a, b, c, a]
    assert plan.place(blocks, [a]) == plan.place(blocks, None) == [None] * 4


@pytest.mark.fast
def test_arrays_that_nobody_placed_stay_where_they_are():
    tree = {"x": jnp.arange(4)}
    assert devices.put(tree, None) is tree and devices.device_of(tree) is None
    (device,) = jax.local_devices()
    assert devices.device_of(devices.put(tree, device)) == device
    assert devices.device_of({"x": np.ones(2)}) is None


@pytest.mark.fast
def test_more_devices_than_there_are():
    assert devices.choose(0) == tuple(jax.local_devices())
    with pytest.raises(ValueError, match="--devices=99: this process has "):
        devices.choose(99)


@pytest.mark.fast
def test_how_lanes_are_divided_is_part_of_a_run_only_where_they_are():
    run = small_run()
    old = {k: v for k, v in run.to_json().items() if k not in ("shards", "parts", "first")}
    assert Run.from_json(old) == run and Run.from_json(old).digest == run.digest
    assert small_run(shards=2).digest != run.digest


def test_a_run_continues_on_another_number_of_devices():
    found = in_a_process("two", 2)
    assert found == {"rows": 20, "shards": 2, "same": [True]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "count", "rows", "same"),
    [("eight", 8, 40, 2), ("compact", 8, 40, 2), ("on_the_device", 4, 25, 2)],
)
def test_the_same_numbers_on_any_devices(case, count, rows, same):
    found = in_a_process(case, count)
    assert found == {"rows": rows, "shards": count, "same": [True] * same}


def test_a_program_is_compiled_once_for_all_devices_and_does_not_communicate():
    """In warm-up and after it; `jit` itself compiles nothing."""
    found = in_a_process("once", 4)
    plain, event = found["compiled"]
    assert plain == 2 and event in (1, 2)  # an event need not fall into warm-up
    assert found["loaded"] == [4 * plain, 4 * event]
    assert found["jit"] == [0, 0] and found["devices"] == 4
    assert found["programs"] == 2 * 3 + plain + event
    assert found["communicate"] == [] and found["partitions"] == [1]


@pytest.mark.fast
def test_the_search_for_collectives():
    """In a sum over devices, lowered and compiled."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    total = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=spec, out_specs=spec)
    traced = jax.jit(total).trace(jnp.arange(3.0))
    for platform in ("cpu", "cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert communication(text) == ["all_reduce"]
    hlo = "  %y = f32[3]{0} all-reduce-start(%x), replica_groups={{0,1}}"
    assert communication(hlo) == ["all_reduce"]
    assert communication("%x = f32[3]{0} add(%all_reduced, %received)") == []


@pytest.mark.fast
def test_a_program_runs_where_its_argument_is():
    double = devices.SharedJit(lambda x: 2 * x)
    (device,) = jax.local_devices()
    found = double(devices.put(jnp.arange(3.0), device))
    np.testing.assert_array_equal(found, [0.0, 2.0, 4.0])
    assert devices.device_of(found) == device and len(double._compiled) == 1
