"""Writes a trained actor as C, NumPy, ONNX and StableHLO files.

rlx2 export runs/hopper --lane=0
rlx2 export runs/hopper --lane=3 --format=c,npz --int8 --out=robot

Every file is checked against the JAX actor on thousands of observations. `--int8` adds a C file
with 8-bit weights and measures its effect on the return in paired episodes.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from rlx2_jax import envs, export
from rlx2_jax._version import __version__
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.export import actor, c, compare, manifest, onnx
from rlx2_jax.export.bundle import Bundle, CheckFailed
from rlx2_jax.export.episodes import Act
from rlx2_jax.export.exporters import EXPORTERS
from rlx2_jax.export.quantize import dequantized
from rlx2_jax.training.run import Run, RunError

POSITIONAL = "logdir"


class ExportError(Exception):
    """Invalid flags."""


def check_formats(formats: list[str], int8: bool) -> list[str]:
    """The requested formats without duplicates; raises if one is unknown or unavailable."""
    unknown = [f for f in formats if f not in EXPORTERS]
    if unknown or not formats:
        raise ExportError(f"--format={','.join(formats)}: use one or more of {','.join(EXPORTERS)}")
    if int8 and "c" not in formats:
        raise ExportError("--int8 applies to the C file: add c to --format")
    if "onnx" in formats:
        onnx.check_installed()
    return list(dict.fromkeys(formats))


def cost_of_int8(
    run: Run, policy: export.SparsePolicy, act: Act, seed: int, episodes: int
) -> compare.Difference:
    """The return of the 8-bit policy against the float one, in paired episodes."""
    if run.backend in envs.DEVICE_BACKENDS:
        both = (policy, dequantized(policy))
        pair = [compare.device_episodes(run, p, seed, episodes).returns for p in both]
    else:
        pair = [compare.host_returns(run, a, seed, episodes) for a in (policy.act, act)]
    return compare.difference(*pair)


def export_lane(
    logdir: Path,
    lane: int = 0,
    formats: list[str] | None = None,
    out: Path | None = None,
    *,
    name: str = "policy",
    int8: bool = False,
    episodes: int = 100,
    allow_imports: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Exports one lane's newest actor; returns the contents of `manifest.json`."""
    formats = check_formats(list(EXPORTERS if formats is None else formats), int8)
    c.check_name(name)
    run = actor.read_run(logdir, allow_imports=allow_imports)
    trained = actor.actor_of(run, logdir, lane)
    algo, settings = run.config.algo, run.lanes[lane]
    low, high = actor.action_bounds(run)
    whole = actor.policy_of(trained, run.config, low=low, high=high)
    made = Bundle(whole.pruned(), name, out or logdir / "export" / f"lane-{lane}")
    dense = sum(4 * np.size(x) for x in jax.tree.leaves(trained.params))
    say(
        f"lane {lane} ({settings.method}, seed {settings.seed}) at step {trained.step:,}: "
        f"{whole.links:,} live links; {made.policy.links:,} without idle units, "
        f"{'-'.join(map(str, made.policy.sizes))} units"
    )
    expected = actor.actions(trained, run.config, made.obs)
    for format_ in formats:
        made.write(format_, expected)
    if "npz" in formats:
        made.write_runtime()
    act = made.write_int8(expected) if int8 else None
    about: dict[str, Any] = {
        "rlx2_jax": __version__,
        "env": run.env,
        "env_backend": run.backend,
        "env_options": run.env_options,
        "algo": algo,
        "method": settings.method,
        "seed": settings.seed,
        "lane": lane,
        "step": trained.step,
        "sizes": made.policy.sizes,
        "live_links": whole.links,
        "exported_links": made.policy.links,
        "dense_bytes": dense,
    }
    say(f"\n{made.table(dense)}\n\nerrors over {len(made.obs):,} observations")
    if act is not None:
        say(
            "8-bit: compared to dequantized weights; quantization itself changes actions by up to "
            f"{made.files[f'{name}_int8.c']['quantisation_error']:.2g}"
        )
        if episodes:
            cost = cost_of_int8(run, made.policy, act, settings.seed, episodes)
            about["int8"] = {**cost._asdict(), "relative": cost.relative, "small": cost.small}
            verdict = "no worse than 3% or chance" if cost.small else "NOT the same"
            say(
                f"8-bit: return {cost.other:.2f} against {cost.first:.2f} in {cost.episodes} "
                f"paired episodes, difference {cost.mean:+.2f} ± {cost.half_width:.2f} (95%), "
                f"{100 * cost.relative:+.2f}%: {verdict}"
            )
    manifest.write(made.out, made.files, about)
    say(f"written to {made.out}, listed in {manifest.NAME}")
    return manifest.read(made.out)


def define_flags(values: flags.FlagValues) -> None:
    """The flags of `rlx2 export`."""
    into: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("logdir", None, "Run directory to read.", **into)
    flags.DEFINE_integer("lane", 0, "Lane of the run.", **into)
    flags.DEFINE_list("format", list(EXPORTERS), f"One or more of {', '.join(EXPORTERS)}.", **into)
    flags.DEFINE_string("out", None, "Directory; default: <logdir>/export/lane-<lane>.", **into)
    flags.DEFINE_string("name", "policy", "Name of the files and of the C function.", **into)
    flags.DEFINE_bool("int8", False, "Also write a C file with 8-bit weights.", **into)
    flags.DEFINE_integer("episodes", 100, "Paired episodes with --int8; 0: none.", 0, **into)
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP, **into)


_KNOWN = (
    *(ExportError, CheckFailed, EnvironmentFailure, RunError),
    *(ValueError, ImportError, OSError),
)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    try:
        if not values.logdir:
            raise ExportError("--logdir is needed: rlx2 export RUN")
        export_lane(
            Path(values.logdir).absolute(),  # an environment may change the working directory
            values.lane,
            values.format,
            Path(values.out).absolute() if values.out else None,
            name=values.name,
            int8=values.int8,
            episodes=values.episodes,
            allow_imports=values.allow_imports,
        )
    except _KNOWN as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
