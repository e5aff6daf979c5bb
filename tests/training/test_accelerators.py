"""Every jitted program of a training run lowers for GPUs and TPUs, with its real arguments."""

import importlib
import pkgutil
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from device_tasks import Still, lanes_of, short_setting
from small_runs import small_run

import rlx2_jax
from rlx2_jax.envs import make_host
from rlx2_jax.training import callback_runner, devices, program, replay_rows
from rlx2_jax.training.device_loop import DeviceLoop
from rlx2_jax.training.execute import execute
from rlx2_jax.training.host_loop import HostLoop
from rlx2_jax.types import Transition

PLATFORMS = ("cuda", "tpu")
# Calls environments on the host, which only CPU programs can; accelerators dispatch every step.
CPU_ONLY = {id(callback_runner._compiled_run)}


def shared_programs() -> dict[int, str]:
    """The `SharedJit` programs in modules of the package, by identity."""
    found = {}
    for info in pkgutil.walk_packages(rlx2_jax.__path__, "rlx2_jax."):
        if not info.name.startswith("rlx2_jax.training"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if isinstance(value, devices.SharedJit):
                found.setdefault(id(value), f"{info.name}.{name}")
    return found


@pytest.fixture
def lowered(monkeypatch) -> dict[int, int]:
    """Lowers every `SharedJit` when it is first called with new static arguments; counts them."""
    found, done = {}, set()
    call = devices.SharedJit.__call__

    def record(self: devices.SharedJit, *args: Any) -> Any:
        key = (id(self), tuple(args[i] for i in self._static))
        if key not in done and id(self) not in CPU_ONLY:
            done.add(key)
            traced = self.jitted.trace(*args)
            for platform in PLATFORMS:
                assert "func.func" in traced.lower(lowering_platforms=(platform,)).as_text()
            found[id(self)] = found.get(id(self), 0) + 1
        return call(self, *args)

    monkeypatch.setattr(devices.SharedJit, "__call__", record)
    return found


def test_every_program_of_a_run_lowers(lowered, tmp_path, monkeypatch):
    """A host run whose steps are dispatched one by one, episodes that restart, and a device loop
    with demonstrations."""
    monkeypatch.setattr("rlx2_jax.training.host_callback.available", lambda: False)
    run = small_run()
    execute(run, tmp_path / "host", say=lambda line: None)
    loop = HostLoop(run.config, list(run.lanes), lambda count: make_host(run.env, count))
    loop.restore(loop.snapshots(), exact=False)
    loop.close()
    data = Transition(*(jnp.zeros((5, 1, k)) for k in (4, 2)), *[jnp.zeros((5, 1))] * 4)
    no = jnp.zeros((5, 1), bool)
    data = data._replace(next_obs=data.obs, terminated=no, truncated=no)
    loop = DeviceLoop(short_setting(), lanes_of("masked"), Still().env(), data=[data] * 2)
    loop.advance(12, lambda: False)
    for evaluator in loop._make_evaluators():
        evaluator(loop._groups[0].state)
    steps = loop._groups[0]._steps
    own = {id(steps.begin): "begin", id(steps.plain): "plain", id(steps.event): "event"}
    expected = (shared_programs() | own).keys() - CPU_ONLY
    names = shared_programs() | own
    assert len(expected) >= 10
    assert {names[i] for i in expected} == {names[i] for i in lowered if i in names}
    assert lowered.keys() - names.keys()  # episodes on the device


def test_programs_that_are_not_shared_lower():
    """Initial weights, and rows of a checkpoint put back into replay."""
    cfg, (lane,) = short_setting(), lanes_of("masked", 1)
    rows = jnp.zeros((2, 42, 1, 3)), jnp.ones((2, 5, 1, 3)), np.int32(3)
    for traced in (
        program._agent.trace(cfg, lane, jnp.int32(0)),
        replay_rows._put.trace(*rows),
    ):
        for platform in PLATFORMS:
            assert "func.func" in traced.lower(lowering_platforms=(platform,)).as_text()
