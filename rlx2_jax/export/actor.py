"""The actor of one lane, read from a run directory that may still be in use."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from rlx2_jax import lane as lanes_
from rlx2_jax.compact import layout
from rlx2_jax.runtime.checkpoint import _without_rows
from rlx2_jax.runtime.run import Run, RunError
from rlx2_jax.types import Masks, Network, Params


class Actor(NamedTuple):
    """A masked actor: `{"Dense_l": {"kernel": [in, out], "bias": [out]}}`, host arrays."""

    params: Params
    masks: Masks
    step: int  # environment steps of its lane so far


def read_run(directory: Path) -> Run:
    """The run that a directory holds."""
    path = Path(directory) / "config.json"
    if not path.exists():
        raise RunError(f"there is no run in {directory}: {path.name} is missing")
    try:
        return Run.from_json(json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} does not describe a run: {error}") from error


def actor_of(run: Run, directory: Path, lane: int) -> Actor:
    """The actor of a lane in the newest checkpoint that can be read; nothing is changed there."""
    if not 0 <= lane < len(run.lanes):
        raise RunError(f"lane {lane}: the run has lanes 0 to {len(run.lanes) - 1}")
    first = 0
    folder = Path(directory) / "checkpoints"
    for chunk in sorted(folder.glob("chunk-*"), key=lambda p: int(p.name.split("-")[1])):
        for time, state in _states(run, chunk / "states", first):
            count = len(state.seed)
            if lane < first + count:
                i = lane - first
                if int(state.seed[i]) != run.lanes[lane].seed:
                    raise RunError(
                        f"{chunk} holds seed {state.seed[i]} where lane {lane} should be"
                    )
                network = jax.tree.map(lambda x, i=i: np.asarray(x[i]), state.agent.actor)
                return Actor(*masked(network), time * run.config.num_envs)
            first += count
    saved = f"lanes 0 to {first - 1} are saved" if first else "no checkpoint is there"
    raise RunError(
        f"lane {lane} has no checkpoint in {directory} ({saved}): let the run reach one, see "
        f"checkpoint_interval={run.checkpoint_interval}"
    )


def masked(network: Network) -> tuple[Params, Masks]:
    """Parameters and masks of a network of either form, host arrays."""
    index, flat = network.masks, network.params
    if not isinstance(index, layout.Index):
        return flat, index
    params, masks, spec = {}, {}, index.spec
    parts = zip(spec.names, spec.shapes, spec.slices("values"), spec.slices("biases"))
    for i, (name, shape, values, biases) in enumerate(parts):
        rowptr, cols = (np.asarray(index.layer(field, i)) for field in ("rowptr", "cols"))
        rows = np.repeat(np.arange(shape[1]), np.diff(rowptr))
        links = cols[: len(rows)], rows
        kernel, mask = np.zeros(shape, flat.dtype), np.zeros(shape, bool)
        kernel[links], mask[links] = flat[values][: len(rows)], True
        params[name] = {"kernel": kernel, "bias": np.asarray(flat[biases])}
        masks[name] = {"kernel": mask, "bias": np.ones(shape[1], bool)}
    return params, masks


def _states(run: Run, states: Path, first: int) -> list[tuple[int, Any]]:
    """(time, state without replay rows) of the groups of lanes in a chunk's newest checkpoint."""
    committed = [p for p in states.glob("*") if p.name.isdigit()]  # atomically, by renaming
    steps = sorted((int(p.name) for p in committed), reverse=True)
    problem = ""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        for step in steps:
            parts = ocp.args.Composite(meta=ocp.args.JsonRestore(), groups=ocp.args.PyTreeRestore())
            try:
                saved: Any = reader.restore(states.resolve() / str(step), args=parts)
                return _split(run, saved.groups, saved.meta["times"], first)
            except RunError:
                raise
            except Exception as error:  # Orbax raises many kinds on damaged files
                problem = problem or str(error).strip().split("\n")[0]
    if steps:
        raise RunError(f"none of the checkpoints {steps} in {states} can be read: {problem}")
    return []


def _split(run: Run, saved: dict[str, Any], times: list[int], first: int) -> list[tuple[int, Any]]:
    """Takes a checkpoint's numbered arrays apart. Of each group the environments' arrays come
    first; they are as many as the arrays that the lanes' own state does not explain."""
    config = run.config
    obs = jax.ShapeDtypeStruct((config.num_envs, config.obs_dim), np.float32)
    like = jax.eval_shape(lambda x: lanes_.init(config, run.lanes[first], x), obs)
    structure = jax.tree.structure(_without_rows(like))
    arrays = [np.asarray(saved[name]) for name in sorted(saved)]
    size, rest = divmod(len(arrays), len(times))
    if rest or size < structure.num_leaves:
        raise RunError(
            f"a checkpoint of {len(arrays)} arrays in {len(times)} groups does not fit the run's "
            f"{structure.num_leaves} per group: export it with the version that wrote it"
        )
    ends = [size * (i + 1) for i in range(len(times))]
    states = [jax.tree.unflatten(structure, arrays[e - structure.num_leaves : e]) for e in ends]
    return [(int(time), state) for time, state in zip(times, states)]
