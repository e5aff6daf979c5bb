"""Selects the instruction set of the kernels."""

from rlx2_jax.kernels import native


def select_isa(name: str) -> str:
    """Selects an instruction set, limited to the best one of this CPU; returns the selected one."""
    return native.ISAS[native.load().Rlx2SelectIsa(native.ISAS.index(name))]
