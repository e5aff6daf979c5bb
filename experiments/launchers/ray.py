"""Runs units as tasks of a Ray cluster, each with its resources.

If a worker or node dies, its task is retried on another one and continues from the last checkpoint.
Nodes may join and leave; all need the sweep's directory on a shared disk, and this package.
"""

import dataclasses
import importlib
import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments import units
from experiments.launchers import worker
from experiments.units import Job, Unfinished
from rlx2_jax import files
from rlx2_jax.training.guards import Stopped

_ENVIRONMENT = ("JAX_", "XLA_", "RLX2_", "WANDB_", "TRACKIO_", "MUJOCO_")
_PATIENCE = 120.0  # seconds for units to save after the sweep is stopped


def define_flags(values: flags.FlagValues) -> None:
    """The flags --ray_*."""
    own: dict[str, Any] = {"flag_values": values}
    text = "The cluster: auto, or host:port of its head; default: a new one on this machine."
    flags.DEFINE_string("ray_address", os.environ.get("RAY_ADDRESS"), text, **own)
    flags.DEFINE_float("ray_cpus", 1.0, "CPUs of a unit.", 0.0, **own)
    flags.DEFINE_float("ray_gpus", 0.0, "GPUs of a unit.", 0.0, **own)
    flags.DEFINE_float("ray_memory", None, "Memory of a unit in GB.", 0.0, **own)
    text = "Another resource of a unit, as name=amount; may be repeated."
    flags.DEFINE_multi_string("ray_resource", [], text, **own)
    text = "How often a unit is retried after its worker or its node died."
    flags.DEFINE_integer("ray_retries", 20, text, 0, **own)


def options(values: flags.FlagValues) -> dict[str, Any]:
    """Ray's task options, from flags."""
    memory = values.ray_memory
    return {
        "num_cpus": values.ray_cpus,
        "num_gpus": values.ray_gpus,
        "memory": None if memory is None else int(memory * 1e9),
        "resources": dict(_amount(text) for text in values.ray_resource),
        "max_retries": values.ray_retries,
        "retry_exceptions": [worker.Interrupted],
        "max_calls": 1,  # one process per unit, so that its memory and devices are freed
    }


def _amount(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount)
    except ValueError as error:
        raise ValueError(f"--ray_resource={text}: use name=amount, for instance a100=1") from error


@dataclasses.dataclass(frozen=True)
class Try:
    """One attempt at a job by a worker."""

    job: Job

    def __call__(self) -> str:
        try:
            found = units.attempt(self.job)
        except Stopped as stopped:
            raise worker.Interrupted(str(stopped)) from None
        return "" if found is None else found.why


def launch(jobs: Sequence[Job], values: flags.FlagValues) -> list[Unfinished]:
    """Trains all jobs on the cluster; returns those that did not finish."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            "--launcher=ray needs the package ray: pip install 'rlx2_jax[ray]'"
        ) from error
    own = options(values)
    here: dict[str, Any] = {} if values.ray_address else {"include_dashboard": False}
    ray.init(address=values.ray_address, configure_logging=False, **here)
    try:
        if missing := infeasible(own, ray.nodes()):
            units.say(f"warning: no node has {missing}: units wait until one joins")
        return _run(ray, jobs, own)
    finally:
        ray.shutdown()


def infeasible(own: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """What a unit asks for, if no node of the cluster is large enough; else an empty string.

    Args:
      own: as returned by `options`.
      nodes: as returned by `ray.nodes()`.
    """
    names = {"CPU": own["num_cpus"], "GPU": own["num_gpus"], "memory": own["memory"]}
    wanted = {k: v for k, v in {**names, **own["resources"]}.items() if v}
    there = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in there):
        return ""
    return ", ".join(f"{name}={amount:g}" for name, amount in wanted.items())


def _run(ray: Any, jobs: Sequence[Job], own: dict[str, Any]) -> list[Unfinished]:
    remote = ray.remote(**own)(worker.run)
    environment = {k: v for k, v in os.environ.items() if k.startswith(_ENVIRONMENT)}
    refs: dict[str, Any] = {}
    places: dict[Path, str] = {}
    for number, job in enumerate(jobs, 1):
        job = dataclasses.replace(job, logdir=job.logdir.absolute())
        head = f"[{number}/{len(jobs)}] {job.name}: {len(job.unit.lanes)} lanes"
        # Jobs with the same directory run one after the other.
        names = [*job.needs, *filter(None, [places.get(job.directory)])]
        needs = [refs[name] for name in names if name in refs]
        task = remote.options(name=job.name)
        refs[job.name] = task.remote(pickle.dumps(Try(job)), environment, *needs)
        places.setdefault(job.directory, job.name)
        units.say(f"{head}, submitted")
    try:
        return _collect(ray, refs)
    except KeyboardInterrupt:
        units.say("stopping: running units save a checkpoint")
        for ref in refs.values():
            ray.cancel(ref)  # like Ctrl-C in the worker
        ray.wait([*refs.values()], num_returns=len(refs), timeout=_PATIENCE)
        raise Stopped("stopped by SIGINT: run the same sweep again", signal.SIGINT) from None


def _collect(ray: Any, refs: dict[str, Any]) -> list[Unfinished]:
    """Waits for all tasks and reports the result of each."""
    names = {ref: name for name, ref in refs.items()}
    waiting, found = [*names], []
    while waiting:
        (ref,), waiting = ray.wait(waiting, num_returns=1)
        name = names[ref]
        try:
            why = ray.get(ref)
        except Exception as error:  # the worker died too often, or a dependency failed
            why = files.first_line(error)
        done = len(names) - len(waiting)
        units.say(f"({done}/{len(names)}) {name}: {f'failed: {why}' if why else 'finished'}")
        found += [Unfinished(name, why)] if why else []
    return found
