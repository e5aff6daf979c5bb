"""Network files: the initial (`initial/`) and final (`final/`) networks of every lane.

One `.npz` per lane, with dense arrays under names such as `critic/weights/q1/Dense_0/kernel` and
`critic/mask/q1/Dense_0/kernel`. Later runs can load rewound weights, frozen masks or an expert's
critic from them.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import archive, files
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.config import Config, Lane
from rlx2_jax.networks import BoundNetwork, convert, masked, optimize, policy, q_value
from rlx2_jax.sparse import masks
from rlx2_jax.types import Masks, Network, Params

NETWORKS = ("actor", "critic")
_DTYPES = {"weights": (np.float32,), "mask": (np.bool_,), "stats": (np.float32, np.int32)}


class Weights(NamedTuple):
    """One network of a file: dense weights and masks."""

    weights: Params
    mask: Masks
    stats: Params | None = None  # running observation statistics, if the network has any


def save(path: Path, networks: dict[str, Weights]) -> None:
    """Writes the networks of one lane atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, to_bytes(networks))


def to_bytes(networks: dict[str, Weights]) -> bytes:
    """The contents of a network file."""
    return archive.to_bytes(_arrays(networks))


def _arrays(networks: dict[str, Weights]) -> dict[str, np.ndarray]:
    """All arrays, by their name in a file."""
    return {
        "/".join([name, part, *(k.key for k in keys)]): np.asarray(leaf)
        for name, network in networks.items()
        for part, tree in network._asdict().items()
        for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def digest(networks: dict[str, Weights]) -> str:
    """SHA-256 of one lane's networks: names, shapes, dtypes and bytes of all weights and masks."""
    hashed = hashlib.sha256()
    for name, array in _arrays(networks).items():
        hashed.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()


def load(path: Path, *, most_bytes: int = archive.MOST_BYTES) -> dict[str, Weights]:
    """Reads a file written by `save`; raises ValueError if it is anything else."""
    what = "a file of network weights"
    networks: dict[str, dict[str, Any]] = {}
    if not path.exists():
        raise ValueError(f"{path} does not exist: has the run that writes it finished?")
    arrays = archive.read(path, what, most_bytes=most_bytes)
    try:
        for key, array in arrays.items():
            name, part, *keys = key.split("/")
            if array.dtype not in _DTYPES[part]:
                raise TypeError(f"{key} is {array.dtype}")
            tree = networks.setdefault(name, {}).setdefault(part, {})
            for inner in keys[:-1]:
                tree = tree.setdefault(inner, {})
            tree[keys[-1]] = array
        loaded = {name: Weights(**parts) for name, parts in networks.items()}
        for name, network in loaded.items():
            if jax.tree.map(np.shape, network.weights) != jax.tree.map(np.shape, network.mask):
                raise ValueError(f"weights and mask of {name} differ in shape")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} is not {what}: {error}") from error
    if not loaded:
        raise ValueError(f"{path} is not {what}: it is empty")
    return loaded


def of_agent(agent: Any) -> dict[str, Weights]:
    """The networks of one lane's agent, masked or compact."""
    networks = {}
    for name in NETWORKS:
        if (network := getattr(agent, name, None)) is not None:
            dense = convert.to_masked(network)
            params, live = (_by_name(x, network) for x in (dense.params, dense.masks))
            networks[name] = Weights(params, live, network.stats)
    return networks


def _by_name(tree: Params, network: Network) -> Params:
    """A network's tree as stored in files, with ensemble members as `q1`, `q2`, ..."""
    if network.members is None:
        return tree
    return {f"q{i + 1}": jax.tree.map(lambda x: x[i], tree) for i in range(network.members)}  # noqa: B023


def _stacked(tree: Params) -> Params:
    """The inverse of `_by_name`: stacks `q1`, `q2`, ... along a leading axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), *(tree[f"q{i + 1}"] for i in range(len(tree))))


def given(agent: Any, config: Config, lane: Lane) -> Any:
    """`agent` with the weights and masks from the files that its lane names.

    The lane's `weights` file gives dense weights, its `masks` file gives the masks; without a file
    the agent keeps its initial ones. Moments start at zero. Any path is safe: files are only read,
    as plain arrays of this run's shapes.
    """
    if lane.weights is None and lane.masks is None:
        return agent
    # Allow somewhat larger files: the shape check gives a better error for wider networks.
    most = max(2**26, 8 * sum(x.nbytes for x in jax.tree.leaves(agent)))
    from_weights = load(Path(lane.weights), most_bytes=most) if lane.weights else {}
    from_masks = load(Path(lane.masks), most_bytes=most) if lane.masks else {}

    def begin(name: str, initial: Network) -> Network:
        network = convert.to_masked(initial)
        params, live = (_by_name(x, initial) for x in (network.params, network.masks))
        kept = Weights(params, live, initial.stats)
        dense, stats = kept.weights, kept.stats
        if name in from_weights:
            dense, _, stats = from_weights[name]
        mask = from_masks[name].mask if name in from_masks else kept.mask
        for file, tree, like in (
            (lane.weights, dense, kept.weights),
            (lane.weights, stats, kept.stats),
            (lane.masks, mask, kept.mask),
        ):
            _check_shapes(f"{name} of {file}", tree, like)
        _check_links(f"{name} of {lane.masks}", mask, kept.mask)
        dense, mask, stats = jax.tree.map(jnp.asarray, (dense, mask, stats))
        if initial.members is not None:
            dense, mask = _stacked(dense), _stacked(mask)
        params = masks.apply(dense, mask)
        target = None
        if initial.target is not None:
            target = jax.tree.map(jnp.copy, params if config.targets == "masked" else dense)
        fields = {"members": initial.members, "module": initial.module, "stats": stats}
        network = optimize.init(params, mask, target=target, grow=config.grow, **fields)
        return convert.like(network, initial)

    return agent._replace(
        **{name: begin(name, getattr(agent, name)) for name in NETWORKS if hasattr(agent, name)}
    )


def expert(path: str, config: Config) -> BoundNetwork:
    """The critics of a trained agent as a callable, for RigL+Q*."""
    networks = load(Path(path))
    if "critic" not in networks:
        raise ValueError(f"{path} has no critic: name a file of a finished TD3 run's final/")
    critics, _, stats = networks["critic"]
    # An expert MLP may have different hidden layers from this run's.
    module = None if config.critic_module.chain else config.critic_module
    stats = jax.tree.map(jnp.asarray, stats)
    return masked.bind(_stacked(critics), members=len(critics), module=module, stats=stats)


def expert_actor(path: str, config: Config) -> BoundNetwork:
    """The deterministic actor of a trained agent as a callable, for behaviour cloning."""
    networks = load(Path(path))
    if "actor" not in networks:
        raise ValueError(f"{path} has no actor: name a file of a finished run's final/")
    actor, _, stats = networks["actor"]
    module = None if config.actor_module.chain else config.actor_module
    actor, stats = jax.tree.map(jnp.asarray, (actor, stats))
    return masked.bind(actor, module=module, stats=stats)


def check_expert(path: str, config: Config) -> None:
    """Raises ValueError unless the lanes of `config` can learn from the expert in a file."""
    obs, action = (
        jax.ShapeDtypeStruct((1, size), np.float32) for size in (config.obs_dim, config.action_dim)
    )
    judge = partial(q_value, bounds=config.critic_bounds)
    try:
        if NETWORK_USE[config.algo].offline:
            found = jax.eval_shape(policy, expert_actor(path, config), obs).shape
            fits = found == action.shape
        else:
            jax.eval_shape(judge, expert(path, config), obs, action)
            fits = True
    except (TypeError, flax.errors.FlaxError):
        fits = False
    if not fits:
        raise ValueError(
            f"the networks of {path} do not fit {config.obs_dim} observations and "
            f"{config.action_dim} actions: name a file of a run on this environment with this "
            f"--architecture"
        )


def _check_shapes(what: str, tree: Any, like: Any) -> None:
    if jax.tree.map(np.shape, tree) != jax.tree.map(np.shape, like):
        raise ValueError(
            f"the {what} has different shapes from this run's: use the same environment, "
            f"--architecture and network sizes"
        )


def _check_links(what: str, mask: Masks, like: Masks) -> None:
    counts = [[int(np.sum(m)) for m in jax.tree.leaves(tree)] for tree in (mask, like)]
    if counts[0] != counts[1]:
        raise ValueError(
            f"the {what} has {sum(counts[0]):,} live parameters where this lane's sparsity gives "
            f"{sum(counts[1]):,} (or differs per layer): give the lane the sparsities of that run"
        )
