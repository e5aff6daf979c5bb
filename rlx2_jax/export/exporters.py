"""The table of exporters, one per file format.

An exporter writes a policy to a path and returns a function that runs the file, so that
`rlx2 export` can compare it with the actor. `register_exporter` adds a custom format.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlx2_jax.export import c, compiled, manifest, npz, numpy_runtime, onnx, stablehlo
from rlx2_jax.export.episodes import Act
from rlx2_jax.export.policy import SparsePolicy


class Written(NamedTuple):
    """The result of an exporter.

    Attributes:
      act: runs the written file, f32[n, obs] -> f32[n, act]; None if this machine cannot run it.
      constants: bytes of constants in a generated program.
    """

    act: Act | None
    constants: int | None = None


Exporter = Callable[[SparsePolicy, Path], Written]


def write_c(policy: SparsePolicy, path: Path, *, int8: bool = False) -> Written:
    """One C99 file whose function is named after the file; can run if there is a compiler."""
    made = c.source(policy, path.stem, int8=int8)
    path.write_text(made.text)
    if compiled.compiler() is None:
        return Written(None, made.data_bytes)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled.build([path], Path(folder) / f"{path.stem}.so")
        act = compiled.CPolicy(library, path.stem, policy.obs_dim, policy.action_dim).act
    return Written(act, made.data_bytes)


def write_npz(policy: SparsePolicy, path: Path) -> Written:
    """Arrays for `numpy_runtime`."""
    npz.save(policy, path)
    npz.load(path)  # checks every array
    return Written(numpy_runtime.load(path))


def write_onnx(policy: SparsePolicy, path: Path) -> Written:
    """A model for ONNX runtimes."""
    onnx.save(policy, path)
    return Written(lambda obs: onnx.run(path, obs))


def write_stablehlo(policy: SparsePolicy, path: Path) -> Written:
    """A serialized `jax.export` program."""
    stablehlo.save(policy, path)
    manifest.write(path.parent, {path.name: {}}, {})  # `load` reads it
    return Written(stablehlo.load(path))


EXPORTERS: dict[str, Exporter] = {
    "c": write_c,
    "npz": write_npz,
    "onnx": write_onnx,
    "stablehlo": write_stablehlo,
}


def register_exporter(name: str, exporter: Exporter) -> None:
    """Adds a file format. Its name is used for `rlx2 export --format` and as the file suffix."""
    if not name.isidentifier():
        raise ValueError(f"format name {name!r}: use letters, digits and underscores")
    if EXPORTERS.get(name, exporter) is not exporter:
        raise ValueError(f"there is already a format {name!r}: choose another name")
    EXPORTERS[name] = exporter
