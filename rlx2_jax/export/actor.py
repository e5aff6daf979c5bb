"""The actor of one lane, read from a run directory that may still be in use."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import lane as lanes_
from rlx2_jax.compact import layout
from rlx2_jax.files import Damaged
from rlx2_jax.runtime import plan, weights
from rlx2_jax.runtime.checkpoint import Checkpoints, take
from rlx2_jax.runtime.run import CHECKPOINTS, Run, RunError
from rlx2_jax.runtime.run import read_run as read_run
from rlx2_jax.types import Masks, Network, Params


class Actor(NamedTuple):
    """A masked actor: `{"Dense_l": {"kernel": [in, out], "bias": [out]}}`, host arrays."""

    params: Params
    masks: Masks
    step: int  # environment steps of its lane so far


def actor_of(run: Run, directory: Path, lane: int) -> Actor:
    """The newest actor of a lane that can be read; nothing is changed in the directory."""
    if not 0 <= lane < len(run.lanes):
        raise RunError(f"lane {lane}: the run has lanes 0 to {len(run.lanes) - 1}")
    directory = Path(directory)
    store, problem = Checkpoints(directory / CHECKPOINTS), ""
    for position in reversed(store.positions()):
        try:
            meta, arrays = store.read_arrays(position)
            first = meta["chunk"] * run.chunk
            if lane < first:  # its chunk is finished
                found = weights.load(directory / "final" / f"lane-{lane}.npz")["actor"]
                return Actor(found.weights, found.mask, run.config.steps)
            if lane - first < sum(map(len, meta["lanes"])):
                return _from_checkpoint(run, meta, arrays, lane - first)
        except (Damaged, KeyError, TypeError) as error:
            problem = problem or str(error)
    if problem:
        raise RunError(f"no checkpoint in {directory} can be read: {problem}")
    raise RunError(
        f"lane {lane} has no checkpoint in {directory}: let the run reach one, see "
        f"checkpoint_interval={run.checkpoint_interval}"
    )


def _from_checkpoint(
    run: Run, meta: dict[str, Any], arrays: dict[str, np.ndarray], index: int
) -> Actor:
    """The actor of the lane at `index` of a checkpoint's chunk."""
    first = meta["chunk"] * run.chunk
    lanes = run.lanes[first : first + run.chunk]
    configs = {i: part.config for part in plan.parts(run.config, lanes) for i in part.lanes}
    group = next(g for g, members in enumerate(meta["lanes"]) if index in members)
    row, lane = meta["lanes"][group].index(index), lanes[index]
    seed = int(arrays[f"{group}.state.seed"][row])
    if seed != lane.seed:
        raise RunError(f"a checkpoint holds seed {seed} where lane {first + index} should be")
    like = jax.eval_shape(lambda: lanes_.init_agent(configs[index], lane, jnp.int32(0)).actor)
    saved = take(arrays, group, {"state": {"agent": {"actor": like}}})["state"]["agent"]["actor"]
    network = jax.tree.map(lambda x: np.asarray(x[row]), saved)
    return Actor(*masked(network), meta["times"][group] * run.config.num_envs)


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
