"""A policy as one C99 file: constant arrays and one function, nothing else.

No allocation, no state, no library: the only header is <stdint.h>, which freestanding compilers
have too. tanh is computed in the file itself, to 2e-7 of the true value over all floats (measured;
the tests hold it to 1e-6): one halving, the [7/6] continued fraction, one doubling.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from rlx2_jax.export import c_templates
from rlx2_jax.export.npz import unsigned
from rlx2_jax.export.policy import SparsePolicy, halves
from rlx2_jax.export.quantize import quantize

_LONG = 8  # links per row from which on two sums pay


class CFile(NamedTuple):
    """The text of a C file, and the size of its constant data on the device."""

    text: str
    data_bytes: int


class Arrays:
    """The definitions of constant arrays, and what they take."""

    def __init__(self, name: str):
        self.name, self.lines, self.bytes = name, [], 0

    def add(self, label: str, values: np.ndarray) -> str:
        """Defines an array; its element type. C has no arrays without elements: one 0 then."""
        values = values if len(values) else np.zeros(1, values.dtype)
        kind = {"f": "float", "i": f"int{8 * values.itemsize}_t"}
        element = kind.get(values.dtype.kind, f"uint{8 * values.itemsize}_t")
        texts = _floats(values) if element == "float" else map(str, values.tolist())
        self.lines.append(f"static const {element} {self.name}_{label}[{len(values)}] = {{")
        self.lines += [*_wrapped(texts), "};"]
        self.bytes += values.nbytes
        return element


def check_name(name: str) -> None:
    """Raises ValueError for a name that is no C identifier, which a file's name may not be then."""
    if not re.fullmatch(r"[A-Za-z_]\w{0,62}", name, re.ASCII):
        raise ValueError(
            f"name={name!r:.80}: use a C identifier, up to 63 letters, digits and underscores"
        )


def source(policy: SparsePolicy, name: str = "policy", *, int8: bool = False) -> CFile:
    """The C file of a policy, whose function is `<name>_act`.

    Args:
      int8: weights as 8-bit integers (see `quantize`) instead of float.
    """
    check_name(name)
    arrays = Arrays(name)
    layers = [_layer(policy, i, arrays, name, int8=int8) for i in range(len(policy.layers))]
    hidden = policy.sizes[1:-1]
    units = "".join(f"    float h{i}[{n}];\n" for i, n in enumerate(hidden))
    scale = ""
    if policy.low is not None and policy.high is not None:
        centre, half = halves(policy.low, policy.high)
        arrays.add("centre", centre)
        arrays.add("half", half)
        scale = c_templates.SCALE.format(name=name, action_dim=policy.action_dim)
    head = c_templates.HEAD.format(
        kind=policy.kind.upper(),
        sizes="-".join(map(str, policy.sizes)),
        links=policy.links,
        form="int8" if int8 else "float",
        name=name,
        obs_dim=policy.obs_dim,
        action_dim=policy.action_dim,
        data=arrays.bytes,
        stack=4 * sum(hidden) + 64,
        quantised=c_templates.QUANTISED if int8 else "",
        scaling=c_templates.SCALING.format(name=name) if scale else "",
    )
    act = c_templates.ACT.format(
        name=name,
        units=units,
        obs_dim=policy.obs_dim,
        most=_harmless(policy, int8=int8),
        plain="".join(plain for plain, _ in layers),
        watched="".join(watched for _, watched in layers),
    )
    definitions = "\n" + "\n".join(arrays.lines) + "\n"
    functions = (
        (c_templates.RELU if hidden else "") + c_templates.SATURATE + c_templates.TANH
    ).format(name=name)
    text = head + definitions + functions + act + scale
    return CFile(text, arrays.bytes)


def _layer(
    policy: SparsePolicy, i: int, arrays: Arrays, name: str, *, int8: bool
) -> tuple[str, str]:
    """The loop over the rows of layer `i`, plain and watched; its constants go to `arrays`."""
    layer, last = policy.layers[i], i + 1 == len(policy.layers)
    lengths, bias = layer.lengths, f"{name}_bias{i}[r]"
    small_bias = f"{bias} * 0x1p-70f * 0x1p-70f"
    fields: dict[str, Any] = {
        "name": name,
        "i": i,
        "x": f"h{i - 1}" if i else "obs",
        "y": "action" if last else f"h{i}",
        "inputs": layer.inputs,
        "outputs": layer.outputs,
        "activation": f"{name}_{'tanh' if last else 'relu'}(sum)",
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
    if int8:
        values, scales = quantize(policy)[i]
        arrays.add(f"scales{i}", scales)
        fields["rescale"] = f"\n            sum = sum * {name}_scales{i}[r] + {bias};"
        fields["small_rescale"] = f" * {name}_scales{i}[r] + {small_bias}"
    fields["weight"] = arrays.add(f"values{i}", values)
    rows = c_templates.LONG_ROWS if lengths.mean() >= _LONG else c_templates.SHORT_ROWS
    fields["loop"] = rows.format(**fields)
    again = c_templates.AGAIN.format(**fields)
    plain, watched = (c_templates.LAYER.format(**fields, again=x) for x in ("", again))
    return plain, watched


def _harmless(policy: SparsePolicy, *, int8: bool) -> str:
    """The largest power of two such that no sum overflows if all observations are within it."""
    coded = quantize(policy) if int8 else ()

    def overflows(most: float) -> bool:
        for i, layer in enumerate(policy.layers):
            rows = np.repeat(np.arange(layer.outputs), layer.lengths)
            weights = np.abs((coded[i].values if int8 else layer.values).astype(np.float64))
            sums = np.bincount(rows, weights, layer.outputs) * most
            scaled = sums * (coded[i].scales if int8 else 1.0) + np.abs(layer.bias)
            most = float(scaled.max())
            if max(most, sums.max()) >= 2.0**127:  # and a factor of 2 for rounding
                return True
        return False

    fits = [e for e in range(-126, 127) if not overflows(2.0**e)]
    return f"0x1p{fits[-1]}f" if fits else "0.0f"


def _floats(values: np.ndarray) -> Iterable[str]:
    """Nine digits identify every float32."""
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
