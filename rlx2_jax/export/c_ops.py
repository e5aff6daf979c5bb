"""The operations of a policy in C.

Every operation has two versions: `plain`, for observations too small to cause overflow, and
`watched`, with finite results for every input.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rlx2_jax.export import c_templates
from rlx2_jax.export.linear import Linear
from rlx2_jax.export.npz import unsigned
from rlx2_jax.export.op import Op
from rlx2_jax.export.ops import AddSaved, LayerNorm, Normalize, Relu, Save
from rlx2_jax.export.policy import SparsePolicy
from rlx2_jax.export.quantize import quantize

_LONG = 8  # links per row above which two partial sums are faster


class Arrays:
    """Definitions of constant arrays, and their total size."""

    def __init__(self, name: str):
        self.name, self.lines, self.bytes = name, [], 0

    def add(self, label: str, values: np.ndarray) -> str:
        """Defines an array; returns its element type. Empty arrays get one 0, as C requires."""
        values = values if len(values) else np.zeros(1, values.dtype)
        kind = {"f": "float", "i": f"int{8 * values.itemsize}_t"}
        element = kind.get(values.dtype.kind, f"uint{8 * values.itemsize}_t")
        texts = floats(values) if element == "float" else map(str, values.tolist())
        self.lines.append(f"static const {element} {self.name}_{label}[{len(values)}] = {{")
        self.lines += [*_wrapped(texts), "};"]
        self.bytes += values.nbytes
        return element


class Writer:
    """The body of a policy's function, operation by operation.

    Attributes:
      arrays: the constants.
      plain, watched: the two bodies.
      buffers: sizes of the local arrays h0, h1, ...
      x, size: name and length of the current vector.
      saved: names of the vectors on the stack.
    """

    def __init__(self, policy: SparsePolicy, name: str, *, int8: bool):
        self.name, self.arrays = name, Arrays(name)
        self.quantized = iter(quantize(policy)) if int8 else None
        self.plain: list[str] = []
        self.watched: list[str] = []
        self.buffers: list[int] = []
        self.x, self.size = "obs", policy.obs_dim
        self.saved: list[str] = []
        self._needed = {c_templates.SATURATE, c_templates.TANH}
        self._counts: Counter[type[Op]] = Counter()
        ops = policy.ops
        if not isinstance(ops[0], Linear | Normalize):  # these accept any observation
            self.vector(c_templates.LOAD, c_templates.LOAD_WATCHED, c_templates.CLAMP)
        for i, op in enumerate(ops):
            if isinstance(op, Linear):
                last = i + 1 == len(ops)
                relu = not last and isinstance(ops[i + 1], Relu)
                _linear(self, op, "tanh" if last else "relu" if relu else "")
            elif not (i and isinstance(op, Relu) and isinstance(ops[i - 1], Linear)):  # else fused
                _VECTOR[type(op)](self, op)

    @property
    def functions(self) -> list[str]:
        """The helper functions that the body calls."""
        order = ("RELU", "SATURATE", "CLAMP", "NORM", "TANH")
        return [x for name in order if (x := getattr(c_templates, name)) in self._needed]

    def number(self, kind: type[Op]) -> int:
        """The number of previous operations of this kind."""
        self._counts[kind] += 1
        return self._counts[kind] - 1

    def need(self, *functions: str) -> None:
        self._needed |= set(functions)

    def buffer(self, size: int, *, in_place: bool) -> str:
        """A local array for a result: the current vector if it may be overwritten, else a free and
        large enough one, else a new one."""
        if in_place and self.x != "obs" and self.x not in self.saved:
            return self.x
        used = {self.x, *self.saved}
        free = [(n, i) for i, n in enumerate(self.buffers) if n >= size and f"h{i}" not in used]
        if free:
            return f"h{min(free)[1]}"
        self.buffers.append(size)
        return f"h{len(self.buffers) - 1}"

    def vector(self, plain: str, watched: str, *functions: str, **fields: Any) -> None:
        """An operation that does not change the length of the vector."""
        self.need(*functions)
        fields |= {"name": self.name, "x": self.x, "n": self.size}
        fields["y"] = self.buffer(self.size, in_place=True)
        self.plain.append(plain.format(**fields))
        self.watched.append(watched.format(**fields))
        self.x = fields["y"]


def _linear(writer: Writer, layer: Linear, activation: str) -> None:
    """Writes the loop over the rows of a layer, with `activation` applied to each sum."""
    name, i, arrays = writer.name, writer.number(Linear), writer.arrays
    if activation == "relu":
        writer.need(c_templates.RELU)
    lengths, bias = layer.lengths, f"{name}_bias{i}[r]"
    small_bias = f"{bias} * 0x1p-70f * 0x1p-70f"
    int8 = writer.quantized is not None
    last = activation == "tanh"
    y = "action" if last else writer.buffer(layer.units, in_place=False)
    fields: dict[str, Any] = {
        "name": name,
        "i": i,
        "x": writer.x,
        "y": y,
        "inputs": layer.inputs,
        "outputs": layer.units,
        "activation": f"{name}_{activation}(sum)" if activation else "sum",
        "cast": "(float)" if int8 else "",
        "start": "0.0f" if int8 else bias,
        "small_start": "0.0f" if int8 else small_bias,
        "rescale": "",
        "small_rescale": "",
    }
    arrays.add(f"links{i}", lengths.astype(unsigned(lengths.max())))
    fields["index"] = arrays.add(f"cols{i}", layer.cols.astype(unsigned(layer.inputs - 1)))
    arrays.add(f"bias{i}", layer.bias)
    values = layer.values
    if writer.quantized is not None:
        values, scales = next(writer.quantized)
        arrays.add(f"scales{i}", scales)
        fields["rescale"] = f"\n            sum = sum * {name}_scales{i}[r] + {bias};"
        fields["small_rescale"] = f" * {name}_scales{i}[r] + {small_bias}"
    fields["weight"] = arrays.add(f"values{i}", values)
    rows = c_templates.LONG_ROWS if lengths.mean() >= _LONG else c_templates.SHORT_ROWS
    fields["loop"] = rows.format(**fields)
    again = c_templates.AGAIN.format(**fields)
    writer.plain.append(c_templates.LAYER.format(**fields, again=""))
    writer.watched.append(c_templates.LAYER.format(**fields, again=again))
    writer.x, writer.size = y, layer.units


def _relu(writer: Writer, op: Relu) -> None:
    del op
    writer.vector(c_templates.RECTIFY, c_templates.RECTIFY, c_templates.RELU)


def _normalize(writer: Writer, op: Normalize) -> None:
    i = writer.number(Normalize)
    writer.arrays.add(f"mean{i}", op.mean)
    writer.arrays.add(f"rstd{i}", op.scale)
    plain, watched = c_templates.NORMALIZE, c_templates.NORMALIZE_WATCHED
    writer.vector(plain, watched, c_templates.CLAMP, i=i)


def _layer_norm(writer: Writer, op: LayerNorm) -> None:
    i = writer.number(LayerNorm)
    writer.arrays.add(f"gain{i}", op.scale)
    writer.arrays.add(f"shift{i}", op.bias)
    (epsilon,) = floats(op.epsilon[None])
    plain, watched = c_templates.LAYER_NORM, c_templates.LAYER_NORM_WATCHED
    writer.vector(plain, watched, c_templates.CLAMP, c_templates.NORM, i=i, epsilon=epsilon)


def _save(writer: Writer, op: Save) -> None:
    del op
    writer.saved.append(writer.x)


def _add_saved(writer: Writer, op: AddSaved) -> None:
    del op
    other = writer.saved.pop()
    plain, watched = c_templates.ADD, c_templates.ADD_WATCHED
    writer.vector(plain, watched, c_templates.CLAMP, other=other)


_VECTOR: dict[type[Op], Callable[[Writer, Any], None]] = {
    Relu: _relu,
    Normalize: _normalize,
    LayerNorm: _layer_norm,
    Save: _save,
    AddSaved: _add_saved,
}


def floats(values: np.ndarray) -> Iterable[str]:
    """C literals with nine digits, which identify every float32."""
    for value in values.tolist():
        text = f"{value:.9g}"
        yield f"{text}f" if re.search(r"[.e]", text) else f"{text}.0f"


def _wrapped(texts: Iterable[str]) -> Iterable[str]:
    """Comma-separated lines of up to 96 columns."""
    line = ""
    for text in texts:
        if len(line) + len(text) > 94:
            yield line
            line = ""
        line += f"    {text}," if not line else f" {text},"
    yield line
