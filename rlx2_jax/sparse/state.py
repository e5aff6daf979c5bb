"""The state of `sparsify`, and functions that read masks, sparsity and a summary from it.

All functions accept an optimizer state that contains a `sparsify` state at any depth (inside
`multi_transform` or `MultiSteps`, in a Flax `TrainState`, in an `nnx.Optimizer`).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from rlx2_jax.sparse import leaves as leaves_lib
from rlx2_jax.sparse import masks as masks_lib
from rlx2_jax.types import Array, Masks, Params


class SparsifyState(NamedTuple):
    """State of `sparsify`: only arrays, none of them shared.

    Attributes:
      inner: state of the wrapped optimizer.
      codes: u8 in the tree of the parameters: 0 no link; 1 a link (everywhere on leaves that are
        not sparse); 2 a link that the last mask update set to zero. `masks_of` gives booleans.
      count: updates so far, i32[].
      key: random key data, u32[2].
      selected: which leaves are sparse, in the order of `jax.tree.leaves`: bool[leaves].
      extra: additional state of the method, or None.
    """

    inner: Any
    codes: Params
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    key: Array
    selected: Array
    extra: Any = None

    @property
    def masks(self) -> Masks:
        """Booleans in the tree of the parameters; all ones on leaves that are not sparse."""
        return jax.tree.map(lambda code: code > 0, self.codes)


def masks_of(state: Any) -> Masks:
    """The masks in an optimizer state, as a tree like the parameters.

    >>> import jax.numpy as jnp, optax
    >>> import rlx2_jax as rlx2
    >>> tx = optax.chain(optax.clip(1.0), rlx2.sparsify(optax.adam(1e-3), 0.9, method="static"))
    >>> masks = rlx2.masks_of(tx.init({"kernel": jnp.ones((20, 10)), "bias": jnp.zeros(10)}))
    >>> int(masks["kernel"].sum()), int(masks["bias"].sum())
    (20, 10)
    """
    states = _states(state)
    if len(states) != 1:
        raise ValueError(
            f"the state holds {len(states)} states of sparsify: give a part that holds one"
        )
    return states[0].masks


def mask(params: Params, state: Any) -> Params:
    """Zeroes parameters, targets or averages off the masks of a state.

    Use it on parameters that do not come directly from `optax.apply_updates`: target networks after
    each Polyak step, averaged parameters, parameters before the first update.

    Args:
      params: a tree with the paths of the parameters, or a part of it; leaves with other paths are
        returned unchanged.

    >>> import jax.numpy as jnp, optax
    >>> import rlx2_jax as rlx2
    >>> params = {"kernel": jnp.ones((20, 10)), "bias": jnp.zeros(10)}
    >>> state = rlx2.sparsify(optax.adam(1e-3), 0.9, method="static").init(params)
    >>> target = optax.incremental_update(params, params, 0.005)
    >>> target = rlx2.mask(target, state)
    >>> int((target["kernel"] != 0).sum())
    20
    """
    if isinstance(params, optax.LookaheadParams):
        return optax.LookaheadParams(mask(params.fast, state), mask(params.slow, state))
    known = {
        leaves_lib.names(path): m
        for part in _states(state)
        for path, m in jax.tree_util.tree_flatten_with_path(part.masks)[0]
    }
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    paths = [leaves_lib.names(path) for path, _ in flat]
    if flat and not known.keys() & set(paths):
        raise ValueError(
            f"no leaf of params has a mask: params has {paths[:3]}, the state {[*known][:3]}"
        )
    masked = []
    for path, (_, leaf) in zip(paths, flat):
        m = known.get(path)
        if m is not None and np.shape(m) != np.shape(leaf):
            raise ValueError(f"{path} has shape {np.shape(leaf)}, its mask {np.shape(m)}")
        masked.append(leaf if m is None else jnp.where(m, leaf, jnp.zeros_like(leaf)))
    return jax.tree.unflatten(treedef, masked)


def sparsity(state: Any) -> Any:
    """The fraction of absent links over all sparse leaves: a float, or f32[] under jit.

    >>> import jax.numpy as jnp, optax
    >>> import rlx2_jax as rlx2
    >>> tx = rlx2.sparsify(optax.adam(1e-3), 0.9, method="static")
    >>> rlx2.sparsity(tx.init({"kernel": jnp.ones((20, 10)), "bias": jnp.zeros(10)}))
    0.9
    """
    live = total = 0
    states = _states(state)
    if not states:
        raise ValueError("the state holds no state of sparsify")
    for part in states:
        for m, chosen in zip(jax.tree.leaves(part.masks), _selected(part)):
            live += chosen * masks_lib.count(m)
            total += chosen * math.prod(np.shape(m))
    if isinstance(total, Tracer):
        return jnp.where(total > 0, 1.0 - live / jnp.maximum(total, 1), 0.0)
    return float(1.0 - live / total) if total else 0.0


class Row(NamedTuple):
    """One leaf of a `Summary`.

    Attributes:
      layer: its path.
      shape: its shape.
      links: live links.
      density: fraction of live links.
      flops: FLOPs of a forward pass of one sample (appendix C.3.2), for convolutions per position.
      sparse: whether the leaf is sparse.
    """

    layer: str
    shape: tuple[int, ...]
    links: int
    density: float
    flops: float
    sparse: bool


class Summary(NamedTuple):
    """A printable table of all leaves.

    Attributes:
      rows: one `Row` per leaf.
      rule: how sparse leaves were selected.
    """

    rows: tuple[Row, ...]
    rule: str

    def __str__(self) -> str:
        sparse = [row for row in self.rows if row.sparse]
        size = sum(math.prod(row.shape) for row in sparse)
        links = sum(row.links for row in sparse)
        total = Row("all sparse", (size,), links, links / max(size, 1), 0.0, True)
        total = total._replace(flops=sum(row.flops for row in sparse))
        cells = [("layer", "shape", "links", "density", "FLOPs")]
        for row in (*self.rows, total):
            shape = " x ".join(map(str, row.shape)) or "scalar"
            density = f"{row.density:.4f}" if row.sparse else "dense"
            flops = f"{row.flops:,.0f}" if row.flops else ""
            cells.append((row.layer or "(unnamed)", shape, f"{row.links:,}", density, flops))
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = [
            "  ".join(
                c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(x, widths))
            )
            for x in cells
        ]
        return "\n".join([*map(str.rstrip, lines), f"sparse leaves: {self.rule}"])


def summary(params: Params, state: Any) -> Summary:
    """Shapes, links, densities and FLOPs of all layers, and the selection rule.

    >>> import jax.numpy as jnp, optax
    >>> import rlx2_jax as rlx2
    >>> params = {"kernel": jnp.ones((20, 10)), "bias": jnp.zeros(10)}
    >>> tx = rlx2.sparsify(optax.adam(1e-3), 0.9, method="static")
    >>> print(rlx2.summary(params, tx.init(params)))
    layer       shape    links  density  FLOPs
    bias        10          10    dense
    kernel      20 x 10     20   0.1000     39
    all sparse  200         20   0.1000     39
    sparse leaves: float arrays of two or more axes named kernel, weight or w (or unnamed) ...
    """
    rows, by_rule = [], True
    known = {}
    if any(isinstance(x, Tracer) for part in _states(state) for x in jax.tree.leaves(part)):
        raise ValueError("summary needs concrete arrays: call it outside of jit and vmap")
    for part in _states(state):
        flat = jax.tree_util.tree_flatten_with_path(part.masks)[0]
        for (path, m), chosen in zip(flat, _selected(part)):
            known[leaves_lib.names(path)] = (masks_lib.count(m), bool(chosen))
    for leaf in leaves_lib.describe(params):
        size = math.prod(leaf.shape)
        links, chosen = known.get(leaf.path, (size, False))
        by_rule &= chosen == leaf.sparse
        fan_in = leaf.size("i") * leaf.size("s")
        flops = links * (2 * fan_in - 1) / fan_in if chosen else 0.0
        rows.append(Row(leaf.path, leaf.shape, links, links / max(size, 1), flops, chosen))
    rule = leaves_lib.RULE if by_rule else "as given to sparsify"
    return Summary(tuple(rows), rule)


def _states(state: Any) -> list[SparsifyState]:
    nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SparsifyState))
    return [node for node in nodes if isinstance(node, SparsifyState)]


def _selected(state: SparsifyState) -> Any:
    """`selected` of one run; the state may be stacked over several runs."""
    (selected,) = jax.tree.leaves(state.selected)
    if not isinstance(selected, Tracer):
        selected = np.asarray(selected).astype(int)
    return selected.reshape(-1, selected.shape[-1])[0] if selected.size else selected.ravel()
