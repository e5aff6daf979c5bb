"""The state of one Gymnasium task as plain arrays, to continue it bit for bit in another process.

Supports Gymnasium's MuJoCo tasks, its two continuous classic-control tasks, and tasks with
`state_dict() -> dict[str, np.ndarray]` and `load_state_dict(arrays)`. Wrapped tasks are not
supported, since wrappers may have hidden state.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Snapshot(NamedTuple):
    """Functions that save and load a kind of task, without its random stream."""

    save: Callable[[Any], dict[str, np.ndarray]]
    load: Callable[[Any, Arrays], None]


def of(env: Any) -> Snapshot | None:
    """The snapshot functions for `env`, or None if its state may be incomplete."""
    task = env.unwrapped
    if env is not task or not isinstance(task.np_random.bit_generator, np.random.PCG64):
        return None
    module = type(task).__module__
    if hasattr(task, "state_dict") and hasattr(task, "load_state_dict"):
        return Snapshot(lambda e: dict(e.state_dict()), lambda e, a: e.load_state_dict(a))
    if module.startswith("gymnasium.envs.mujoco.") and hasattr(task, "data"):
        return _mujoco()
    if module in _CLASSIC_CONTROL:
        return Snapshot(lambda e: {"state": np.array(e.state)}, _load_classic_control)
    return None


def _mujoco() -> Snapshot:
    mujoco: Any = importlib.import_module("mujoco")  # its functions have no static types
    signature = mujoco.mjtState.mjSTATE_INTEGRATION.value
    # MuJoCo leaves these one substep behind qpos, and the rewards of Ant, Reacher-v4 (xpos) and
    # Humanoid (xipos) read them before the next step. This is also why `load` must not mj_forward.
    stale = ("xpos", "xipos")

    def save(env: Any) -> dict[str, np.ndarray]:
        physics = np.empty(mujoco.mj_stateSize(env.model, signature))
        mujoco.mj_getState(env.model, env.data, physics, signature)
        return {"physics": physics} | {name: getattr(env.data, name).copy() for name in stale}

    def load(env: Any, arrays: Arrays) -> None:
        mujoco.mj_setState(env.model, env.data, arrays["physics"], signature)
        for name in stale:
            getattr(env.data, name)[:] = arrays[name]

    return Snapshot(save, load)


_CLASSIC_CONTROL = (
    "gymnasium.envs.classic_control.pendulum",
    "gymnasium.envs.classic_control.continuous_mountain_car",
)


def _load_classic_control(env: Any, arrays: Arrays) -> None:
    env.state = np.array(arrays["state"])


def save_rng(rng: np.random.Generator) -> np.ndarray:
    """A PCG64 stream as u64[6]: state and increment (high, low word), then the buffered half."""
    saved = rng.bit_generator.state
    words = []
    for value in (saved["state"]["state"], saved["state"]["inc"]):
        words += [value >> 64, value & (2**64 - 1)]
    return np.array([*words, saved["has_uint32"], saved["uinteger"]], np.uint64)


def load_rng(words: np.ndarray) -> np.random.Generator:
    """The inverse of `save_rng`."""
    state, state_low, inc, inc_low, has_half, half = (int(w) for w in words)
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state << 64 | state_low, "inc": inc << 64 | inc_low},
        "has_uint32": has_half,
        "uinteger": half,
    }
    return np.random.Generator(bits)
