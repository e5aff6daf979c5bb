"""A published policy: a folder with `policy.npz`, `policy.c`, `policy.onnx` and `policy.json`.

`policy.npz` has every live link of the trained actor, so its masks can be recovered (except for
SAC's log σ outputs, which noise-free actions do not need). The C and ONNX files hold the pruned
policy, which has fewer units and computes the same. `policy.json` records the policy's origin, its
score, and the sizes and SHA-256 checksums of the other files.

Folders are untrusted: the C file is compiled only if it equals the one generated from `policy.npz`,
and the ONNX model is used only if it acts like `policy.npz`.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx2_jax import envs, files
from rlx2_jax.export import c, compiled, npz, numpy_runtime, onnx
from rlx2_jax.export.bundle import Bundle, deviation, observations
from rlx2_jax.export.episodes import Act
from rlx2_jax.export.policy import PolicyFileError, SparsePolicy

FORMAT = 2  # 1 had an older `policy.npz`, see `npz`
RECORD = "policy.json"
NAME = "policy"  # of the files, and of the C function policy_act
_FIELDS = {  # required fields of policy.json
    "task": str,
    "env": str,
    "env_backend": str,
    "env_options": dict,
    "algo": str,
    "method": str,
    "seed": int,
    "actor_sparsity": float,
    "critic_sparsity": float,
    "live_links": int,
    "final_score": float,
    "evaluation": dict,
    "files": dict,
}
_EVALUATION = ("episodes", "first_seed", "mean", "sd", "min", "max", "mean_length")


class Published(NamedTuple):
    """A validated folder.

    Attributes:
      folder: its path.
      about: the contents of policy.json.
      policy: the policy of policy.npz.
    """

    folder: Path
    about: dict[str, Any]
    policy: SparsePolicy

    def make_envs(self, count: int) -> envs.HostEnvs:
        """Environments of its task.

        Raises:
          PolicyFileError: they cannot be created, or do not fit the policy.
        """
        about = self.about
        try:
            made = envs.make_host(about["env"], count, about["env_backend"], **about["env_options"])
        except ImportError:
            raise
        except (envs.EnvironmentFailure, ValueError) as error:
            screen = os.environ.get("MUJOCO_GL")  # MuJoCo loads OpenGL when it is imported
            named = screen and not isinstance(error, ValueError)
            hint = f" (MUJOCO_GL={screen}: does this machine have it?)" if named else ""
            raise PolicyFileError(
                f"{self.folder / RECORD}: its environment {about['env']!r:.80} cannot be created: "
                f"{files.first_line(getattr(error, 'error', error))}{hint}"
            ) from error
        sizes = made.spec.obs_dim, made.spec.action_dim
        if sizes != (self.policy.obs_dim, self.policy.action_dim):
            made.close()
            raise PolicyFileError(
                f"{about['env']} has {sizes[0]} observations and {sizes[1]} actions, the policy "
                f"{self.policy.obs_dim} and {self.policy.action_dim}: it is not for this task"
            )
        return made


def write(
    out: Path, policy: SparsePolicy, expected: Callable[[np.ndarray], np.ndarray]
) -> dict[str, dict[str, Any]]:
    """Writes the files of a policy with all its links; returns their sizes and checksums.

    Args:
      expected: actions of the trained actor, [batch, obs] -> [batch, act]; files must match them.
    """
    wanted = expected(observations(policy.obs_dim))
    for version, formats in ((policy, ("npz",)), (policy.pruned(), ("c", "onnx"))):
        bundle = Bundle(version, NAME, out)
        for format_ in formats:
            bundle.write(format_, wanted)
    sizes = {}
    for format_ in RUNTIMES:
        data = (out / f"{NAME}.{format_}").read_bytes()
        sizes[f"{NAME}.{format_}"] = {"bytes": len(data), "sha256": files.digest(data)}
    return sizes


def read(folder: Path, *, allow_imports: bool = False) -> Published:
    """The policy in a folder. Executes no code from it.

    Args:
      allow_imports: whether its environment may import modules and open files, see
        `envs.check_import`.

    Raises:
      PolicyFileError: the folder is damaged, or holds no policy.
      ValueError: its environment needs `allow_imports`.
    """
    record = folder / RECORD
    if not record.exists():
        within = sorted(p.parent.name for p in folder.glob(f"*/{RECORD}"))
        advice = f"; it has {', '.join(within)}" if within else ""
        raise PolicyFileError(f"there is no policy in {folder}: {RECORD} is missing{advice}")
    try:
        _check_format(files.parse_json(record))
        about = files.read_json(record)
        _check_fields(about)
    except (files.Damaged, ValueError) as error:
        text = str(error)
        raise PolicyFileError(text if str(record) in text else f"{record}: {text}") from error
    envs.check_import(about["env"], about["env_options"], allow=allow_imports, source="the policy")
    _checked(folder, about, "npz")
    policy = npz.load(folder / f"{NAME}.npz")
    if about["live_links"] < policy.links:
        raise PolicyFileError(
            f"{folder / NAME}.npz has {policy.links:,} links where {RECORD} counts "
            f"{about['live_links']:,}: they belong to different policies"
        )
    return Published(folder, about, policy)


def _check_format(about: dict[str, Any]) -> None:
    if about.get("format") not in (1, FORMAT):
        raise ValueError(
            f"format is {about.get('format')!r:.40}, this version reads 1 and {FORMAT}: play it "
            f"with the version that wrote it"
        )


def _check_fields(about: dict[str, Any]) -> None:
    for name, kind in _FIELDS.items():
        if not _is(about.get(name), kind):
            raise ValueError(f"{name} is {about.get(name)!r:.40}, not {kind.__name__}")
    for name in _EVALUATION:
        if not _is(value := about["evaluation"].get(name), float):
            raise ValueError(f"evaluation.{name} is {value!r:.40}, not a number")
    if about["evaluation"]["episodes"] < 1:
        raise ValueError("evaluation.episodes is below 1")
    if about["env_backend"] not in envs.HOST_BACKENDS:
        raise ValueError(
            f"env_backend is {about['env_backend']!r:.40}, not one of {envs.HOST_BACKENDS}"
        )


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and bool(np.isfinite(value))
    return type(value) is kind


def _checked(folder: Path, about: dict[str, Any], format_: str) -> bytes:
    """A file's bytes, verified against its published checksum."""
    path = folder / f"{NAME}.{format_}"
    entry = about["files"].get(path.name)
    if not isinstance(entry, dict):
        raise PolicyFileError(f"{folder / RECORD} does not list {path.name}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyFileError(f"{path} cannot be read: {error.strerror}") from error
    if files.digest(data) != entry.get("sha256"):
        raise PolicyFileError(f"{path} is damaged: it does not have the checksum of {RECORD}")
    return data


def _run_npz(published: Published) -> Act:
    return numpy_runtime.load(published.folder / f"{NAME}.npz")


def _run_c(published: Published) -> Act:
    policy, path = published.policy.pruned(), published.folder / f"{NAME}.c"
    data, text = _checked(published.folder, published.about, "c"), c.source(policy, NAME).text
    if data != text.encode():
        raise PolicyFileError(
            f"{path} is not the C file that this version generates from {NAME}.npz, so it is not "
            f"compiled: publish the policy again, or use --runtime=npz"
        )
    if compiled.compiler() is None:
        raise PolicyFileError("there is no C compiler: install one, or use --runtime=npz")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{NAME}.c"
        source.write_text(text)
        library = compiled.build([source], source.with_suffix(".so"))
        return compiled.CPolicy(library, NAME, policy.obs_dim, policy.action_dim).act


def _run_onnx(published: Published) -> Act:
    session = onnx.session(_checked(published.folder, published.about, "onnx"))
    return lambda obs: session.run(None, {"obs": np.asarray(obs, np.float32)})[0]


RUNTIMES: dict[str, Callable[[Published], Act]] = {"npz": _run_npz, "c": _run_c, "onnx": _run_onnx}


def runtime(published: Published, name: str) -> Act:
    """The policy's function in one of `RUNTIMES`, verified against `policy.npz`.

    Raises:
      PolicyFileError: the file is damaged, or is not this policy.
      ImportError: a package is missing.
    """
    obs = observations(published.policy.obs_dim)
    try:
        act = RUNTIMES[name](published)
        policy = published.policy
        error, close = deviation(policy, obs, act(obs), policy.act(obs))
    except (PolicyFileError, ImportError):
        raise
    except Exception as error:  # ONNX Runtime raises many exception types
        path = published.folder / f"{NAME}.{name}"
        raise PolicyFileError(f"{path} cannot be run: {files.first_line(error)}") from error
    if not close:
        raise PolicyFileError(
            f"{published.folder / NAME}.{name} is not the policy of {NAME}.npz: actions differ by "
            f"up to {error:.2g}, more than float32 rounding explains"
        )
    return act
