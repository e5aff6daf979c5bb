"""Runs an exported policy with NumPy alone. Copy this file beside the .npz:

act = load("policy.npz")
action = act(observation)  # [obs] or [..., obs] -> [act] or [..., act], in [-1, 1]
"""

import hashlib

import numpy as np


def load(path):
    with np.load(path, allow_pickle=False) as file:
        data = {name: file[name] for name in file.files}
    digest, found = data.pop("digest"), hashlib.sha256()
    for name in sorted(data):
        found.update(f"{name} {data[name].dtype.str} {data[name].shape}".encode())
        found.update(data[name].tobytes())
    if digest.tobytes() != found.digest():
        raise ValueError(f"{path} is damaged: its contents do not have their checksum")
    sizes, layers, unit, link = data["sizes"], [], 0, 0
    for size in sizes[1:]:
        row = np.repeat(np.arange(size), data["lengths"][unit : unit + size])
        links = slice(link, link + len(row))
        layers.append(
            (row, data["cols"][links], data["values"][links], data["bias"][unit : unit + size])
        )
        unit, link = unit + size, link + len(row)

    def one(x):
        for i, (row, cols, values, bias) in enumerate(layers):
            x = np.bincount(row, values * x[cols], len(bias)) + bias
            x = np.maximum(x, 0) if i + 1 < len(layers) else np.tanh(x)
        return x.astype(np.float32)

    return lambda obs: np.apply_along_axis(one, -1, np.asarray(obs, np.float64))
