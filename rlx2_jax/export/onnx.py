"""A policy as an ONNX model, input `obs` [batch, obs], output `action` [batch, act] in [-1, 1].

Weights are dense, with zeros for absent links: every ONNX runtime is fast at dense products, and
few support sparse initializers. A pruned policy gives a smaller dense model. Sums are plain
float32: observations near 1e38 (with layer normalization: 1e18) may overflow and give NaN actions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlx2_jax.export.linear import Linear
from rlx2_jax.export.op import Op
from rlx2_jax.export.ops import AddSaved, LayerNorm, Normalize, Relu, Save
from rlx2_jax.export.policy import SparsePolicy

OPSET = 17
IR_VERSION = 8  # the one of the opset: older runtimes reject newer versions
INSTALL = "pip install 'rlx2_jax[export]'"


class _Graph:
    """Nodes and constants of a model under construction; `x` names the current vector."""

    def __init__(self, onnx: Any):
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.saved: list[str] = []
        self.x = "obs"

    def add(
        self, kind: str, *inputs: np.ndarray | str, output: str | None = None, **attributes: Any
    ) -> None:
        """x = kind(x, *inputs); arrays become constants."""
        names = [self.x]
        for given in inputs:
            names.append(given if isinstance(given, str) else f"w{len(self.weights)}")
            if not isinstance(given, str):
                self.weights.append(self._onnx.numpy_helper.from_array(given, names[-1]))
        self.x = output or f"x{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, names, [self.x], **attributes))


def _normalize(graph: _Graph, op: Normalize) -> None:
    graph.add("Sub", op.mean)
    graph.add("Mul", op.scale)


_OPS: dict[type[Op], Callable[[_Graph, Any], None]] = {
    Linear: lambda graph, op: graph.add("Gemm", op.dense(), op.bias, transB=1),
    Relu: lambda graph, op: graph.add("Relu"),
    Normalize: _normalize,
    LayerNorm: lambda graph, op: graph.add(
        "LayerNormalization", op.scale, op.bias, axis=-1, epsilon=float(op.epsilon)
    ),
    Save: lambda graph, op: graph.saved.append(graph.x),
    AddSaved: lambda graph, op: graph.add("Add", graph.saved.pop()),
}


def model(policy: SparsePolicy) -> Any:
    """The checked `onnx.ModelProto` of a policy."""
    onnx = _import("onnx")
    helper, body = onnx.helper, _Graph(onnx)
    for op in policy.ops:
        _OPS[type(op)](body, op)
    body.add("Tanh", output="action")
    value = lambda name, size: helper.make_tensor_value_info(  # noqa: E731
        name, onnx.TensorProto.FLOAT, ["batch", size]
    )
    graph = helper.make_graph(
        body.nodes,
        "policy",
        [value("obs", policy.obs_dim)],
        [value("action", policy.action_dim)],
        body.weights,
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
    """An ONNX Runtime session on the CPU, for a file or its contents."""
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
    """Raises ImportError with install advice if a package is missing."""
    for package in ("onnx", "onnxruntime"):
        _import(package)
