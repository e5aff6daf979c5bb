"""Inspection of traced and compiled programs."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
from jax.extend import core


def equations(jaxpr: Any, *, in_cond: bool = False) -> Iterator[tuple[Any, bool]]:
    """Every equation of a jaxpr, nested ones too, and whether it lies in a branch: of a `cond`, or
    in a loop of one turn or none."""
    for eqn in jaxpr.eqns:
        branch = is_branch(eqn)
        yield eqn, in_cond or (branch and eqn.primitive.name == "while")
        for sub in jax.tree.leaves(
            list(eqn.params.values()),
            is_leaf=lambda x: isinstance(x, core.Jaxpr | core.ClosedJaxpr),
        ):
            inner = sub.jaxpr if isinstance(sub, core.ClosedJaxpr) else sub
            if isinstance(inner, core.Jaxpr):
                yield from equations(inner, in_cond=in_cond or branch)


def is_branch(eqn: Any) -> bool:
    """A `cond`, or a `while` as `branch.when` makes it: it goes on while a bool of its carry, one
    for all lanes, is true, and its body makes that false."""
    if eqn.primitive.name != "while":
        return eqn.primitive.name == "cond"
    predicate = eqn.params["cond_jaxpr"].jaxpr
    (going,) = predicate.outvars
    if predicate.eqns or going not in predicate.invars or going.aval.shape != ():
        return False
    body = eqn.params["body_jaxpr"].jaxpr
    after = body.outvars[predicate.invars.index(going)]
    made = [e for e in body.eqns if after in e.outvars]
    return not isinstance(after, core.Var) or all(
        e.primitive.name == "broadcast_in_dim" and not e.invars[0].val for e in made
    )


def places(f: Callable[..., Any], *args: Any, names: tuple[str, ...]) -> set[bool]:
    """{True} when the named primitives occur in f only inside of `cond`, {False} only outside."""
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    return {inside for eqn, inside in equations(jaxpr) if eqn.primitive.name in names}


def unconditional(hlo: str) -> str:
    """The lines of a compiled program that run at every call: whatever the entry computation
    reaches other than through a conditional, or a loop that goes on while a bool of its carry is
    true (`branch.when`)."""
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
            if " conditional(" not in line and not _is_one_turn(line, bodies):
                called = r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)"
                todo += [other for other in re.findall(called, line) if other in bodies]
    return "\n".join(line for name in sorted(reached) for line in bodies[name])


def _is_one_turn(line: str, bodies: dict[str, list[str]]) -> bool:
    condition = re.search(r" while\(.*condition=%?([\w.\-]+)", line)
    if condition is None:
        return False
    own = [x for x in bodies[condition[1]] if " = " in x]
    return len(own) == 2 and "pred[] get-tuple-element(" in own[1]


def largest_array(hlo: str) -> int:
    """Elements of the largest array that any instruction of a compiled program produces."""
    sizes = [1]
    for shape in re.findall(r"\b(?:pred|[suf]\d+|bf16)\[([\d,]+)\]", hlo):
        size = 1
        for axis in shape.split(","):
            size *= int(axis)
        sizes.append(size)
    return max(sizes)


# Tests compile many small programs and run each a few times: do not optimize their machine code.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
