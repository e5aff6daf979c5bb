"""Methods of `sparsify`: initial masks and mask updates. One function each, in one table.

    METHODS[name](**options) -> Method

Instead of a name, you can pass a custom `Method` to `sparsify`.

| name | starts | mask updates |
|---|---|---|
| `rigl` | sparse | drop the smallest weights, grow where the gradient is largest |
| `set` | sparse | drop the smallest weights, grow at random |
| `snfs` | sparse | grow by the smoothed gradient; links move to layers where it is large |
| `dsr` | sparse | drop the smallest weights of all layers, regrow at random where links survive |
| `deepr` | sparse | replace links whose sign would change by random ones |
| `srigl` | sparse | `rigl` with constant fan-in |
| `static`, `ss` | sparse | none |
| `dense` | dense | none |
| `gmp` | dense | prune the smallest weights, gradually (cubic) |
| `magnitude`, `snip`, `grasp` | dense | prune once |
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from rlx2_jax.sparse import rules
from rlx2_jax.sparse.groups import Change, Step, evolve, prune, redistribute, refill
from rlx2_jax.sparse.masks import magnitude as size_of
from rlx2_jax.sparse.options import choose, known, rule, share, warn, whole
from rlx2_jax.sparse.structure import Pattern, Structure, parse
from rlx2_jax.sparse.topology import REGROW, update_fraction
from rlx2_jax.types import Array

SCOPES = ("layer", "global")


class Method(NamedTuple):
    """Initial masks and mask updates.

    Attributes:
      name: for messages.
      change: returns new masks of all sparse leaves, and which links keep their value (None: those
        live before and after); None for static masks.
      due: whether update `count` (from 1) is a mask update.
      begins: whether masks start `sparse` or `dense`.
      mask_step: `skip` the optimizer's step on a mask update, or change masks `after` it.
      structure: the mask pattern.
      smoothed: whether `change` reads the smoothed gradient.
      signs: whether `change` reads the initial signs.
      hessian: whether `change` reads the Hessian-gradient product.
      at: the update that changes masks, for one-shot methods.
      fraction: the largest fraction of links that a mask update moves, if known.
    """

    name: str
    change: Callable[[Step], Change] | None = None
    due: Callable[[Array], Array] | None = None
    begins: str = "sparse"
    mask_step: str = "skip"
    structure: Structure = Structure()
    smoothed: bool = False
    signs: bool = False
    hessian: bool = False
    at: Any = None
    fraction: Any = None


def rigl(
    *,
    interval: Any = None,
    t_end: Any = None,
    zeta0: Any = 0.5,
    grow: str | rules.GrowRule = "gradient",
    drop: str | rules.DropRule = "magnitude",
    regrow: str = "keep",
    structure: Pattern = None,
) -> Method:
    """RigL (Evci et al., 2020): moves a fraction ζ_t of the links of every layer every `interval`
    updates until `t_end` (Algorithm 1).

    Args:
      interval, t_end: Δ_m and T_end, in updates.
      zeta0: ζ_0, the initial fraction of links to move.
      grow, drop: names in `rules.GROW` and `rules.DROP`, or functions. Moments are None here.
      regrow: as in `topology.evolve`.
      structure: None, `fan_in`, "n:m" or a block size, see `structure`.
    """
    grow_by, drop_by = rule("grow", grow, rules.GROW), rule("drop", drop, rules.DROP)
    choose("regrow", regrow, REGROW)
    pattern = parse(structure)

    def change(step: Step, fraction: Array) -> Change:
        return evolve(step, pattern, grow_by, drop_by, fraction, regrow)

    method = _periodic("rigl", change, interval, t_end, zeta0)
    return method._replace(structure=pattern, smoothed=rules.needs_smoothed(grow_by))


def set_(*, grow: str | rules.GrowRule = "random", **options: Any) -> Method:
    """SET (Mocanu et al., 2018): `rigl` with random growth."""
    return rigl(grow=grow, **options)._replace(name="set")


def srigl(*, structure: Pattern = "fan_in", **options: Any) -> Method:
    """SRigL (Lasby et al., 2024): every output unit has the same number of links. Drops the
    smallest weights of the whole layer; every unit regrows as many as it lost. Unlike the paper,
    never removes units with few salient weights to give their links to others."""
    return rigl(structure=structure, **options)._replace(name="srigl")


def snfs(*, interval: Any = None, t_end: Any = None, zeta0: Any = 0.5) -> Method:
    """Sparse momentum (Dettmers and Zettlemoyer, 2019): each layer drops a fraction ζ_t of its
    smallest weights. Layers regrow links in proportion to the mean |smoothed gradient| of their
    remaining links, where the smoothed gradient is largest."""

    def change(step: Step, fraction: Array) -> Change:
        scores = [size_of(x) for x in step.smoothed or ()]

        def mean(kept: Array, score: Array) -> Array:
            return jnp.sum(jnp.where(kept, score, 0.0)) / jnp.maximum(kept.sum(), 1)

        return redistribute(step, fraction, scores, mean, across=False)

    return _periodic("snfs", change, interval, t_end, zeta0)._replace(smoothed=True)


def dsr(*, interval: Any = None, t_end: Any = None, zeta0: Any = 0.5) -> Method:
    """Dynamic sparse reparameterisation (Mostafa and Wang, 2019): drops the fraction ζ_t of
    smallest weights over all layers. Layers regrow at random, in proportion to their surviving
    links. The paper adapts a threshold to drop an approximately fixed number of links; here the
    number is exact and decays with ζ_t."""

    def change(step: Step, fraction: Array) -> Change:
        scores = [draw(step.key) for draw in step.uniform]
        survivors = lambda kept, score: kept.sum().astype(score.dtype)  # noqa: E731
        return redistribute(step, fraction, scores, survivors, across=True)

    return _periodic("dsr", change, interval, t_end, zeta0)


def deepr(*, interval: Any = 1) -> Method:
    """Deep rewiring (Bellec et al., 2018): every place has the sign of its initial weight. Links
    that the optimizer moves across zero are dropped, and as many grow from zero at random places.
    Add the paper's L1 penalty and noise to the wrapped optimizer."""
    whole("interval", interval)

    def change(step: Step) -> Change:
        kept = [
            mask & ~jnp.where(sign, weight < 0, weight > 0)
            for mask, sign, weight in zip(step.masks, step.signs, step.weights)
        ]
        draws = [draw(step.key) for draw in step.uniform]
        return list(map(refill, step.leaves, step.masks, kept, draws)), kept

    every = lambda count: count % interval == 0  # noqa: E731
    return Method("deepr", change, every, mask_step="after", signs=True)


def static(
    *, structure: Pattern = None, interval: Any = None, t_end: Any = None, zeta0: Any = 0.5
) -> Method:
    """Keeps the initial masks. Accepts `interval`, `t_end` and `zeta0` without effect, so that
    methods can be swapped by name."""
    del interval, t_end, zeta0
    return Method("static", structure=parse(structure))


def dense(**options: Any) -> Method:
    """Dense masks. Options as in `static`."""
    return static(**options)._replace(name="dense", begins="dense")


def gmp(
    *,
    interval: Any = None,
    t_end: Any = None,
    start: Any = 0,
    power: float = 3.0,
    scope: str = "layer",
    structure: Pattern = None,
) -> Method:
    """Gradual magnitude pruning (Zhu and Gupta, 2018): prunes the smallest weights every `interval`
    updates, from sparsity 0 at `start` to S at `t_end`.

        S_t = S (1 - (1 - (t - start) / (t_end - start))³)
    """
    whole("interval", interval)
    whole("t_end", t_end)
    if known(start, t_end) and not int(t_end) > int(start) >= 0:
        raise ValueError(f"start={start}: gmp needs a start in [0, t_end={t_end})")

    def done(count: Array) -> Array:
        t = (count - start) / jnp.asarray(t_end - start, jnp.float32)
        return 1.0 - (1.0 - jnp.clip(t, 0.0, 1.0)) ** power

    def due(count: Array) -> Array:
        return (count >= start) & (((count % interval == 0) & (count < t_end)) | (count == t_end))

    score = lambda step: [size_of(w) for w in step.weights]  # noqa: E731
    return _pruning("gmp", score, scope, structure, due, done)


def magnitude(*, at: Any = 1, scope: str = "layer", structure: Pattern = None) -> Method:
    """Prunes the smallest weights once, at update `at`."""
    score = lambda step: [size_of(w) for w in step.weights]  # noqa: E731
    return _once("magnitude", score, scope, structure, at)


def snip(*, at: Any = 1, scope: str = "global", structure: Pattern = None) -> Method:
    """SNIP (Lee et al., 2019): prunes the links with the smallest |θ ∂L/∂θ|, which change the loss
    least, once at update `at`."""
    score = lambda step: [size_of(w * g) for w, g in zip(step.weights, step.grads)]  # noqa: E731
    return _once("snip", score, scope, structure, at)


def grasp(*, at: Any = 1, scope: str = "global", structure: Pattern = None) -> Method:
    """GraSP (Wang et al., 2020): prunes the links with the largest -θ ⊙ (H g), whose removal
    reduces the gradient norm least, once at update `at`. `update` then needs the gradient function:
    `tx.update(grads, state, params, grad_fn=jax.grad(loss))`."""

    def score(step: Step) -> list[Array]:
        if step.hessian_gradient is None:
            raise ValueError(
                "grasp needs the gradient function: call update(grads, state, params, "
                "grad_fn=jax.grad(loss)), with the loss on the same batch"
            )
        return [w * h for w, h in zip(step.weights, step.hessian_gradient())]

    return _once("grasp", score, scope, structure, at)._replace(hessian=True)


METHODS: dict[str, Callable[..., Method]] = {
    "rigl": rigl,
    "set": set_,
    "snfs": snfs,
    "dsr": dsr,
    "deepr": deepr,
    "srigl": srigl,
    "static": static,
    "ss": static,
    "dense": dense,
    "gmp": gmp,
    "magnitude": magnitude,
    "snip": snip,
    "grasp": grasp,
}


def options_of(function: Callable[..., Method]) -> list[str]:
    """Names of the options of a method."""
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    more = any(p.kind is p.VAR_KEYWORD for p in parameters)
    base = METHODS["static" if function is METHODS["dense"] else "rigl"]
    return named + [name for name in options_of(base) if name not in named] if more else named


def _periodic(
    name: str, change: Callable[[Step, Array], Change], interval: Any, t_end: Any, zeta0: Any
) -> Method:
    whole("interval", interval)
    whole("t_end", t_end)
    share("zeta0", zeta0)
    if known(zeta0) and float(zeta0) == 0:
        return Method(name)
    warn(name, interval, t_end)

    def due(count: Array) -> Array:
        return (count % interval == 0) & (count < t_end)

    def at_fraction(step: Step) -> Change:
        return change(step, update_fraction(step.count, zeta0, t_end))

    return Method(name, at_fraction, due, fraction=zeta0)


def _pruning(
    name: str,
    score: Callable[[Step], Sequence[Array]],
    scope: str,
    structure: Pattern,
    due: Callable[[Array], Array],
    done: Callable[[Array], Array],
) -> Method:
    """`done`: the fraction of the final sparsity that is due at an update."""
    choose("scope", scope, SCOPES)
    pattern = parse(structure)
    if scope == "global" and pattern != Structure():
        raise ValueError(
            f"scope='global' does not support structure={structure!r}: use scope='layer'"
        )

    def change(step: Step) -> Change:
        return prune(step, pattern, score(step), done(step.count), scope == "global"), None

    return Method(name, change, due, "dense", structure=pattern)


def _once(
    name: str,
    score: Callable[[Step], Sequence[Array]],
    scope: str,
    structure: Pattern,
    at: Any,
) -> Method:
    whole("at", at)
    if structure is not None and scope == "global":
        scope = "layer"
    everything = lambda count: jnp.ones((), jnp.float32)  # noqa: E731
    due = lambda count: count == at  # noqa: E731
    return _pruning(name, score, scope, structure, due, everything)._replace(at=at)
