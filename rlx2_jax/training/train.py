"""`rlx2 train` as a function."""

import difflib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlx2_jax import envs, trackers
from rlx2_jax.option_table import CHOICES, CONFIG, RUN
from rlx2_jax.training import distributed, lane_product, launch, preflight
from rlx2_jax.training.run import has_run
from rlx2_jax.training.settings import SettingError, Settings
from rlx2_jax.training.tracking import PROJECT, Track

_OWN = {"env_backend": "gymnasium", "algo": "td3", "preset": "default", "execution": "auto"}
_OPTIONS = {o.name: o for o in (*CONFIG.values(), *RUN.values()) if o.flag}


def train(
    env: str,
    *,
    logdir: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
    max_episode_steps: int | None = None,
    tracker: str | Sequence[str] | None = None,
    tracker_project: str = PROJECT,
    devices: int = 0,
    **settings: Any,
) -> dict[str, Any]:
    """Trains lanes on one environment, like `rlx2 train`; returns the summary.

    Args:
      env: the environment's id, for instance "Hopper-v5".
      logdir: the run directory; default: a new one in `runs/`.
      resume: continue the run in `logdir`, if any; its settings must be the same.
      progress: show a progress display on standard error.
      say: prints a line for the user; default: above the progress display.
      max_episode_steps: overrides the time limit.
      tracker: trackers that receive every lane as a run (`wandb`, `trackio`).
      tracker_project: their project.
      devices: how many devices to use, 0 for all.
      settings: any flag of `rlx2 train` by name (`method`, `seeds`, `steps`, `actor_sparsity`,
        `hidden`, ...). Lane settings may be lists; lanes are the product of all lists and seeds.

    Returns:
      The contents of `summary.json` (final score, sparsities and speed of each lane) and `logdir`.

    Raises:
      SettingError: settings are unknown, invalid or contradict each other.
      RunError: the run cannot start or continue.

    >>> import tempfile
    >>> import rlx2_jax as rlx2
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = rlx2.train(
    ...         "rlx2_jax/Truncation-v0", logdir=folder, method=["dense", "rlx2"], seeds=2,
    ...         steps=60, warmup=20, hidden=(8, 8), batch_size=8, eval_interval=30, episodes=1,
    ...         progress=False, say=lambda line: None,
    ...     )
    >>> [lane["method"] for lane in summary["lanes"]]
    ['dense', 'dense', 'rlx2', 'rlx2']
    """
    names = (tracker,) if isinstance(tracker, str) else tuple(tracker or ())
    trackers.check(names)
    track = None if tracker is None else Track(names, tracker_project)
    values = _values(env, settings)
    options = {}
    if max_episode_steps is not None:
        options = envs.time_limit(values["env_backend"], max_episode_steps)
    fields = {k: v for k, v in values.items() if k in Settings.__dataclass_fields__}
    choices = lane_product.choices(values)
    name = f"{env.replace('/', '_')}-{values['algo']}-{time.strftime('%Y%m%d-%H%M%S')}"
    # Absolute, since environments may change the working directory.
    directory = (Path("runs", name) if logdir is None else Path(logdir)).absolute()
    run = launch.make_run(
        Settings(**fields, choices=choices, env_options=options), lane_product.lanes(values, {})
    )
    resume = resume and has_run(directory)
    if not resume:
        preflight.check(run, directory)
    options: dict[str, Any] = {"progress": progress, "say": say, "devices": devices, "track": track}
    summary = distributed.train(run, directory, resume=resume, **options)
    return {**(summary or {}), "logdir": str(directory)}


def _values(env: str, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings as flag values of `rlx2 train`."""
    known = {*_OWN, *_OPTIONS, *lane_product.LANE_NAMES, "expert", "pipeline"}
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f": did you mean {close[0]}?" if close else "; rlx2 train --help lists them"
            raise SettingError(f"there is no setting {name!r}{hint}")
    values: dict[str, Any] = {"env": env, **_OWN, "method": ["rlx2"]}
    open_ = {*CHOICES, *lane_product.CHOICE_NAMES, "capacity"}
    values |= {n: o.default for n, o in _OPTIONS.items() if n not in open_ and n != "algo"}
    for name, value in settings.items():
        if name in lane_product.LANE_NAMES and not isinstance(value, list):
            value = [value]
        values[name] = tuple(value) if name == "hidden" and value else value
    return values
