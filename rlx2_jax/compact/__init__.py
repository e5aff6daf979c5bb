"""Live-links execution: networks whose cost in time and memory follows their number of links."""

from rlx2_jax.compact.evolution import evolve, remap
from rlx2_jax.compact.layout import (
    Compact,
    Index,
    Spec,
    from_masked,
    group_lanes,
    spec_of,
    to_masked,
    validate,
)
from rlx2_jax.compact.native import execution
from rlx2_jax.compact.ops import Probe, growth_inputs, make_probe, mlp

__all__ = [
    "Compact",
    "Index",
    "Probe",
    "Spec",
    "evolve",
    "execution",
    "from_masked",
    "group_lanes",
    "growth_inputs",
    "make_probe",
    "mlp",
    "remap",
    "spec_of",
    "to_masked",
    "validate",
]
