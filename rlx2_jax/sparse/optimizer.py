"""Sparse training of any network, as an optax transformation around its optimizer.

tx = sparsify(optax.adam(1e-3), 0.9, interval=100, t_end=10_000)
state = tx.init(params)
params = rlx2.mask(params, state)  # optional: the first update also does this
...
updates, state = tx.update(grads, state, params)  # grads: dense, from jax.grad
params = optax.apply_updates(params, updates)  # exactly zero off the mask
target = rlx2.mask(optax.incremental_update(params, target, tau), state)
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rlx2_jax.sparse import leaves as leaves_lib
from rlx2_jax.sparse import masks as masks_lib
from rlx2_jax.sparse import placement, seeds
from rlx2_jax.sparse.groups import initial
from rlx2_jax.sparse.inner import advance, initial_like, owners, reset, restored
from rlx2_jax.sparse.leaves import Choice, Leaf, Sparsity
from rlx2_jax.sparse.mask_update import (
    Inputs,
    advance_method_state,
    change_codes,
    init_method_state,
    kept_places,
    masked,
)
from rlx2_jax.sparse.methods import METHODS, Method, options_of
from rlx2_jax.sparse.options import axes as check_axes
from rlx2_jax.sparse.options import choose, known, warn_caller
from rlx2_jax.sparse.state import SparsifyState
from rlx2_jax.sparse.structure import Structure, local, placed_as
from rlx2_jax.types import Array, Params


def sparsify(
    tx: optax.GradientTransformation,
    sparsity: Sparsity,
    *,
    method: str | Method = "rigl",
    distribution: str = "erdos_renyi",
    init: str = "random",
    seed: int | Array | None = None,
    moments: str = "zero",
    mask_step: str | None = None,
    sparse: Choice | None = None,
    stacked: int | Mapping[str, int] | None = None,
    layouts: Mapping[str, str] | None = None,
    outermost: bool = True,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """Wraps `tx` for sparse training: it updates live links, and a method updates the masks.

    After `optax.apply_updates` the parameters are exactly zero off the mask, even if they were
    dense before the first update. `tx` sees masked gradients and parameters. Use `rlx2.mask` on
    target networks and averages.

    Args:
      tx: a complete optimizer, including the learning rate; its updates are applied unchanged.
      sparsity: of all sparse leaves together; or by path pattern, {"*/kernel": 0.9, "embed*": 0},
        where the first match counts; or one value per sparse leaf; or a function of path and array.
        Numbers may be traced.
      method: a name in `methods.METHODS`, by default RigL (Algorithm 1), or a `Method`.
      distribution: of the links among leaves, see `masks.layer_sparsities`. Members of stacked
        networks get equally many.
      init: initial masks: `random`, or `magnitude` for the largest weights.
      seed: an integer or a key (possibly traced), for initial masks and random growth. Default:
        derived from the initial parameters, so that runs and networks differ.
      moments: `zero` resets the optimizer's state of dropped and newly grown links to its initial
        value (zero in most optimizers), `keep` keeps it. State that does not have the parameters'
        shapes (Adafactor's) is always kept.
      mask_step: `skip` the optimizer's step on a mask update, or change masks `after` it; default:
        chosen by the method.
      sparse: overrides the rule of `leaves` for sparse leaves: patterns, or a predicate.
      stacked: number of leading axes that stack networks, if not recognized; one number, or by
        pattern. Every member keeps its exact number of links.
      layouts: axis letters by pattern, if not recognized: {"conv*": "oihw"}; i inputs, o outputs,
        m stacked members, others a window.
      outermost: False allows other transformations to change the updates afterwards; then call
        `rlx2.mask` after every update.
      options: of the method, such as `interval`, `t_end` and `zeta0`.

    >>> import jax, jax.numpy as jnp, optax
    >>> import rlx2_jax as rlx2
    >>> params = {"kernel": jnp.ones((20, 10)), "bias": jnp.zeros(10)}
    >>> tx = rlx2.sparsify(optax.adam(1e-3), 0.9, interval=100, t_end=10_000)
    >>> state = tx.init(params)
    >>> updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
    >>> params = optax.apply_updates(params, updates)
    >>> int((params["kernel"] != 0).sum())
    20

    In Flax:

    >>> import flax.linen as nn
    >>> from flax.training.train_state import TrainState
    >>> params = nn.Dense(8).init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    >>> train_state = TrainState.create(apply_fn=nn.Dense(8).apply, params=params, tx=tx)
    >>> train_state = train_state.apply_gradients(grads=params)
    >>> round(rlx2.sparsity(train_state.opt_state), 2)
    0.9
    >>> from flax import nnx
    >>> model = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    >>> optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    >>> grads = nnx.grad(lambda m: m(jnp.ones((1, 16))).sum())(model)
    >>> _ = optimizer.update(model, grads)
    >>> round(rlx2.sparsity(optimizer.opt_state), 2)
    0.9
    """
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise ValueError(f"tx={tx!r} is not an optax transformation: use optax.adam(1e-3), say")
    leaves_lib.check_sparsity(sparsity)
    choose("distribution", distribution, masks_lib.DISTRIBUTIONS)
    choose("init", init, masks_lib.INITS)
    choose("moments", moments, ("zero", "keep"))
    check_axes("stacked", stacked)
    seeds.check(seed)
    plan = _method(method, options)
    when_due = plan.mask_step if mask_step is None else mask_step
    choose("mask_step", when_due, ("skip", "after"))
    inner_tx = optax.with_extra_args_support(tx)
    choice = leaves_lib.patterns_of(sparsity) if sparse is None else sparse
    zero_moments = moments == "zero" and plan.change is not None

    def described(params: Params) -> list[Leaf]:
        leaves = leaves_lib.describe(params, choice, stacked, layouts)
        if leaves and not any(leaf.sparse for leaf in leaves):
            raise ValueError(_nothing_sparse(leaves, choice, stacked))
        for leaf in leaves:
            if leaf.sparse:
                plan.structure.check(leaf)
        for name, given in (("sparsity", sparsity), ("stacked", stacked), ("layouts", layouts)):
            leaves_lib.check_patterns(leaves, name, given)
        return leaves

    def links(leaves: Sequence[Leaf], arrays: Sequence[Array]) -> list[int | Array]:
        return leaves_lib.allocate(leaves, arrays, sparsity, distribution)

    def init_fn(params: Params) -> SparsifyState:
        flat, treedef = jax.tree.flatten(params)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in flat):
            raise ValueError("params has shapes, not arrays: use jax.eval_shape(tx.init, params)")
        leaves = described(params)
        chosen = [i for i, leaf in enumerate(leaves) if leaf.sparse]
        key = seeds.key(seed, leaves, params)
        masks: list[Any] = [jnp.ones(leaf.shape, bool) for leaf in leaves]
        if plan.begins == "sparse" and chosen:
            keys = jax.random.split(jax.random.fold_in(key, 0), len(chosen))
            counts = links(leaves, [flat[i] for i in chosen])
            _warn_if_none_moves(plan, [leaves[i] for i in chosen], counts)
            for i, subkey, count in zip(chosen, keys, counts):
                draw = jax.random.uniform(subkey, leaves[i].shape)
                score = jnp.abs(local(flat[i])) if init == "magnitude" else draw
                masks[i] = initial(leaves[i], plan.structure, score, count)
        masks = [placed_as(m, p) for m, p in zip(masks, flat)]
        current = [jnp.where(m, p, jnp.zeros_like(p)) for m, p in zip(masks, flat)]
        inner = inner_tx.init(jax.tree.unflatten(treedef, current))
        if zero_moments:
            _check_inner(inner, params)
        return SparsifyState(
            inner=inner,
            codes=jax.tree.unflatten(treedef, [m.astype(jnp.uint8) for m in masks]),
            count=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(key),
            selected=jnp.array([leaf.sparse for leaf in leaves], bool),
            extra=init_method_state(plan, leaves, params, key),
        )

    def update_fn(
        updates: Params,
        state: Any,
        params: Params | None = None,
        *,
        grad_fn: Callable[[Params], Params] | None = None,
        **extra: Any,
    ) -> tuple[Params, SparsifyState]:
        if outermost:
            placement.check()
        if params is None:
            raise ValueError("sparsify needs the parameters: call update(grads, state, params)")
        masks_lib.check_same_tree(params, state.codes, "params", "masks")
        masks_lib.check_same_tree(params, updates, "params", "grads")
        leaves = described(params)
        codes, count = state.codes, jnp.asarray(optax.safe_increment(state.count))
        method_state = advance_method_state(plan, state.extra, leaves, updates)
        inputs = Inputs(
            plan, leaves, params, updates, codes, count, state.key, method_state, links, grad_fn
        )

        def problem(codes: Params) -> tuple[Callable[..., Any], tuple[Params, Any, Params]]:
            """The optimizer's update and its arguments, masked by `codes`."""
            live = partial(masked, leaves, codes)
            more = _masked_arguments(extra, live)
            return partial(inner_tx.update, **more), (live(updates), state.inner, live(params))

        def of_state(keep: Sequence[Array | None]) -> Callable[[int], Array | None]:
            """The places of leaf i of the optimizer's state that keep their value."""
            if not zero_moments:
                return lambda i: None
            numbers = owners(state.inner, params)
            return lambda i: keep[numbers[i]] if numbers[i] >= 0 else None

        def start() -> list[Array]:
            """The initial value of each leaf of the optimizer's state, for links of value zero."""
            if not zero_moments:
                return jax.tree.leaves(state.inner)
            return initial_like(state.inner, inner_tx.init(jax.tree.map(jnp.zeros_like, params)))

        evolves = plan.due is not None and any(leaf.sparse for leaf in leaves)
        due: Any = plan.due(count) if evolves and plan.due else False
        if known(due) and not due:
            optimizer, arguments = problem(codes)
            step, inner = optimizer(*arguments)
            keep = kept_places(leaves, codes, False)
        elif when_due == "skip":  # a mask update ignores the optimizer's step
            codes = change_codes(inputs, due, params)
            keep = kept_places(leaves, codes, due)
            old = jax.tree.leaves(state.inner)
            replace = restored(old, start(), due, of_state(keep))
            step, inner = advance(*problem(codes), replace)
            step = jax.tree.map(lambda u: jnp.where(due, jnp.zeros_like(u), u), step)
        else:
            optimizer, arguments = problem(codes)
            step, inner = optimizer(*arguments)
            codes = change_codes(inputs, due, optax.apply_updates(arguments[2], step))
            keep = kept_places(leaves, codes, due)
            kept = of_state([None if k is None else k | ~due for k in keep])
            values, inner_tree = jax.tree.flatten(inner)
            triples = zip(values, start(), map(kept, range(len(values))))
            inner = inner_tree.unflatten([reset(*triple) for triple in triples])
        new_state = SparsifyState(inner, codes, count, state.key, state.selected, method_state)
        return _onto(keep, step, params), new_state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _onto(keep: Sequence[Array | None], step: Params, params: Params) -> Params:
    """`step` on links that keep their value; elsewhere the step to exactly zero."""
    steps, treedef = jax.tree.flatten(step)
    triples = zip(steps, keep, jax.tree.leaves(params))
    return treedef.unflatten([u if k is None else jnp.where(k, u, -p) for u, k, p in triples])


def _masked_arguments(extra: dict[str, Any], live: Callable[[Params], Params]) -> dict[str, Any]:
    """Masks the extra arguments of line searches."""
    if "grad" in extra:
        extra = {**extra, "grad": live(extra["grad"])}
    if "value_fn" in extra:
        value_fn = extra["value_fn"]
        extra = {**extra, "value_fn": lambda params, *a, **k: value_fn(live(params), *a, **k)}
    return extra


def _method(method: str | Method, options: dict[str, Any]) -> Method:
    if isinstance(method, Method):
        if options:
            raise ValueError(f"give the options {sorted(options)} to the method, not to sparsify")
        return method
    choose("method", method, tuple(METHODS))
    function = METHODS[method]
    try:
        inspect.signature(function).bind(**options)
        return function(**options)
    except TypeError as error:
        takes = ", ".join(options_of(function))
        raise ValueError(f"method {method!r}: {error}; its options are {takes}") from None


def _nothing_sparse(leaves: Sequence[Leaf], choice: Any, stacked: Any) -> str:
    shown = ", ".join(f"{leaf.path or '(unnamed)'} {leaf.shape}" for leaf in leaves[:8])
    by = "chosen by" if callable(choice) else "float arrays of two or more axes that match"
    rule = leaves_lib.RULE if choice is None else f"those {by} {choice!r}"
    if stacked is not None:
        rule += f", without the axes of stacked={stacked!r}"
    return (
        f"no leaf of params is sparse: {shown}. Sparse leaves are {rule}. Choose others with "
        "`sparse`, use the plain optimizer for trees without weights, and put sparsify around "
        "optax.flatten"
    )


def _warn_if_none_moves(plan: Method, leaves: Sequence[Leaf], counts: Sequence[Any]) -> None:
    """Warns if the number of links to move always rounds down to zero."""
    if plan.fraction is None or not known(plan.fraction, *counts):
        return
    groups = [plan.structure.links(leaf, n) for leaf, n in zip(leaves, counts)]
    most = sum(groups) if plan.structure == Structure() else max(groups)  # DSR ranks all layers
    if most * (1 + 2.0**-22) * plan.fraction < 1:
        warn_caller(
            f"{plan.name} never moves a link: zeta0={plan.fraction} of {most} links is less than "
            "one link"
        )


def _check_inner(inner: Any, params: Params) -> None:
    """Raises if the optimizer's state holds all parameters in one vector."""
    total = sum(jnp.size(x) for x in jax.tree.leaves(params))
    for owner, value in zip(owners(inner, params), jax.tree.leaves(inner)):
        if owner < 0 and jnp.shape(value) == (total,) and total > 1:
            raise ValueError(
                "sparsify cannot tell which part of the optimizer's state belongs to which "
                "parameter (optax.flatten hides it): remove flatten, or use moments='keep'"
            )
