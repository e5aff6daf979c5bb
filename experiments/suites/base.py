"""Building blocks of suites: budgets, units, and the scaling of the paper's schedule.

A unit is one run directory: resumable, small enough to finish in hours, usually all seeds of one
variant on one task (or one seed of a dense variant). Units of one `group` are shown together. A
unit may depend on others in its suite, to use their masks, weights or experts.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from rlx2_jax import presets
from rlx2_jax.config import METHODS, Lane
from rlx2_jax.option_table import LANE
from rlx2_jax.training.settings import Settings

# A name, a method, and fields of its lanes in the paper's units.
Variant = tuple[str, str, dict[str, Any]]

STEPS, SEEDS = 3_000_000, 8  # of the paper's runs
TASKS = ("HalfCheetah", "Hopper", "Walker2d", "Ant")
NEVER = 2**31 - 1  # an interval that no run reaches
VERSIONS = ("v3", "v4", "v5")  # of tasks, the paper's first
_OWN_VERSIONS = {("InvertedPendulum", "v3"): "v2"}  # there is no v3
# Settings that count steps and scale with the budget, and their lower bounds.
LEAST = {
    "t0": 0,
    "t_end": 1,
    "mask_interval": 10,
    "buffer_interval": 10,
    "b_min": 20,
    "b_max": 40,
    "warmup": 20,
    "metrics_interval": 1,
    "checkpoint_interval": 1,
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """The scale of the experiments relative to the paper."""

    name: str
    fraction: float  # of the paper's steps, and of all settings that count steps
    seeds: int = SEEDS
    first_seed: int = 0
    tasks: int = len(TASKS)  # number of tasks per suite
    version: str = "v5"
    narrower: int = 1  # factor by which hidden layers are narrower
    batch_size: int = 256
    episodes: int = 10
    evaluations: int = 600  # per run; the paper has one every 5000 steps
    env_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    clone_episodes: int = 20  # expert episodes for behaviour cloning
    # Settings of all units by flag name, in the paper's units (see `suites.overrides`).
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict)

    def steps(self, paper: float) -> int:
        """Scales a number of steps of the paper's schedule to this budget; at least 1."""
        return max(1, round(paper * self.fraction))

    def env(self, task: str) -> str:
        return f"{task}-{_OWN_VERSIONS.get((task, self.version), self.version)}"

    def seed_range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


BUDGETS = {
    # Minutes for the whole catalogue: tests that everything runs, but not learning.
    "smoke": Budget(
        "smoke",
        1e-4,
        seeds=2,
        tasks=1,
        narrower=16,
        batch_size=16,
        episodes=2,
        evaluations=4,
        env_options={"max_episode_steps": 40},
        clone_episodes=2,
    ),
    "short": Budget("short", 0.1, seeds=4),
    "paper": Budget("paper", 1.0),
}


@dataclasses.dataclass(frozen=True)
class Unit:
    """Lanes that are trained together in one directory.

    Attributes:
      kind: `train`, or `clone` for behaviour cloning of an expert (see `cloning`).
      needs: units of the same suite that must finish first.
      group: units of one group appear as one in reports.
      home: the suite that holds the unit's directory, if another suite trains the same lanes.
      home_name: the unit's name there.
    """

    name: str
    settings: Settings
    lanes: tuple[Lane, ...]
    kind: str = "train"
    needs: tuple[str, ...] = ()
    group: str = ""
    home: str = ""
    home_name: str = ""

    @property
    def directory(self) -> str:
        """The unit's directory, relative to its suite."""
        return f"../{self.home}/{self.home_name}" if self.home else self.name


@dataclasses.dataclass(frozen=True)
class Suite:
    """One table or figure of the paper, as a list of units for a budget."""

    name: str
    title: str
    units: Callable[[Budget], list[Unit]]


def settings(budget: Budget, task: str, algo: str = "td3", hidden: int = 256) -> Settings:
    """The paper's experiment on one task, scaled to a budget."""
    width = hidden // budget.narrower
    steps = max(budget.steps(STEPS), 60)
    interval = max(1, steps // budget.evaluations)
    return Settings(
        env=budget.env(task),
        algo=algo,
        steps=steps,
        warmup=scaled(budget, "warmup", 25_000),
        hidden=(width, width),
        batch_size=budget.batch_size,
        eval_interval=interval,
        metrics_interval=interval,
        checkpoint_interval=max(interval, steps // 60),
        episodes=budget.episodes,
        env_options=budget.env_options,
    )


def lane(budget: Budget, method: str, seed: int, **fields: Any) -> Lane:
    """A lane with the paper's schedule scaled to a budget; `fields` are in the paper's units.

    T_0, Δ_m, Δ_b, B_min and B_max count steps and scale; fractions, thresholds and n do not.
    """
    paper = {
        "t0": 300_000,
        "mask_interval": 10_000,
        "buffer_interval": 10_000,
        "b_min": 100_000,
        "b_max": 1_000_000,
    }
    own = {name: scaled(budget, name, fields.pop(name, value)) for name, value in paper.items()}
    return Lane(seed=seed, method=method, **own, **fields)


def scaled(budget: Budget, name: str, value: float) -> int:
    """A setting of `LEAST`, scaled from the paper's steps to this budget."""
    return NEVER if value >= NEVER else max(LEAST[name], round(value * budget.fraction))


def lanes(budget: Budget, variants: Sequence[Variant], **common: Any) -> tuple[Lane, ...]:
    """Lanes of every variant (name, method, fields in the paper's units), each with all seeds."""
    return tuple(
        lane(budget, method, seed, name=name, **{**common, **fields})
        for name, method, fields in variants
        for seed in budget.seed_range()
    )


def sparsities(task: str, algo: str = "td3") -> dict[str, float]:
    """The main table's sparsities."""
    return presets.paper_sparsities(algo, task)


def tasks(budget: Budget, names: Sequence[str] = TASKS) -> Sequence[str]:
    """The tasks of a suite at this budget; if fewer, the smallest ones."""
    if budget.tasks >= len(names):
        return names
    order = ("Hopper", "Walker2d", "HalfCheetah", "Ant")
    return sorted(names, key=lambda x: order.index(x) if x in order else 9)[: budget.tasks]


def unit_name(task: str, algo: str = "td3") -> str:
    return f"{algo}-{task.lower()}"


def variant_units(
    group: str, settings: Settings, budget: Budget, variants: Sequence[Variant], **common: Any
) -> list[Unit]:
    """One group: a unit per variant with all its seeds; variants of the same name share a unit.
    Dense lanes are slow and hardly profit from sharing a program, so each seed is a unit."""
    named: dict[str, list[Variant]] = {}
    for variant in variants:
        named.setdefault(variant[0], []).append(variant)
    found = []
    for name, own in named.items():
        unit = Unit(f"{group}-{slug(name)}", settings, lanes(budget, own, **common), group=group)
        dense = all(method == "dense" for _, method, _ in own)
        found += by_seed(unit) if dense else [unit]
    return found


def by_seed(unit: Unit) -> list[Unit]:
    """A unit for each seed."""
    seeds = dict.fromkeys(lane.seed for lane in unit.lanes)
    return [
        dataclasses.replace(
            unit, name=f"{unit.name}-{s}", lanes=tuple(x for x in unit.lanes if x.seed == s)
        )
        for s in seeds
    ]


def task_units(budget: Budget, variants: Sequence[Variant], algo: str = "td3") -> list[Unit]:
    """Units of every variant on each task, at the main table's sparsities."""
    return [
        unit
        for task in tasks(budget)
        for unit in variant_units(
            unit_name(task, algo),
            settings(budget, task, algo),
            budget,
            variants,
            **sparsities(task, algo),
        )
    ]


def slug(name: str) -> str:
    """A lane's name as part of a directory name."""
    return re.sub(r"[^a-z0-9.+=-]+", "-", name.lower().replace("*", "star")).strip("-")


def share(units: Sequence[Unit], suite: str, others: Sequence[Unit]) -> list[Unit]:
    """Moves units that `suite` also trains, with equal settings and lanes, to its directory."""
    homes = {_meaning(unit): unit.name for unit in others}
    found = []
    for unit in units:
        name = homes.get(_meaning(unit))
        found.append(dataclasses.replace(unit, home=suite, home_name=name) if name else unit)
    return found


def _meaning(unit: Unit) -> str:
    """A key that is equal for equal units: with defaults filled in and without lane names."""

    def filled(lane: Lane) -> dict[str, Any]:
        given = {k: v for k, v in dataclasses.asdict(lane).items() if v is not None}
        default = {k: option.default_of(unit.settings.algo) for k, option in LANE.items()}
        return {**default, **METHODS[lane.method], **given, "name": None}

    return repr((unit.kind, unit.needs, unit.settings, [filled(lane) for lane in unit.lanes]))


def components(units: Sequence[Unit]) -> list[list[Unit]]:
    """Groups of units that depend on each other, in an order in which they can run."""
    groups: list[list[Unit]] = []
    for unit in units:
        joined = [g for g in groups if any(u.name in unit.needs for u in g)]
        groups = [g for g in groups if g not in joined] + [[u for g in joined for u in g] + [unit]]
    return groups


def shard(units: Sequence[Unit], index: int, count: int) -> list[Unit]:
    """Part `index` (from 0) of `count`; units that depend on each other stay together."""
    groups = components(units)
    return [unit for i, group in enumerate(groups) if i % count == index for unit in group]
