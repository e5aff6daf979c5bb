"""Flags for every setting in the option table.

Lane settings take comma-separated lists, and lanes are the product of all lists. Settings of a
program or a run take one value.
"""

from collections.abc import Container
from typing import Any

from absl import flags

from rlx2_jax.option_table import CHOICES, CONFIG, LANE, RUN
from rlx2_jax.options import Option
from rlx2_jax.training.lane_product import CHOICE_NAMES

flags.disclaim_key_flags()  # the flags belong to the command that defines them

LANE_FLAGS = tuple(option for option in LANE.values() if option.flag)
# Without a fixed default: determined by the preset, the algorithm or other settings.
_OPEN = (*CHOICE_NAMES, "capacity")
# Not available in sweeps: settings of suites and of the budget (--fraction, --evaluations,
# --seeds), B_max, and network sizes other than the paper's.
_NOT_IN_SWEEPS = ("method", "algo", "steps", "eval_interval", "seeds", "capacity")
_NOT_IN_SWEEPS += ("architecture", "width", "blocks")


class _Parser(flags.ArgumentParser):
    """One value, or a list, of an option."""

    def __init__(self, option: Option, *, several: bool, distinct: bool = False):
        self.option, self.several, self.distinct = option, several, distinct
        self.syntactic_help = _syntax(option)

    def parse(self, argument: Any) -> Any:
        if not isinstance(argument, str):  # a default
            return argument
        if not self.several:
            return self.option.parse(argument)
        if not argument.strip():
            raise ValueError(f"the list is empty: {self.option.rule}")
        values = []
        for text in argument.split(","):
            try:
                values.append(self.option.parse(text))
            except ValueError as error:
                raise ValueError(f"{text.strip()!r}: {error}") from error
        if self.distinct and len(set(values)) < len(values):
            twice = next(x for x in values if values.count(x) > 1)
            raise ValueError(f"{twice} is given twice, which gives equal lanes: give it once")
        return values

    def flag_type(self) -> str:
        return f"list of {self.option.kind}" if self.several else self.option.kind


class _Serializer(flags.ArgumentSerializer):
    def serialize(self, value: Any) -> str:
        values = value if isinstance(value, list | tuple) else [value]
        return ",".join(str(x).lower() if isinstance(x, bool) else str(x) for x in values)


def define_lane_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a list flag for every setting of a lane."""
    for option in LANE_FLAGS:
        default = [option.default] if option.name == "method" else None
        _define(option, default, values, several=True, distinct=True)


def define_choice_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a flag for every choice in presets."""
    for option in CHOICES.values():
        _define(option, None, values)


def define_run_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a flag for every other setting of a program or a run."""
    for option in (*CONFIG.values(), *RUN.values()):
        if option.flag and option.name not in CHOICES and option.name != "algo":
            default = None if option.name in _OPEN else option.default
            _define(option, default, values, several=option.name == "hidden")


def define_sweep_flags(scaled: Container[str], values: flags.FlagValues) -> list[str]:
    """Defines a single-valued flag for every setting that a sweep can override in all units.

    Args:
      scaled: settings that count steps, given in the paper's steps.

    Returns:
      The names of the flags; their default is None.
    """
    options = {o.name: o for o in (*CONFIG.values(), *RUN.values(), *LANE.values()) if o.flag}
    names = [name for name in options if name not in _NOT_IN_SWEEPS]
    for name in names:
        note = " In the paper's steps; scales with the budget." if name in scaled else ""
        _define(options[name], None, values, note=note, several=name == "hidden")
    return names


def _define(
    option: Option, default: Any, values: flags.FlagValues, note: str = "", **parser: bool
) -> None:
    several = parser.get("several", False)
    about = f"{option.about[0].upper()}{option.about[1:]}."
    if default is None and option.name in CHOICES:
        about += " Overrides the preset (docs/presets.md)."
    if parser.get("distinct"):
        about += " A comma-separated list gives several lanes."
    about += note
    flags.DEFINE(
        _Parser(option, several=several, distinct=parser.get("distinct", False)),
        option.name,
        list(default) if isinstance(default, tuple) else default,
        about,
        flag_values=values,
        serializer=_Serializer(),
    )


def _syntax(option: Option) -> str:
    if option.kind == "choice":
        return f"One of {', '.join(option.allowed)}."
    return option.rule.removeprefix("use ").capitalize() + "."
