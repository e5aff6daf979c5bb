"""Exports sparse policies to C, NumPy, ONNX and StableHLO.

    policy = export.from_actor(params, masks, "td3").pruned()
    c.source(policy).text        one C99 file, float or int8
    npz.save(policy, path)       with `numpy_runtime.py`, which needs NumPy alone
    onnx.save(policy, path)      any ONNX runtime
    stablehlo.save(policy, path) any XLA
    folder.write(out, policy, f)  a published policy; `folder.read` checks and reads it

A policy of any architecture is a program of the operations in `ops`. `npz.load` and
`stablehlo.load` read files back. Loading executes no code from a file and raises `PolicyFileError`
if a file is damaged.
"""

from rlx2_jax.export.build import from_actor
from rlx2_jax.export.linear import Linear
from rlx2_jax.export.policy import PolicyFileError, SparsePolicy, mlp

__all__ = ["Linear", "PolicyFileError", "SparsePolicy", "from_actor", "mlp"]
