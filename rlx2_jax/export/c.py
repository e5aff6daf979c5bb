"""A policy as one C99 file: constant arrays and one function, nothing else.

No allocation, no state, no library: the only header is <stdint.h>, which freestanding compilers
have too. tanh is computed in the file itself, to 2e-7 of the true value over all floats (measured;
the tests hold it to 1e-6): one halving, the [7/6] continued fraction, one doubling.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rlx2_jax.export.npz import unsigned
from rlx2_jax.export.policy import SparsePolicy
from rlx2_jax.export.quantize import quantize

_LONG = 8  # links per row from which on two sums pay

_HEAD = """\
/* A sparse {kind} policy, {sizes}: {links} links, {form}.
 *
 *     void {name}_act(const float *obs, float *action);
 *
 * obs: {obs_dim} floats, finite. action: {action_dim} floats in [-1, 1].
 * Reentrant, no allocation.{scaling}
 *
 * Compile: cc -std=c99 -O2 -c {name}.c
 * Constant data: {data} bytes. Stack: about {stack} bytes.{quantised}
 */
#include <stdint.h>

void {name}_act(const float *obs, float *action);
"""

_SCALING = """
 *
 *     void {name}_scale(const float *action, float *scaled);
 *
 * takes actions from [-1, 1] to the bounds of the task."""

_QUANTISED = """
 * Weights are 8-bit integers with one scale per unit; biases and activations are float."""

RELU = """
/* max(x, 0) without a branch, which half of the units would mispredict: a negative number has its
 * first bit set. */
static float {name}_relu(float x)
{{
    union {{ float value; uint32_t bits; }} u;
    u.value = x;
    u.bits &= (u.bits >> 31) - 1u;
    return u.value;
}}
"""

TANH = """
/* tanh to 2e-7: with t = tanh(x/2) as a continued fraction, tanh(x) = 2t / (1 + t^2). */
static float {name}_tanh(float x)
{{
    const float h = 0.5f * x, y = h * h;
    float t;
    if (x > 9.0f) return 1.0f;
    if (x < -9.0f) return -1.0f;
    t = h * (135135.0f + y * (17325.0f + y * (378.0f + y)))
        / (135135.0f + y * (62370.0f + y * (3150.0f + y * 28.0f)));
    return 2.0f * t / (1.0f + t * t);
}}
"""

_LAYER = """\
    {{ /* {inputs} -> {outputs} */
        const {index} *c = {name}_cols{i};
        const {weight} *w = {name}_values{i};
        for (r = 0; r < {outputs}; r++) {{
            float sum = {start};
{loop}{rescale}
            {y}[r] = {activation};
        }}
    }}
"""

_SHORT_ROWS = """\
            for (k = {name}_links{i}[r]; k > 0; k--) sum += {cast}*w++ * {x}[*c++];"""

# Two sums at a time: one alone waits for each addition to end.
_LONG_ROWS = """\
            float odd = 0.0f;
            for (k = {name}_links{i}[r]; k > 1; k -= 2) {{
                sum += {cast}w[0] * {x}[c[0]];
                odd += {cast}w[1] * {x}[c[1]];
                w += 2;
                c += 2;
            }}
            if (k > 0) sum += {cast}*w++ * {x}[*c++];
            sum += odd;"""

_SCALE = """
void {name}_scale(const float *action, float *scaled);
void {name}_scale(const float *action, float *scaled)
{{
    uint32_t r;
    for (r = 0; r < {action_dim}; r++)
        scaled[r] = {name}_centre[r] + {name}_half[r] * action[r];
}}
"""


class CFile(NamedTuple):
    """A C file's text, and the bytes of its constant data: what the device holds of it."""

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


def source(policy: SparsePolicy, name: str = "policy", *, int8: bool = False) -> CFile:
    """The C file of a policy, whose function is `<name>_act`.

    Args:
      int8: weights as 8-bit integers (see `quantize`) instead of float.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"name={name!r}: use a C identifier, letters, digits and underscores")
    arrays = Arrays(name)
    coded = quantize(policy) if int8 else ()
    body = []
    for i, layer in enumerate(policy.layers):
        last = i + 1 == len(policy.layers)
        lengths = layer.lengths
        arrays.add(f"links{i}", lengths.astype(unsigned(lengths.max())))
        index = arrays.add(f"cols{i}", layer.cols.astype(unsigned(layer.inputs - 1)))
        arrays.add(f"bias{i}", layer.bias)
        bias, rescale = f"{name}_bias{i}[r]", ""
        if int8:
            arrays.add(f"scales{i}", coded[i].scales)
            rescale = f"\n            sum = sum * {name}_scales{i}[r] + {bias};"
        weight = arrays.add(f"values{i}", coded[i].values if int8 else layer.values)
        fields = {"name": name, "i": i, "x": f"h{i - 1}" if i else "obs"}
        loop = _LONG_ROWS if lengths.mean() >= _LONG else _SHORT_ROWS
        body.append(
            _LAYER.format(
                **fields,
                inputs=layer.inputs,
                outputs=layer.outputs,
                index=index,
                weight=weight,
                start="0.0f" if int8 else bias,
                loop=loop.format(**fields, cast="(float)" if int8 else ""),
                rescale=rescale,
                y="action" if last else f"h{i}",
                activation=f"{name}_{'tanh' if last else 'relu'}(sum)",
            )
        )
    hidden = policy.sizes[1:-1]
    units = "".join(f"    float h{i}[{n}];\n" for i, n in enumerate(hidden))
    scale = ""
    if policy.low is not None and policy.high is not None:
        arrays.add("centre", (policy.high + policy.low) / 2)
        arrays.add("half", (policy.high - policy.low) / 2)
        scale = _SCALE.format(name=name, action_dim=policy.action_dim)
    head = _HEAD.format(
        kind=policy.kind.upper(),
        sizes="-".join(map(str, policy.sizes)),
        links=policy.links,
        form="int8" if int8 else "float",
        name=name,
        obs_dim=policy.obs_dim,
        action_dim=policy.action_dim,
        data=arrays.bytes,
        stack=4 * sum(hidden) + 64,
        quantised=_QUANTISED if int8 else "",
        scaling=_SCALING.format(name=name) if scale else "",
    )
    act = f"\nvoid {name}_act(const float *obs, float *action)\n{{\n{units}    uint32_t r, k;\n"
    definitions = "\n" + "\n".join(arrays.lines) + "\n"
    functions = ((RELU if hidden else "") + TANH).format(name=name)
    text = head + definitions + functions + act + "".join(body) + "}\n" + scale
    return CFile(text, arrays.bytes)


def _floats(values: np.ndarray) -> Iterable[str]:
    """Nine digits tell every float32 from its neighbours."""
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
