"""One action of a sparse actor, batch 1, one core: exported C against dense networks.

    python -m benchmarks.inference_benchmark [--torch=PYTHON] [--out=FILE]

Hopper's actor, 11-256-256-3, 98% sparse. Prints one JSON object: nanoseconds per action
(subjects alternate within one run), their ratios, and sizes in bytes. `--torch` is a Python
interpreter with PyTorch installed.
"""

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from benchmarks.c_loops import PLAIN, VECTORISED, CLoop, dense_source, repeated
from benchmarks.measure import processor
from rlx2_jax import export, networks
from rlx2_jax.export import c, compiled, npz, onnx
from rlx2_jax.networks import masked
from rlx2_jax.sparse import masks

SIZES, SPARSITY = (11, 256, 256, 3), 0.98
PEER = Path(__file__).parent / "peers" / "torch_inference.py"


class TorchPeer:
    """PyTorch in a subprocess, which makes one measurement per request."""

    def __init__(self, python: str):
        command = [python, str(PEER), *map(str, SIZES)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version = self._line().split()[-1]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{PEER.name} exited: is PyTorch installed in the Python of --torch?"
            )
        return line

    def __call__(self, calls: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self._process.communicate()


def interleaved(
    subjects: dict[str, Callable[[int], float]], repeats: int
) -> dict[str, dict[str, float]]:
    """Best and median of each subject in nanoseconds, in alternating turns of about 1 ms. Other
    processes can only add time, so the best is closest to the true cost."""
    calls = {name: max(8, int(0.001 / measure(64))) for name, measure in subjects.items()}
    results: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(repeats):
        for name, measure in subjects.items():
            results[name].append(1e9 * measure(calls[name]))
    return {
        "best": {name: round(min(values), 1) for name, values in results.items()},
        "median": {name: round(float(np.median(values)), 1) for name, values in results.items()},
    }


def benchmark(torch_python: str | None = None, repeats: int = 300) -> dict[str, Any]:
    """All measurements, as the JSON object to print."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    dense, _, _ = networks.init(jax.random.key(0), networks.MLP(SIZES[1:]), SIZES[0])
    mask = masks.init(jax.random.key(1), dense, SPARSITY)
    params = masks.apply(dense, mask)
    whole = export.from_actor(params, mask, "td3")
    policy = whole.pruned()
    obs = np.random.default_rng(0).normal(size=(64, SIZES[0])).astype(np.float32)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {
            "sparse": c.source(policy, "sparse"),
            "sparse_int8": c.source(policy, "sparse_int8", int8=True),
            "sparse_unpruned": c.source(whole, "sparse_unpruned"),
            "dense": dense_source(whole, "dense"),
        }
        onnx.save(whole, folder / "dense.onnx")
        npz.save(policy, folder / "policy.npz")
        loops = {n: CLoop(f.text, n, SIZES, folder, PLAIN) for n, f in files.items()}
        fast = {n: CLoop(files[n].text, n, SIZES, folder, VECTORISED) for n in ("sparse", "dense")}
        session = onnx.session(folder / "dense.onnx")
        act = jax.jit(lambda x: networks.policy(masked.bind(params), x))
        subjects = {f"c_{n}": x.loop(obs) for n, x in loops.items()}
        subjects |= {f"c_{n}_vectorised": x.loop(obs) for n, x in fast.items()}
        subjects["c_sparse_through_ctypes"] = loops["sparse"].through_ctypes(obs)
        subjects["onnxruntime_dense"] = repeated(
            lambda i: session.run(None, {"obs": obs[i : i + 1]})
        )
        subjects["jax_dense"] = repeated(lambda i: np.asarray(act(obs[i : i + 1])))
        peer = TorchPeer(torch_python) if torch_python else None
        if peer:
            subjects["pytorch_dense"] = peer
        timed = interleaved(subjects, repeats)
        expected = np.asarray(act(obs))
        errors = {
            f"c_{n}": float(np.abs(x.policy.act(obs) - expected).max()) for n, x in loops.items()
        }
        sizes = {f"c_{n}_data": f.data_bytes for n, f in files.items()}
        sizes |= {
            p.name: p.stat().st_size for p in folder.iterdir() if p.suffix in (".npz", ".onnx")
        }
        objects = {p.name: p.stat().st_size for p in sorted(folder.glob("*-plain-*.o"))}
        if peer:
            peer.close()
    nanoseconds = timed["best"]
    sparse, through = nanoseconds["c_sparse"], nanoseconds["c_sparse_through_ctypes"]
    ratios = {
        f"{name}/c_sparse": round(ns / sparse, 2)
        for name, ns in nanoseconds.items()
        if name != "c_sparse"
    }
    ratios |= {
        f"{name}/c_sparse_through_ctypes": round(ns / through, 2)
        for name, ns in nanoseconds.items()
        if name.endswith("_dense") and not name.startswith("c_")
    }
    vectorised = nanoseconds["c_dense_vectorised"] / nanoseconds["c_sparse_vectorised"]
    ratios["c_dense_vectorised/c_sparse_vectorised"] = round(vectorised, 2)
    unpruned = nanoseconds["c_dense"] / nanoseconds["c_sparse_unpruned"]
    ratios["c_dense/c_sparse_unpruned"] = round(unpruned, 2)
    return {
        "measured": "one action, batch 1, one core; ratios of the best of all turns",
        "network": {
            "sizes": SIZES,
            "live_links": whole.links,
            "pruned_sizes": policy.sizes,
            "pruned_links": policy.links,
        },
        "nanoseconds": timed,
        "ratios": ratios,
        "bytes": {"dense_float32": whole.dense_bytes, **sizes, "objects": objects},
        "largest_error": errors,
        "flags": {"plain": " ".join(PLAIN), "vectorised": " ".join(VECTORISED)},
        "machine": {
            "processor": processor(),
            "compiler": _first_line([compiled.compiler() or "", "--version"]),
            "python": platform.python_version(),
            "jax": jax.__version__,
            "onnxruntime": __import__("onnxruntime").__version__,
            "torch": peer.version if peer else None,
        },
    }


def _first_line(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defined when the command runs, because flag names are shared between commands."""
    flags.DEFINE_string("torch", None, "Python interpreter with PyTorch.", flag_values=values)
    flags.DEFINE_integer("repeats", 300, "Turns.", 1, flag_values=values)
    flags.DEFINE_string("out", None, "Also write the JSON to this file.", flag_values=values)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    text = json.dumps(benchmark(flags.FLAGS.torch, flags.FLAGS.repeats), indent=2)
    if flags.FLAGS.out:
        Path(flags.FLAGS.out).write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
