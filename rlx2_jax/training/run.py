"""`Run`: environment, lanes and intervals, and the memory and disk space they need."""

import dataclasses
import functools
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlx2_jax import config as configs
from rlx2_jax import envs, files
from rlx2_jax.config import Config, Lane
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.envs.device import idle_env
from rlx2_jax.files import Damaged, Warn
from rlx2_jax.training import demonstrations, weights
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.device_loop import DeviceLoop
from rlx2_jax.training.evaluate import HostEvaluator
from rlx2_jax.training.host_loop import HostLoop
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.limits import available_memory as available_memory
from rlx2_jax.training.loop import Loop
from rlx2_jax.training.program import initial_agent
from rlx2_jax.training.weights import Weights
from rlx2_jax.types import Device

FORMAT = 5  # of the run directory
# Defaults of `Config` fields that older directories of this format lack.
_LATER = {
    "critic_actions": "unit",
    "action_low": None,
    "action_high": None,
    "critics": 2,
    "critic_subset": 0,
    "architecture": "mlp",
    "width": None,
    "blocks": None,
    "topology": ["rigl", "none", "layer", 0],
    "precision": "float32",
}
# The same for fields of `Lane` and `Run`.
_LATER_LANE = {
    "topology": (None, "rigl"),
    "structure": (None, "none"),
    "scope": (None, "layer"),
    "prune_start": (None, 0),
}
_LATER_RUN = {"shards": 0, "parts": 0, "first": 0}
CONFIG, CHECKPOINTS = "config.json", "checkpoints"


class RunError(Exception):
    """A run cannot start or continue; the message gives the reason and a remedy."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of `config.json`: everything that defines a run."""

    env: str
    config: Config
    lanes: tuple[Lane, ...]
    backend: str = "gymnasium"
    eval_interval: int = 5000  # environment steps
    metrics_interval: int = 5000
    checkpoint_interval: int = 50_000
    episodes: int = 10
    keep: int = 2
    chunk: int = 0  # lanes per program; 0: as many as fit memory
    pipeline: bool = True
    shards: int = 0  # devices that lanes were divided among at the first start; 0: one
    parts: int = 0  # processes that lanes were divided among at the first start; 0: one
    first: int = 0  # number of the first lane: parts keep the lane numbers of the whole run
    env_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def lanes_at_once(self) -> int:
        """Lanes in memory at the same time."""
        return self.chunk or len(self.lanes)

    @property
    def chunks(self) -> int:
        """The number of chunks of lanes."""
        return -(-len(self.lanes) // self.lanes_at_once)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @property
    def digest(self) -> str:
        """Identifies the run's settings; ignores later fields at their defaults."""
        value = self.to_json()
        fields = value["config"].items()
        value["config"] = {k: v for k, v in fields if k not in _LATER or _plain(v) != _LATER[k]}
        value["lanes"] = [
            {k: v for k, v in lane.items() if v not in _LATER_LANE.get(k, ())}
            for lane in value["lanes"]
        ]
        value = {k: v for k, v in value.items() if k not in _LATER_RUN or v != _LATER_RUN[k]}
        return files.digest(files.to_json(value).encode())

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Run":
        """The inverse of `to_json`.

        Raises:
          RunError: the description has another format, or is not a valid run.
        """
        _check_format(value)

        def build(kind: Any, fields: Any) -> Any:
            return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})

        try:
            fields = {k: v for k, v in value.items() if k != "format"}
            fields["config"] = build(Config, _renamed(fields["config"]))
            fields["lanes"] = tuple(build(Lane, _renamed(lane)) for lane in fields["lanes"])
            run = Run(**fields)
            _check_complete(run)
            return run
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"not a description of a run ({files.first_line(error)})") from error


def _check_complete(run: Run) -> None:
    """Raises ValueError or TypeError if a description lacks what the start of a run has set."""
    run.env.encode()  # lone surrogates can be neither printed nor drawn
    if run.chunk < 0:
        raise ValueError(f"chunk={run.chunk}: the number of lanes in memory is not negative")
    if not run.lanes:
        raise ValueError("it has no lanes")
    for i, lane in enumerate(run.lanes):
        for name, value in dataclasses.asdict(configs.resolve(run.config, lane)).items():
            if getattr(lane, name) is None and value is not None and name not in _LATER_LANE:
                raise ValueError(f"lane {i} has no {name}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a `Config` or a `Lane`, with names of older versions updated."""
    fields = dict(fields)
    if "random_growth" in fields:  # replaced by `grow`
        old = fields.pop("random_growth")
        if "capacity" not in fields:
            fields["grow"] = None if old is None else "random" if old else "gradient"
    return fields


def _check_format(value: dict[str, Any]) -> None:
    if value.get("format") != FORMAT:
        raise RunError(
            f"the run directory has format {value.get('format')}, this version reads {FORMAT}: "
            f"resume it with the version that wrote it"
        )


def has_run(directory: Path) -> bool:
    """Whether a directory holds a run, finished or not."""
    return (directory / CONFIG).exists() or (directory / CHECKPOINTS / CONFIG).exists()


def read_run(directory: Path, warn: Warn | None = None, *, allow_imports: bool = False) -> Run:
    """The run in a directory.

    Args:
      warn: called if `config.json` is damaged and its copy is used instead.
      allow_imports: whether its environment may import modules and open files, see
        `envs.check_import`.
    """
    directory = Path(directory)
    path, copy = directory / CONFIG, directory / CHECKPOINTS / CONFIG
    if not has_run(directory):
        raise RunError(f"there is no run in {directory}: {CONFIG} is missing")
    problems = []
    for candidate in (path, copy):
        try:
            _check_format(files.parse_json(candidate))  # before the digest, which old formats lack
            run = Run.from_json(files.read_json(candidate))
        except Damaged as error:
            problems.append(str(error))
        except RunError as error:
            problems.append(f"{candidate}: {error}")
        else:
            if problems and warn:
                warn(f"warning: {problems[0]}; using its copy {copy}")
            envs.check_import(run.env, run.env_options, allow=allow_imports)
            return run
    raise RunError(
        f"{problems[0]}, and there is no intact copy: restore the file, or start a new run "
        f"in another --logdir"
    )


def with_time_limit(run: Run, steps: int) -> Run:
    """The run with an environment time limit of `steps`; there must be none yet.

    Raises:
      RunError: the environment has a different limit, so results would change.
    """
    limit = envs.time_limit(run.backend, steps)
    limited = dataclasses.replace(run, env_options=run.env_options | limit)
    if limited == run:
        return run
    before = _environment_spec(run).max_episode_steps
    if before is not None:
        raise RunError(
            f"--max_episode_steps={steps}: episodes of this run end after {before:,} steps, which "
            f"cannot be changed: omit the flag, or start a new run"
        )
    return limited


def without_time_limit(run: Run) -> Run:
    """The inverse of `with_time_limit`."""
    names = envs.time_limit(run.backend, 1)
    options = {k: v for k, v in run.env_options.items() if k not in names}
    return dataclasses.replace(run, env_options=options)


def _environment_spec(run: Run) -> envs.EnvSpec:
    try:
        if run.backend in envs.DEVICE_BACKENDS:
            return _guarded(run, envs.make_device, run.env, run.backend).spec
        host = _guarded(run, envs.make_host, run.env, 1, run.backend)
    except EnvironmentFailure as failure:
        raise RunError(str(failure)) from failure
    host.close()
    return host.spec


def resume_command(run: Run, directory: Path) -> str:
    """The shell command that continues a run."""
    try:
        envs.check_import(run.env, run.env_options, allow=False)
        consent = ""
    except ValueError:
        consent = " --allow_imports"
    flag = "--logdir=" if str(directory).startswith("-") else ""
    return f"rlx2 resume {flag}{shlex.quote(str(directory))}{consent}"


def label(lane: Lane, index: int) -> str:
    """A lane's short name in tables and plots."""
    return f"{index}:{lane.name or lane.method}/s{lane.seed}"


def make_loop(
    run: Run,
    lanes: Sequence[Lane],
    directory: Path,
    only: Sequence[int] | None = None,
    *,
    limited: bool = True,
    devices: Sequence[Device] | None = None,
) -> Loop:
    """The loop for the run's backend. The lanes' file paths are relative to `directory`.

    Args:
      only: positions of lanes; blocks with none of them are left out.
      devices: to run on; default: one.
      limited: False if the environment's time limit was added after the run began.

    Raises:
      LaneFailure: an environment could not be created or reset.
    """
    lanes = [with_paths(lane, directory) for lane in lanes]
    options: dict[str, Any] = {"episodes": run.episodes, "only": only}
    options |= {"devices": devices, "shards": max(1, run.shards)}
    try:
        if run.backend in envs.DEVICE_BACKENDS:
            env = _guarded(run, envs.make_device, run.env, run.backend)
            return DeviceLoop(run.config, list(lanes), env, **options)
        make = lambda count: _guarded(run, envs.make_host, run.env, count, run.backend)  # noqa: E731
        if lanes_.offline(run.config):
            return _offline_loop(run, lanes, make, options)
        options |= {"pipeline": run.pipeline, "limited": limited}
        return HostLoop(run.config, list(lanes), make, **options)
    except EnvironmentFailure as failure:
        raise LaneFailure(f"set-up: {failure}") from failure


def _offline_loop(
    run: Run, lanes: list[Lane], make: Callable[[int], envs.HostEnvs], options: dict[str, Any]
) -> DeviceLoop:
    """A loop of lanes that learn from a replay filled with transitions of their experts."""
    env = make(1)
    try:
        data = demonstrations.of_lanes(run.config, lanes, env)
    finally:
        env.close()
    evaluator = lambda p: HostEvaluator(make(len(p.lanes) * run.episodes), p, run.episodes)  # noqa: E731
    options |= {"make_evaluator": evaluator}
    return DeviceLoop(run.config, lanes, idle_env(env.spec), data=data, **options)


def _guarded(run: Run, make: Any, *args: Any) -> Any:
    """Calls a backend and converts exceptions of environment constructors."""
    with envs.failures_of(run.env, ImportError):
        return make(*args, **run.env_options)


def with_paths(lane: Lane, directory: Path) -> Lane:
    names = ("weights", "masks", "expert")
    files = {name: getattr(lane, name) for name in names if getattr(lane, name)}
    return dataclasses.replace(lane, **{k: str(directory / v) for k, v in files.items()})


def initial_networks(config: Config, lane: Lane, directory: Path) -> dict[str, Weights]:
    """The dense initial weights and initial masks of a lane, for rewinding."""
    config = dataclasses.replace(config, execution="masked")
    located = with_paths(lane, directory)
    sparse = weights.of_agent(weights.given(initial_agent(config, lane), config, located))
    if lane.tiny:
        return sparse
    # A dense lane with the same seed also has the weights outside of the mask.
    lane = dataclasses.replace(configs.dense_lane(located), masks=None)
    dense = weights.of_agent(weights.given(initial_agent(config, lane), config, lane))
    return {k: Weights(dense[k].weights, v.mask) for k, v in sparse.items()}


# Memory of a process without its lanes: imports, compiled programs, the compiler.
# Measured with default XLA flags and an empty cache; compact lanes compile a little more.
_PROCESS_BYTES = {"masked": 900_000_000, "compact": 960_000_000}


def process_bytes(lanes: Sequence[Lane]) -> int:
    """Memory of a process that trains `lanes`, excluding the lanes themselves."""
    return max(_PROCESS_BYTES.get(lane.execution, 0) for lane in lanes)


def lane_bytes(run: Run, lane: Lane | None = None) -> int:
    """Memory of one lane: replay buffer, networks and moments, the intermediates of an update, and
    the checkpoint's copy of everything except the buffer."""
    lane = lane or run.lanes[0]
    config = dataclasses.replace(run.config, topology=configs.topology_of(lane))
    return _lane_bytes(config, configs.network_lane(config, lane))


@functools.lru_cache(maxsize=256)
def _lane_bytes(config: Config, lane: Lane) -> int:
    obs = jax.ShapeDtypeStruct((config.num_envs, config.obs_dim), np.float32)
    make = lambda obs: lanes_.init(config, lane, obs, horizon=1000)  # noqa: E731
    state = jax.eval_shape(make, obs)
    size = lambda tree: sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))  # noqa: E731
    rows = size(state.replay)
    actor = config.actor_inputs + sum(o for _, (_, o) in config.actor_layers)
    critic = config.critic_inputs + sum(o for _, (_, o) in config.critic_layers)
    units = actor + config.critics * critic
    passes = 4 * config.batch_size * (units + config.n_max * config.obs_dim) * 4
    return rows + 2 * (size(state) - rows) + passes


def memory_bytes(run: Run, lanes: Sequence[Lane] | None = None) -> int:
    """Peak memory of a process that trains `lanes` (default: the first chunk), including startup,
    checkpoints and resume."""
    lanes = run.lanes[: run.chunk or None] if lanes is None else lanes
    return process_bytes(lanes) + sum(lane_bytes(run, lane) for lane in lanes)


def room_for_lanes(run: Run, memory: int) -> int:
    """The part of `memory` bytes that lanes may use."""
    return max(0, int(0.95 * memory) - process_bytes(run.lanes))


def largest_lane(run: Run) -> int:
    """Memory of the lane that needs most."""
    return max(lane_bytes(run, lane) for lane in run.lanes)


def chunk_size(run: Run, memory: int) -> int:
    """Number of lanes that fit into `memory` bytes."""
    each, process = largest_lane(run), process_bytes(run.lanes)
    fits = room_for_lanes(run, memory) // each
    if fits < 1 or (run.chunk and run.chunk > fits):
        wanted = run.chunk or 1
        advice = f", or --chunk={fits}" if fits else ""
        raise RunError(
            f"{wanted} lane(s) of {each / 1e9:.2f} GB and {process / 1e9:.1f} GB for the "
            f"process do not fit into {memory / 1e9:.1f} GB of memory: use a smaller --capacity "
            f"(now {run.config.capacity}){advice}"
        )
    return min(run.chunk or fits, len(run.lanes))


def disk_bytes(run: Run) -> int:
    """Upper bound on disk space for checkpoints: the replay rows of two chunks, and a few copies of
    the rest."""
    lanes = min(len(run.lanes), 2 * run.chunk if run.chunk else len(run.lanes))
    return lanes * largest_lane(run) + (run.keep + 1) * len(run.lanes) * 4_000_000
