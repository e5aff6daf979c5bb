"""The ledger of a run with the paper's methods and intervals."""

import dataclasses
import math
from typing import Any, NamedTuple

from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.sparse import accounting
from rlx2_jax.sparse.accounting import Iteration, Ledger, Networks

INTERVAL = 10_000  # Δ_m and Δ_b


class _Method(NamedTuple):
    gradient: bool = False  # growth by gradient; SET's random growth is free (table 6)
    robust: bool = False  # multi-step targets and dynamic-capacity buffer
    tiny: bool = False


METHODS = {
    "dense": _Method(),
    "tiny": _Method(tiny=True),
    "ss": _Method(),
    "set": _Method(),
    "rigl": _Method(gradient=True),
    "rlx2": _Method(gradient=True, robust=True),
    "rlx2-tiny": _Method(robust=True, tiny=True),  # topology ablations (table 3)
    "rlx2-ss": _Method(robust=True),
    "rlx2-set": _Method(robust=True),
}


def ledger(
    algo: str, networks: Networks, *, method: str = "rlx2", dense_n_step: int = 1, **changes: Any
) -> Ledger:
    """`accounting.ledger` with the paper's settings of a method.

    Args:
      networks: sparse; their sparsities are ignored by dense.
      changes: fields of `Iteration` that override the paper's.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    does = METHODS[method]
    if method == "dense":
        networks = dataclasses.replace(networks, actor_sparsity=0.0, critic_sparsity=0.0)
    mask_interval = INTERVAL if does.gradient else math.inf
    iteration = Iteration(
        n_step=NETWORK_USE[algo].n_step if does.robust else 1,
        mask_interval=(mask_interval, mask_interval),
        buffer_interval=INTERVAL if does.robust else math.inf,
    )
    return accounting.ledger(
        algo,
        dataclasses.replace(networks, tiny=does.tiny),
        dataclasses.replace(iteration, **changes),
        method=method,
        dense_n_step=dense_n_step,
    )
