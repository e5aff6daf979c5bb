"""The actor of one lane, read from a run directory that may still be in use."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from rlx2_jax import envs
from rlx2_jax import lane as lanes_
from rlx2_jax.compact import layout
from rlx2_jax.config import Config, Lane
from rlx2_jax.runtime import plan
from rlx2_jax.runtime.checkpoint import _without_rows
from rlx2_jax.runtime.run import Run, RunError
from rlx2_jax.types import Masks, Network, Params


class Actor(NamedTuple):
    """A masked actor: `{"Dense_l": {"kernel": [in, out], "bias": [out]}}`, host arrays."""

    params: Params
    masks: Masks
    step: int  # environment steps of its lane so far


def read_run(directory: Path, *, allow_imports: bool = False) -> Run:
    """The run that a directory holds; `allow_imports`: see `envs.check_import`."""
    path = Path(directory) / "config.json"
    if not path.exists():
        raise RunError(f"there is no run in {directory}: {path.name} is missing")
    try:
        run = Run.from_json(json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} does not describe a run: {error}") from error
    envs.check_import(run.env, run.env_options, allow=allow_imports)
    return run


def actor_of(run: Run, directory: Path, lane: int) -> Actor:
    """The actor of a lane in the newest checkpoint that can be read; nothing is changed there."""
    if not 0 <= lane < len(run.lanes):
        raise RunError(f"lane {lane}: the run has lanes 0 to {len(run.lanes) - 1}")
    first = 0
    folder = Path(directory) / "checkpoints"
    for chunk in sorted(folder.glob("chunk-*"), key=lambda p: int(p.name.split("-")[1])):
        groups = _states(run, chunk / "states", first)
        for time, lanes, state in groups:
            if lane - first in lanes:
                i = lanes.index(lane - first)
                if int(state.seed[i]) != run.lanes[lane].seed:
                    raise RunError(
                        f"{chunk} holds seed {state.seed[i]} where lane {lane} should be"
                    )
                network = jax.tree.map(lambda x, i=i: np.asarray(x[i]), state.agent.actor)
                return Actor(*masked(network), time * run.config.num_envs)
        first += sum(len(lanes) for _, lanes, _ in groups)
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


_Group = tuple[int, list[int], Any]  # time, positions of its lanes, state without replay rows


def _states(run: Run, states: Path, first: int) -> list[_Group]:
    """The groups of lanes in the newest checkpoint of the chunk that begins with lane `first`."""
    committed = [p for p in states.glob("*") if p.name.isdigit()]  # atomically, by renaming
    steps = sorted((int(p.name) for p in committed), reverse=True)
    problem = ""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        for step in steps:
            parts = ocp.args.Composite(meta=ocp.args.JsonRestore(), groups=ocp.args.PyTreeRestore())
            try:
                saved: Any = reader.restore(states.resolve() / str(step), args=parts)
                return _split(run, saved.groups, saved.meta, first)
            except RunError:
                raise
            except Exception as error:  # Orbax raises many kinds on damaged files
                problem = problem or str(error).strip().split("\n")[0]
    if steps:
        raise RunError(f"none of the checkpoints {steps} in {states} can be read: {problem}")
    return []


def _split(run: Run, saved: dict[str, Any], meta: dict[str, Any], first: int) -> list[_Group]:
    """Takes a checkpoint's numbered arrays apart. Of each group the environments' arrays come
    first; they are as many as the arrays that the lanes' own state does not explain."""
    times, lanes = meta["times"], meta["lanes"]
    chunk = run.lanes[first : first + sum(map(len, lanes))]
    configs = {i: part.config for part in plan.parts(run.config, chunk) for i in part.lanes}
    structures = [_structure(configs[group[0]], chunk[group[0]]) for group in lanes]
    sizes = [structure.num_leaves for structure in structures]
    arrays = [np.asarray(saved[name]) for name in sorted(saved)]
    environment, rest = divmod(len(arrays) - sum(sizes), len(times))
    if rest or environment < 0:
        raise RunError(
            f"a checkpoint of {len(arrays)} arrays in {len(times)} groups does not fit the run's "
            f"{sizes}: export it with the version that wrote it"
        )
    ends = list(accumulate(environment + size for size in sizes))
    return [
        (int(time), group, jax.tree.unflatten(structure, arrays[end - size : end]))
        for time, group, structure, size, end in zip(times, lanes, structures, sizes, ends)
    ]


def _structure(config: Config, lane: Lane) -> Any:
    """Of the saved state of a lane."""
    obs = jax.ShapeDtypeStruct((config.num_envs, config.obs_dim), np.float32)
    like = jax.eval_shape(lambda x: lanes_.init(config, lane, x), obs)
    return jax.tree.structure(_without_rows(like))
