"""What a traced or compiled program contains, and where."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
from jax.extend import core


def equations(jaxpr: Any, *, in_cond: bool = False) -> Iterator[tuple[Any, bool]]:
    """Every equation of a jaxpr, nested ones too, and whether it lies in a branch of a `cond`."""
    for eqn in jaxpr.eqns:
        yield eqn, in_cond
        for sub in jax.tree.leaves(
            list(eqn.params.values()),
            is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr),
        ):
            inner = sub.jaxpr if isinstance(sub, core.ClosedJaxpr) else sub
            if isinstance(inner, core.Jaxpr):
                yield from equations(inner, in_cond=in_cond or eqn.primitive.name == "cond")


def places(f: Callable[..., Any], *args: Any, names: tuple[str, ...]) -> set[bool]:
    """{True} when the named primitives occur in f only inside of `cond`, {False} only outside."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    return {inside for eqn, inside in equations(jaxpr) if eqn.primitive.name in names}


def unconditional(hlo: str) -> str:
    """The lines of a compiled program that run at every call: whatever the entry computation
    reaches other than through the branches of a conditional."""
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in hlo.splitlines():
        opening = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if opening and not line.startswith(" "):
            name = opening[2]
            bodies[name] = []
            entry = name if opening[1] else entry
        elif name:
            bodies[name].append(line)
    reached, todo = set(), [entry]
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached.add(name)
        for line in bodies[name]:
            if " conditional(" not in line:
                called = r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)"
                todo += [other for other in re.findall(called, line) if other in bodies]
    return "\n".join(line for name in sorted(reached) for line in bodies[name])


def largest_array(hlo: str) -> int:
    """Elements of the largest array that any instruction of a compiled program produces."""
    sizes = [1]
    for shape in re.findall(r"\b(?:pred|[suf]\d+|bf16)\[([\d,]+)\]", hlo):
        size = 1
        for axis in shape.split(","):
            size *= int(axis)
        sizes.append(size)
    return max(sizes)


# Tests compile many small programs and run each a few times: do not optimise their machine code.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
