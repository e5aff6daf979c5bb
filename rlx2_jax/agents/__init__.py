"""Algorithms as pure functions of one lane: `init`, `act`, `update`."""

from rlx2_jax.agents import bc, droq, sac, td3
from rlx2_jax.agents.algorithm import Algorithm as Algorithm
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.options import inherit_defaults

_BUILT_IN = (td3.ALGORITHM, sac.ALGORITHM, droq.ALGORITHM, bc.ALGORITHM)
ALGORITHMS: dict[str, Algorithm] = {x.name: x for x in _BUILT_IN}


def register_algorithm(algorithm: Algorithm, *, like: str) -> None:
    """Adds an algorithm, so that configurations and `--algo` can name it.

    Args:
      like: the algorithm from which it inherits algorithm-dependent defaults.
    """
    if ALGORITHMS.get(algorithm.name, algorithm) is not algorithm:
        raise ValueError(f"there is already an algorithm {algorithm.name!r}: choose another name")
    if like not in ALGORITHMS:
        raise ValueError(f"like={like!r}: use one of {tuple(ALGORITHMS)}")
    NETWORK_USE[algorithm.name] = algorithm.networks
    inherit_defaults(algorithm.name, like)
    ALGORITHMS[algorithm.name] = algorithm


register_algorithm(droq.ALGORITHM, like="sac")
