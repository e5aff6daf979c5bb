"""A policy as one C99 file: constant arrays and one function.

No allocation, state or library; the only header is <stdint.h>, which freestanding compilers also
have. The file includes its own tanh, accurate to 2e-7 over all floats (measured; tests require
1e-6): one halving, the [7/6] continued fraction, one doubling.
"""

import re
from typing import NamedTuple

from rlx2_jax.export import c_range, c_templates
from rlx2_jax.export.c_ops import Writer
from rlx2_jax.export.policy import SparsePolicy, halves


class CFile(NamedTuple):
    """The text of a C file, and the size of its constant data on the device."""

    text: str
    data_bytes: int


def check_name(name: str) -> None:
    """Raises ValueError unless a name, which is also a file name, is a C identifier."""
    if not re.fullmatch(r"[A-Za-z_]\w{0,62}", name, re.ASCII):
        raise ValueError(
            f"name={name!r:.80}: use a C identifier, up to 63 letters, digits and underscores"
        )


def source(policy: SparsePolicy, name: str = "policy", *, int8: bool = False) -> CFile:
    """The C file of a policy, with a function `<name>_act`.

    Args:
      int8: weights as 8-bit integers (see `quantize`) instead of float.
    """
    check_name(name)
    writer = Writer(policy, name, int8=int8)
    arrays, scale = writer.arrays, ""
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
        stack=4 * sum(writer.buffers) + 64,
        quantised=c_templates.QUANTISED if int8 else "",
        scaling=c_templates.SCALING.format(name=name) if scale else "",
    )
    act = c_templates.ACT.format(
        name=name,
        units="".join(f"    float h{i}[{n}];\n" for i, n in enumerate(writer.buffers)),
        obs_dim=policy.obs_dim,
        most=c_range.safe_range(policy, int8=int8),
        plain="".join(writer.plain),
        watched="".join(writer.watched),
    )
    definitions = "\n" + "\n".join(arrays.lines) + "\n"
    functions = "".join(writer.functions).format(name=name)
    text = head + definitions + functions + act + scale
    return CFile(text, arrays.bytes)
