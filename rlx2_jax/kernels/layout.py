"""The data layout of compact networks, which store only live links.

    y_l = W_l a_l + b_l

A network is one trainable vector `flat` and one `Index`. With n_l links in layer l:

    flat = [values_0 (n_0), ..., values_{L-1}, bias_0 (out_0), ..., bias_{L-1}, others]

Values of a layer are ordered by output row, then input column (CSR of the [out, in] matrix). The
index also lists the links by input, then output (the transpose, in the order of the flattened
[in, out] kernel of a masked network), with a permutation into the values. Others are arrays outside
of layers (LayerNorm), always dense. Optimizer moments and targets are vectors like `flat`, so
memory is Θ(live links).

n_l is a static capacity. If a lane has fewer live links, its row pointers end early and the rest is
padding: value 0, gradient 0, any column in range.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Shape = tuple[int, ...]
Tree = Mapping[str, Any]  # nested; layers are {"kernel": [in, out], "bias": [out]}


@dataclasses.dataclass(frozen=True)
class Spec:
    """Static shape of a compact network.

    Attributes:
      shapes: (in, out) of each layer.
      nnz: room for links in each layer.
      names: paths of the layers in the parameters, keys joined by "/".
      others: names and shapes of the arrays outside of layers.
    """

    shapes: tuple[tuple[int, int], ...]
    nnz: tuple[int, ...]
    names: tuple[str, ...]
    others: tuple[tuple[str, Shape], ...] = ()

    def __post_init__(self) -> None:
        if not len(self.nnz) == len(self.names) == len(self.shapes):
            raise ValueError(f"{self} does not have one shape, nnz and name per layer")
        for (n_in, n_out), n in zip(self.shapes, self.nnz):
            if min(n_in, n_out) < 1 or n_in * n_out >= 2**31:
                raise ValueError(f"a layer of {n_in} x {n_out} must have 1 to 2**31 - 1 links")
            if not 0 <= n <= n_in * n_out:
                raise ValueError(f"{n} links do not fit a layer of {n_in} x {n_out}")

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """Inputs of the first layer and outputs of each layer; layers must form a chain."""
        for (_, n_out), (n_in, _) in pairwise(self.shapes):
            if n_out != n_in:
                raise ValueError(f"layers {self.names} of shapes {self.shapes} do not form a chain")
        return (self.shapes[0][0], *(n_out for _, n_out in self.shapes))

    @property
    def links(self) -> int:
        return sum(self.nnz)

    @property
    def parameters(self) -> int:
        """Length of `flat`."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the parts of `flat`: values, then biases, then others."""
        others = (math.prod(shape) for _, shape in self.others)
        return (*self.nnz, *(n_out for _, n_out in self.shapes), *others)

    @property
    def leaves(self) -> dict[str, Shape]:
        """Shapes of all arrays of the masked network by name, in `jax.tree.leaves` order."""
        leaves = dict(self.others)
        for name, (n_in, n_out) in zip(self.names, self.shapes):
            leaves |= {f"{name}/bias": (n_out,), f"{name}/kernel": (n_in, n_out)}
        return {name: leaves[name] for name in sorted(leaves, key=lambda name: name.split("/"))}

    def layer(self, i: int) -> "Spec":
        """One layer as a separate network."""
        return Spec(self.shapes[i : i + 1], self.nnz[i : i + 1], self.names[i : i + 1])

    def slices(self, field: str) -> tuple[slice, ...]:
        """The slice of each layer in an index array, or (`values`, `biases`) in `flat`."""
        start = self.links if field == "biases" else 0
        sizes = {
            "biases": [n_out for _, n_out in self.shapes],
            "rowptr": [n_out + 1 for _, n_out in self.shapes],
            "colptr": [n_in + 1 for n_in, _ in self.shapes],
        }.get(field, self.nnz)
        ends = list(accumulate(sizes, initial=start))
        return tuple(slice(a, b) for a, b in pairwise(ends))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rowptr", "cols", "colptr", "rows", "perm"],
    meta_fields=["spec"],
)
@dataclasses.dataclass(frozen=True)
class Index:
    """Positions of the links: int32 arrays, concatenated over layers, pointers from 0 per layer.

    Links of output r of layer l: rowptr[r] .. rowptr[r + 1] - 1, from inputs `cols`. Links of
    input c: colptr[c] .. colptr[c + 1] - 1, to outputs `rows`, with values at `perm`.

    Attributes:
      rowptr: start of each output's links: i32[Σ (out + 1)].
      cols: the input of each link, by output: i32[Σ nnz].
      colptr: start of each input's links: i32[Σ (in + 1)].
      rows: the output of each link, by input: i32[Σ nnz].
      perm: position of the value of each link in `rows`: i32[Σ nnz].
      spec: static shape.
    """

    rowptr: Array
    cols: Array
    colptr: Array
    rows: Array
    perm: Array
    spec: Spec

    def layer(self, field: str, layer: int) -> Array:
        """One layer's part of an index array."""
        return getattr(self, field)[..., self.spec.slices(field)[layer]]

    def one(self, layer: int) -> "Index":
        """The index of one layer alone."""
        names = [field.name for field in dataclasses.fields(self)[:-1]]
        parts = {name: self.layer(name, layer) for name in names}
        return Index(**parts, spec=self.spec.layer(layer))

    def live(self) -> Array:
        """Live links of each layer (without padding): i32[layers]."""
        ends = np.array([s.stop - 1 for s in self.spec.slices("rowptr")])
        return self.rowptr[..., ends]


def join(indices: Sequence[Index]) -> Index:
    """Concatenates the layers of several indices."""
    names = [field.name for field in dataclasses.fields(Index)[:-1]]
    arrays = {x: jnp.concatenate([getattr(index, x) for index in indices]) for x in names}
    specs = [index.spec for index in indices]
    fields = ("shapes", "nnz", "names", "others")
    spec = Spec(*(sum((getattr(x, field) for x in specs), ()) for field in fields))
    return Index(**arrays, spec=spec)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["flat", "index"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Compact:
    """A network: trainable values and biases, and their index."""

    flat: Array
    index: Index


def natural(name: str) -> list[int | str]:
    """Sort key for names with numbers (JAX sorts dict keys as text: 10 before 2)."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def flatten(tree: Tree) -> dict[str, Any]:
    """The leaves of nested dicts by name, keys joined by "/"."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in leaves}


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), path, tree)[last] = leaf
    return tree


def spec_of(masks: Tree, *more: Tree) -> Spec:
    """The smallest spec with room for concrete masks, possibly of several lanes."""
    lanes = [flatten(lane) for lane in (masks, *more)]
    leaves = {name: np.shape(leaf) for name, leaf in lanes[0].items()}
    kernels = [name for name in leaves if name.endswith("/kernel")]
    names = sorted((name.removesuffix("/kernel") for name in kernels), key=natural)
    counts = [
        max(int(np.asarray(lane[f"{name}/kernel"]).sum()) for lane in lanes) for name in names
    ]
    shapes: Any = tuple(tuple(int(n) for n in leaves[f"{name}/kernel"]) for name in names)
    in_layers = {f"{name}/{part}" for name in names for part in ("kernel", "bias")}
    others = tuple((name, shape) for name, shape in leaves.items() if name not in in_layers)
    return Spec(shapes, tuple(counts), tuple(names), others)


def group_lanes(live: Sequence[Sequence[int]], max_padding: float = 0.1) -> list[list[int]]:
    """Groups lanes that can share a program, with at most `max_padding` relative padding.

    Args:
      live: per lane, the live links of each layer.

    Returns:
      Groups of lane numbers; a group's nnz is the maximum over its lanes, layer by layer.
    """
    groups: list[list[int]] = []
    sizes: list[np.ndarray] = []
    for lane in sorted(range(len(live)), key=lambda i: (-sum(live[i]), i)):
        mine = np.asarray(live[lane])
        for i, group in enumerate(groups):
            joint = np.maximum(sizes[i], mine)
            members = [sum(live[j]) for j in (*group, lane)]
            if len(mine) == len(joint) and joint.sum() <= (1 + max_padding) * min(members):
                group.append(lane)
                sizes[i] = joint
                break
        else:
            groups.append([lane])
            sizes.append(mine)
    return [sorted(group) for group in groups]


def build_index(positions: Sequence[Array], spec: Spec) -> tuple[Index, Array]:
    """Index of links at given places. Works under jit and vmap.

    Args:
      positions: per layer i32[nnz], ascending places in the flattened [in, out] kernel, padded
        with in * out.

    Returns:
      The index, and for each link in value order its position in the given order: i32[Σ nnz].
    """
    fields: list[tuple[Array, ...]] = []
    for place, (n_in, n_out) in zip(positions, spec.shapes):
        live = place < n_in * n_out
        col, row = place // n_out, place % n_out
        key = jnp.where(live, row * n_in + col, n_in * n_out)
        key, order = jax.lax.sort((key, jnp.arange(len(place), dtype=jnp.int32)), num_keys=1)
        rowptr = _first_at_least(key, n_in * jnp.arange(n_out + 1, dtype=jnp.int32))
        colptr = _first_at_least(place, n_out * jnp.arange(n_in + 1, dtype=jnp.int32))
        perm = jnp.zeros_like(order).at[order].set(jnp.arange(len(place), dtype=jnp.int32))
        cols = jnp.where(live, col, 0)[order]
        fields.append((rowptr, cols, colptr, jnp.where(live, row, 0), perm, order))
    rowptr, cols, colptr, rows, perm, order = (jnp.concatenate(part) for part in zip(*fields))
    return Index(rowptr, cols, colptr, rows, perm, spec), order


def _first_at_least(ascending: Array, values: Array) -> Array:
    return jnp.searchsorted(ascending, values).astype(jnp.int32)


def places(index: Index, layer: int) -> Array:
    """Places in the flattened [in, out] kernel, ascending, padding in * out: i32[nnz].

    The order is that of `rows` and `perm`.
    """
    n_in, n_out = index.spec.shapes[layer]
    colptr, rows = index.layer("colptr", layer), index.layer("rows", layer)
    link = jnp.arange(len(rows), dtype=jnp.int32)
    col = jnp.searchsorted(colptr, link, side="right").astype(jnp.int32) - 1
    return jnp.where(link < colptr[-1], col * n_out + rows, n_in * n_out)


def from_masked(params: Tree, masks: Tree, spec: Spec | None = None) -> Compact:
    """Converts a masked network to a compact one (biases and others are always live).

    Args:
      params, masks: trees with layers `{"kernel": [in, out], "bias": [out]}`; masks are bool.
      spec: static shape, required if masks are traced. Live links beyond `nnz` would be lost, so
        compute it from the concrete masks (`spec_of`).
    """
    spec = spec_of(masks) if spec is None else spec
    arrays, live = flatten(params), flatten(masks)
    positions, values = [], []
    for name, (n_in, n_out), n in zip(spec.names, spec.shapes, spec.nnz):
        mask = jnp.asarray(live[f"{name}/kernel"]).reshape(-1)
        place = jnp.nonzero(mask, size=n, fill_value=n_in * n_out)[0].astype(jnp.int32)
        kernel = jnp.asarray(arrays[f"{name}/kernel"]).reshape(-1)
        positions.append(place)
        values.append(kernel.at[place].get(mode="fill", fill_value=0))
    index, order = build_index(positions, spec)
    sorted_values = [v[order[s]] for v, s in zip(values, spec.slices("values"))]
    biases = [jnp.asarray(arrays[f"{name}/bias"]) for name in spec.names]
    others = [jnp.asarray(arrays[name]).reshape(-1) for name, _ in spec.others]
    return Compact(jnp.concatenate([*sorted_values, *biases, *others]), index)


def parts(flat: Array, spec: Spec) -> tuple[list[Array], list[Array], dict[str, Any]]:
    """The values and the bias of each layer, and the other arrays by name."""
    # A single split: its transpose is one concatenation, while slices would transpose to padding.
    pieces, count = jax.lax.split(flat, spec.sizes), len(spec.nnz)
    others = zip(spec.others, pieces[2 * count :])
    dense = {name: piece.reshape(shape) for (name, shape), piece in others}
    return list(pieces[:count]), list(pieces[count : 2 * count]), dense


def to_masked(net: Compact) -> tuple[dict[str, Any], dict[str, Any]]:
    """(params, masks) of the masked network; params are exactly 0 off the mask."""
    spec = net.index.spec
    all_values, biases, params = parts(net.flat, spec)
    masks = {name: jnp.ones(shape, bool) for name, shape in spec.others}
    for i, (name, (n_in, n_out)) in enumerate(zip(spec.names, spec.shapes)):
        place = places(net.index, i)
        values = all_values[i][net.index.layer("perm", i)]
        kernel = jnp.zeros(n_in * n_out, values.dtype).at[place].set(values, mode="drop")
        mask = jnp.zeros(n_in * n_out, bool).at[place].set(True, mode="drop")
        params |= {f"{name}/kernel": kernel.reshape(n_in, n_out), f"{name}/bias": biases[i]}
        masks |= {f"{name}/kernel": mask.reshape(n_in, n_out)}
        masks |= {f"{name}/bias": jnp.ones(n_out, bool)}
    return unflatten(params), unflatten(masks)


def validate(index: Index) -> None:
    """Validates an index from outside (a file, another program), on the host; lanes allowed.

    Raises:
      ValueError: an array does not describe a network of `index.spec`; names the first one.
    """
    arrays = {f.name: np.asarray(getattr(index, f.name)) for f in dataclasses.fields(index)[:-1]}
    lanes = {array.shape[:-1] for array in arrays.values()}
    if len(lanes) != 1:
        raise ValueError(f"index arrays have different lane axes {sorted(lanes)}")
    for name, array in arrays.items():
        size = index.spec.slices(name)[-1].stop
        if array.dtype != np.int32 or array.shape[-1] != size:
            raise ValueError(f"{name} must be int32[..., {size}], not {array.dtype}{array.shape}")
    for lane in np.ndindex(*lanes.pop()):
        for layer, shape in enumerate(index.spec.shapes):
            part = {n: a[lane][index.spec.slices(n)[layer]] for n, a in arrays.items()}
            _validate_layer(part, shape, f"layer {index.spec.names[layer]!r}")


def _validate_layer(part: dict[str, np.ndarray], shape: tuple[int, int], where: str) -> None:
    n_in, n_out = shape
    nnz = len(part["cols"])
    for name, limit in (("cols", n_in), ("rows", n_out), ("perm", nnz)):
        if nnz and not (part[name].min() >= 0 and part[name].max() < limit):
            raise ValueError(f"{where}: {name} is not within 0 .. {limit - 1}")
    for name in ("rowptr", "colptr"):
        pointer = part[name]
        if pointer[0] != 0 or pointer[-1] > nnz or (np.diff(pointer) < 0).any():
            raise ValueError(f"{where}: {name} does not rise from 0 to at most {nnz}")
    live = part["rowptr"][-1]
    if part["colptr"][-1] != live:
        raise ValueError(f"{where}: rowptr and colptr disagree on the number of live links")
    row = np.repeat(np.arange(n_out), np.diff(part["rowptr"]))
    col = np.repeat(np.arange(n_in), np.diff(part["colptr"]))
    by_row = row.astype(np.int64) * n_in + part["cols"][:live]
    by_col = col.astype(np.int64) * n_out + part["rows"][:live]
    if (np.diff(by_row) <= 0).any() or (np.diff(by_col) <= 0).any():
        raise ValueError(f"{where}: links are not sorted, or one is a duplicate")
    perm = part["perm"][:live]
    if not np.array_equal(np.sort(part["perm"]), np.arange(nnz)) or not (
        np.array_equal(row[perm] if live else perm, part["rows"][:live])
        and np.array_equal(part["cols"][perm], col)
    ):
        raise ValueError(f"{where}: the transpose does not hold the same links")
