"""A policy as an ONNX model, input `obs` [batch, obs], output `action` [batch, act] in [-1, 1].

Weights are dense, zeros where there is no link: that is what every ONNX runtime is fast at, and
sparse initialisers are not widely read. A pruned policy is a smaller dense one. Sums are plain
float32: observations near 1e38 may overflow, and actions are then NaN.
"""

from pathlib import Path
from typing import Any

import numpy as np

from rlx2_jax.export.policy import SparsePolicy

OPSET = 17
IR_VERSION = 8  # what came with the opset: older runtimes refuse newer ones
INSTALL = "pip install 'rlx2_jax[export]'"


def model(policy: SparsePolicy) -> Any:
    """The checked `onnx.ModelProto` of a policy."""
    onnx = _import("onnx")
    helper, array = onnx.helper, onnx.numpy_helper.from_array
    nodes, weights, x = [], [], "obs"
    for i, layer in enumerate(policy.layers):
        weights += [array(layer.dense(), f"weight{i}"), array(layer.bias, f"bias{i}")]
        inputs = [x, f"weight{i}", f"bias{i}"]
        nodes.append(helper.make_node("Gemm", inputs, [f"sum{i}"], f"layer{i}", transB=1))
        last = i + 1 == len(policy.layers)
        x = "action" if last else f"hidden{i}"
        nodes.append(helper.make_node("Tanh" if last else "Relu", [f"sum{i}"], [x]))
    value = lambda name, size: helper.make_tensor_value_info(  # noqa: E731
        name, onnx.TensorProto.FLOAT, ["batch", size]
    )
    graph = helper.make_graph(
        nodes,
        "policy",
        [value("obs", policy.obs_dim)],
        [value("action", policy.action_dim)],
        weights,
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="rlx2_jax"
    )
    made.ir_version = IR_VERSION
    onnx.checker.check_model(made, full_check=True)
    return made


def save(policy: SparsePolicy, path: Path) -> None:
    """Writes the model."""
    Path(path).write_bytes(model(policy).SerializeToString())


def session(source: Path | bytes, threads: int = 1) -> Any:
    """An ONNX Runtime session on the CPU, of a file or of its contents."""
    runtime = _import("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    given = source if isinstance(source, bytes) else str(source)
    return runtime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def run(path: Path, obs: np.ndarray) -> np.ndarray:
    """Actions of the model in ONNX Runtime: [batch, obs] -> [batch, act]."""
    return session(path).run(None, {"obs": np.asarray(obs, np.float32)})[0]


def _import(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"ONNX export needs the package {package}: {INSTALL}") from error


def check_installed() -> None:
    """Raises ImportError with advice where a package is missing."""
    for package in ("onnx", "onnxruntime"):
        _import(package)
