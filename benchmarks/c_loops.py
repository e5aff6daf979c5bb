"""Times C policies in a C loop, and generates the dense C baseline."""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlx2_jax.export import SparsePolicy, c, c_ops, c_templates, compiled

PLAIN = ("-std=c99", "-O2")
VECTORISED = ("-std=c99", "-O3", "-march=native", "-ffast-math")

_DENSE_LAYER = """\
    for (r = 0; r < {outputs}; r++) {{
        float sum = {name}_bias{i}[r];
        for (k = 0; k < {inputs}; k++) sum += {name}_values{i}[r * {inputs} + k] * {x}[k];
        {y}[r] = {name}_{activation}(sum);
    }}
"""

# A separate file, so the compiler cannot inline the policy.
_LOOP = """\
#include <stdint.h>
void {name}_act(const float *obs, float *action);
float loop(uint32_t calls, const float *obs);
float loop(uint32_t calls, const float *obs)
{{
    float action[{actions}], sum = 0.0f;
    uint32_t i;
    for (i = 0; i < calls; i++) {{
        {name}_act(obs + {inputs} * (i & 63), action);
        sum += action[0];
    }}
    return sum;
}}
"""


def dense_source(policy: SparsePolicy, name: str) -> c.CFile:
    """C file of the same network with dense loops."""
    arrays, body = c_ops.Arrays(name), ""
    for i, layer in enumerate(policy.layers):
        last = i + 1 == len(policy.layers)
        arrays.add(f"values{i}", layer.dense().ravel())
        arrays.add(f"bias{i}", layer.bias)
        body += _DENSE_LAYER.format(
            name=name,
            i=i,
            inputs=layer.inputs,
            outputs=layer.units,
            x=f"h{i - 1}" if i else "obs",
            y="action" if last else f"h{i}",
            activation="tanh" if last else "relu",
        )
    units = "".join(f"    float h{i}[{n}];\n" for i, n in enumerate(policy.sizes[1:-1]))
    signature = f"void {name}_act(const float *obs, float *action)"
    text = "\n".join(["#include <stdint.h>", f"{signature};", *arrays.lines])
    text += (c_templates.RELU + c_templates.TANH).format(name=name)
    return c.CFile(f"{text}\n{signature}\n{{\n{units}    uint32_t r, k;\n{body}}}\n", arrays.bytes)


class CLoop:
    """Times a C policy in a C loop and through ctypes."""

    def __init__(
        self, text: str, name: str, sizes: tuple[int, ...], folder: Path, flags: tuple[str, ...]
    ):
        """Compiles `text`, which defines `<name>_act` for a policy with layers of `sizes` units."""
        source, loop = folder / f"{name}.c", folder / f"{name}_loop.c"
        source.write_text(text)
        loop.write_text(_LOOP.format(name=name, inputs=sizes[0], actions=sizes[-1]))
        kind = "vectorised" if flags == VECTORISED else "plain"
        library = compiled.build([source, loop], folder / f"{name}-{kind}.so", flags)
        self.policy = compiled.CPolicy(library, name, sizes[0], sizes[-1])
        self._actions = sizes[-1]
        self._loop = ctypes.CDLL(str(library)).loop
        self._loop.argtypes, self._loop.restype = [ctypes.c_uint32, ctypes.c_void_p], ctypes.c_float
        self._act = getattr(ctypes.CDLL(str(library)), f"{name}_act")
        self._act.argtypes, self._act.restype = [ctypes.c_void_p, ctypes.c_void_p], None

    def loop(self, obs: np.ndarray) -> Callable[[int], float]:
        def measure(calls: int) -> float:
            start = time.perf_counter()
            self._loop(calls, obs.ctypes.data)
            return (time.perf_counter() - start) / calls

        return measure

    def through_ctypes(self, obs: np.ndarray) -> Callable[[int], float]:
        action = np.empty(self._actions, np.float32)
        one, out = obs[0].ctypes.data, action.ctypes.data
        return repeated(lambda i: self._act(one, out))


def repeated(call: Callable[[int], Any]) -> Callable[[int], float]:
    """Seconds per call from Python."""

    def measure(calls: int) -> float:
        start = time.perf_counter()
        for i in range(calls):
            call(i & 63)
        return (time.perf_counter() - start) / calls

    return measure
