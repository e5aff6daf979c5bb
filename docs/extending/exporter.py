"""An exporter: a policy as JSON."""

import json

import numpy as np

import rlx2_jax as rlx2
from rlx2_jax import export
from rlx2_jax.export.exporters import Written


def write_json(policy, path):
    """Writes the live links of every layer; returns a function that runs the file."""
    layers = [
        {
            "rows": layer.rows.tolist(),
            "cols": layer.cols.tolist(),
            "values": layer.values.astype(float).tolist(),
            "bias": layer.bias.astype(float).tolist(),
        }
        for layer in policy.layers
    ]
    path.write_text(json.dumps({"inputs": policy.obs_dim, "layers": layers}))
    return Written(lambda obs: run(path, obs))


def run(path, obs):
    """Runs a written MLP: f32[n, obs] -> f32[n, act]."""
    x = np.asarray(obs, np.float64)
    layers = json.loads(path.read_text())["layers"]
    for i, layer in enumerate(layers):
        y = np.tile(np.array(layer["bias"]), (len(x), 1))
        for row, col, value in zip(layer["rows"], layer["cols"], layer["values"]):
            y[:, row] += value * x[:, col]
        x = np.maximum(y, 0) if i + 1 < len(layers) else np.tanh(y)
    return x.astype(np.float32)


rlx2.register_exporter("json", write_json)

if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    weight, live = np.array([[0.5, 0.0], [0.0, -2.0]]), np.array([[True, False], [False, True]])
    layers = [export.Linear.of(weight, live, np.zeros(2)) for _ in range(2)]
    policy = export.SparsePolicy("td3", export.mlp(layers))
    obs = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        write_json(policy, path)
        print("largest difference:", np.abs(run(path, obs) - policy.act(obs)).max())
