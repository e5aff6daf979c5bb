"""Takes a trained actor out of a run directory, as C, NumPy, ONNX and StableHLO files.

python -m experiments.export --logdir=runs/hopper --lane=0
python -m experiments.export --logdir=runs/hopper --lane=3 --format=c,npz --int8 --out=robot

Every file is checked against the JAX actor on thousands of observations; `--int8` adds a C file
with 8-bit weights and measures what it costs in return, in paired episodes.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

from experiments import crash
from rlx2_jax import __version__, envs, export, networks
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.export import actor, c, compare, manifest, onnx
from rlx2_jax.export.bundle import FORMATS, Bundle, CheckFailed
from rlx2_jax.export.episodes import Act
from rlx2_jax.export.quantize import dequantized
from rlx2_jax.runtime.run import Run, RunError


class ExportError(Exception):
    """Flags that cannot be followed."""


def reference(found: actor.Actor, algo: str, obs: np.ndarray) -> np.ndarray:
    """What the JAX actor does: [batch, obs] -> [batch, act]."""
    params = jax.tree.map(lambda x, m: np.float32(x) * m, found.params, found.masks)
    act = networks.squashed_mean if algo == "sac" else networks.policy
    with jax.default_matmul_precision("highest"):
        return np.asarray(act(params, jnp.asarray(obs)))


def action_bounds(run: Run) -> tuple[Any, Any]:
    """The bounds of the task's actions, where its backend tells them; else (None, None)."""
    if run.backend not in envs.HOST_BACKENDS:
        return None, None
    host = envs.make_host(run.env, 1, run.backend, **run.env_options)
    space = getattr(getattr(host, "envs", [None])[0], "action_space", None)
    host.close()
    return (None, None) if space is None else (space.low.ravel(), space.high.ravel())


def check_formats(formats: list[str], int8: bool) -> list[str]:
    """The formats asked for, once each, and whether they can be made."""
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise ExportError(f"--format={','.join(formats)}: use one or more of {','.join(FORMATS)}")
    if int8 and "c" not in formats:
        raise ExportError("--int8 is a form of the C file: add c to --format")
    if "onnx" in formats:
        onnx.check_installed()
    return list(dict.fromkeys(formats))


def cost_of_int8(
    run: Run, policy: export.SparsePolicy, act: Act, seed: int, episodes: int
) -> compare.Difference:
    """The return of the 8-bit policy against the float one, in episodes that begin alike."""
    if run.backend in envs.DEVICE_BACKENDS:
        pair = [
            compare.device_returns(run, p, seed, episodes) for p in (policy, dequantized(policy))
        ]
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
    """Exports one lane's newest actor; returns what `manifest.json` holds."""
    formats = check_formats(list(FORMATS if formats is None else formats), int8)
    c.check_name(name)
    run = actor.read_run(logdir, allow_imports=allow_imports)
    found = actor.actor_of(run, logdir, lane)
    algo, own = run.config.algo, run.lanes[lane]
    low, high = action_bounds(run)
    whole = export.from_actor(found.params, found.masks, algo, low=low, high=high)
    made = Bundle(whole.pruned(), name, out or logdir / "export" / f"lane-{lane}")
    dense = sum(4 * np.size(x) for x in jax.tree.leaves(found.params))
    links = [sum(layer.links for layer in p.layers) for p in (whole, made.policy)]
    say(
        f"lane {lane} ({own.method}, seed {own.seed}) at step {found.step:,}: {whole.links:,} live "
        f"links; {made.policy.links:,} without idle units, "
        f"{'-'.join(map(str, made.policy.sizes))} units"
    )
    expected = reference(found, algo, made.obs)
    for format_ in formats:
        made.write(format_, expected)
    if "npz" in formats:
        made.write_runtime()
    act = made.write_int8(expected) if int8 else None
    about: dict[str, Any] = {
        "rlx2_jax": __version__,
        "env": run.env,
        "algo": algo,
        "method": own.method,
        "seed": own.seed,
        "lane": lane,
        "step": found.step,
        "sizes": made.policy.sizes,
        "live_links": links[0],
        "exported_links": links[1],
        "dense_bytes": dense,
    }
    say(f"\n{made.table(dense)}\n\nerrors over {len(made.obs):,} observations")
    if act is not None:
        say(
            "8-bit: against its own arithmetic; quantisation itself changes actions by up to "
            f"{made.files[f'{name}_int8.c']['quantisation_error']:.2g}"
        )
        if episodes:
            cost = cost_of_int8(run, made.policy, act, own.seed, episodes)
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


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """This command's flags, defined when it runs: other commands have some of the same names."""
    text = "One or more of c, npz, onnx, stablehlo."
    flags.DEFINE_string("logdir", None, "Run directory to read.", flag_values=values)
    flags.DEFINE_integer("lane", 0, "Which of the run's lanes.", flag_values=values)
    flags.DEFINE_list("format", list(FORMATS), text, flag_values=values)
    flags.DEFINE_string(
        "out", None, "Where to; default: <logdir>/export/lane-<lane>.", flag_values=values
    )
    flags.DEFINE_string("name", "policy", "Of files and of the C function.", flag_values=values)
    flags.DEFINE_bool("int8", False, "Also a C file with 8-bit weights.", flag_values=values)
    flags.DEFINE_integer(
        "episodes", 100, "Paired episodes with --int8; 0: none.", lower_bound=0, flag_values=values
    )
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP, flag_values=values)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; the exit code."""
    try:
        if not values.logdir:
            raise ExportError("--logdir is needed: the directory of a run")
        export_lane(
            Path(values.logdir),
            values.lane,
            values.format,
            Path(values.out) if values.out else None,
            name=values.name,
            int8=values.int8,
            episodes=values.episodes,
            allow_imports=values.allow_imports,
        )
    except (ExportError, CheckFailed, RunError, ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    return crash.guarded(lambda: command(flags.FLAGS))


if __name__ == "__main__":
    define_flags()
    app.run(main)
