"""Runs an exported policy with NumPy alone. Copy this file beside the .npz:

act = load("policy.npz")
action = act(observation)  # [obs] or [..., obs] -> [act] or [..., act], in [-1, 1]

Finite observations give finite actions; one that is not a number may give actions that are not.
"""

import hashlib

import numpy as np


def load(path):
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        digest, found = data.pop("digest"), hashlib.sha256()
    except Exception as error:
        raise ValueError(f"{path} is not a policy file: {error}") from error
    for name in sorted(data):
        found.update(f"{name} {data[name].dtype.str} {data[name].shape}".encode())
        found.update(data[name].tobytes())
    if digest.tobytes() != found.digest():
        raise ValueError(f"{path} is damaged: its contents do not have their checksum")
    layers, rest = [], [data[name] for name in ("lengths", "bias", "cols", "values")]
    for size in data["sizes"][1:]:
        lengths, bias = rest[0][:size], rest[1][:size]
        row = np.repeat(np.arange(len(lengths)), lengths)
        layers.append((row, rest[2][: len(row)], rest[3][: len(row)], bias))
        rest = [x[n:] for x, n in zip(rest, (size, size, len(row), len(row)))]
    most = np.finfo(np.float32).max

    def one(x):
        for i, (row, cols, values, bias) in enumerate(layers):
            x = np.clip(x, -most, most)  # so that no sum is infinite
            x = np.bincount(row, values * x[cols], len(bias)) + bias
            x = np.maximum(x, 0) if i + 1 < len(layers) else np.tanh(x)
        return x.astype(np.float32)

    return lambda obs: np.apply_along_axis(one, -1, np.asarray(obs, np.float64))
