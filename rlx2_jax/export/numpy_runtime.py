"""Runs an exported policy with only NumPy. Copy this file next to the .npz:

act = load("policy.npz")
action = act(observation)  # [obs] or [..., obs] -> [act] or [..., act], in [-1, 1]

Finite observations give finite actions; NaN observations may give NaN actions.
"""

import hashlib

import numpy as np


def load(path):
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        digest, hashed = data.pop("digest"), hashlib.sha256()
    except Exception as error:
        raise ValueError(f"{path} is not a policy file: {error}") from error
    for name in sorted(data):
        hashed.update(f"{name} {data[name].dtype.str} {data[name].shape}".encode())
        hashed.update(data[name].tobytes())
    if digest.tobytes() != hashed.digest():
        raise ValueError(f"{path} is damaged: its contents do not match their checksum")
    if data.get("version", np.array([1])).tolist() not in ([1], [2]):
        raise ValueError(f"{path} has a newer format: use the runtime that was written with it")
    size, *units = data["sizes"].tolist()
    program, codes = [], data.get("ops", ([0, 1] * len(units))[:-1])

    def cut(name, count):
        part, data[name] = data[name][:count], data[name][count:]
        return part

    for code in codes:
        arrays = ()
        if code == 0:
            size = units.pop(0)
            lengths = cut("lengths", size)
            row = np.repeat(np.arange(len(lengths)), lengths)
            arrays = (row, cut("cols", len(row)), cut("values", len(row)), cut("bias", size))
        elif code in (2, 3):
            arrays = [cut("norms", n) for n in (size, size, 1)[: int(code)]]
        program.append((OPS[int(code)], arrays))
    most = np.finfo(np.float32).max

    def one(x):
        x, saved = np.clip(x, -most, most), []
        for op, arrays in program:
            x = np.clip(op(x, saved, *arrays), -most, most)  # prevents infinite sums
        return np.tanh(x).astype(np.float32)

    return lambda obs: np.apply_along_axis(one, -1, np.asarray(obs, np.float64))


def linear(x, saved, row, cols, values, bias):
    return np.bincount(row, values * x[cols], len(bias)) + bias


def relu(x, saved):
    return np.maximum(x, 0)


def normalize(x, saved, mean, scale):
    return (x - mean) * scale


def layer_norm(x, saved, scale, bias, epsilon):
    x = x - x.mean()
    return x / np.sqrt(np.mean(x * x) + epsilon) * scale + bias


def save(x, saved):
    saved.append(x)
    return x


def add_saved(x, saved):
    return x + saved.pop()


OPS = (linear, relu, normalize, layer_norm, save, add_saved)  # by the codes in the file
