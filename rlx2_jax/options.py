"""The description of one setting: its kind, allowed values and defaults.

`option_table` lists all settings. Validation (`checks`), command-line flags and docs/presets.md are
derived from it.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np

NEVER = 2**31 - 1  # the largest int32, for intervals and thresholds that no run reaches
LARGEST_FLOAT = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting of a `Config`, a `Lane` or a `Run`.

    Attributes:
      name: of the field and of the flag.
      kind: `choice`, `bool`, `int` (32 bits) or `float` (32 bits).
      about: one phrase, for `--help` and the documentation.
      default: a value, or one for each algorithm. None: computed from other settings.
      allowed: the values of a choice; extensible tables are looked up on each check.
      least, most: inclusive bounds.
      below: an exclusive upper bound.
      paper, reference: values of these presets, if not the default; may depend on the algorithm.
      meanings: explanations of values whose names are not clear.
      note: explains the default.
      flag: whether the command line has a flag of this name.
    """

    name: str
    kind: str
    about: str
    default: Any = None
    allowed: Collection[str] = ()
    least: float | None = None
    most: float | None = None
    below: float | None = None
    paper: Any = None
    reference: Any = None
    meanings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""
    flag: bool = True

    def default_of(self, algo: str) -> Any:
        """The default under one algorithm."""
        return _by_algorithm(self.default, algo)

    def preset_of(self, preset: str, algo: str) -> Any:
        """The value of a preset, or None for the default."""
        value = {"paper": self.paper, "reference": self.reference}.get(preset)
        return _by_algorithm(value, algo)

    @property
    def rule(self) -> str:
        """The allowed values, as the end of an error message."""
        if self.kind == "choice":
            return f"use one of {tuple(self.allowed)}"
        if self.kind == "bool":
            return "use true or false"
        if self.kind == "int":
            most = NEVER if self.most is None else int(self.most)
            return f"use an integer of at least {self.least or 0:g} and at most {most}"
        if self.below is not None:
            return f"use a value in [{self.least:g}, {self.below:g})"
        if self.most is not None:
            return f"use a value in [{self.least:g}, {self.most:g}]"
        return (
            "use a finite number"
            if self.least is None
            else f"use a value of at least {self.least:g}"
        )

    def check(self, value: Any) -> None:
        """Raises ValueError if `value` is not allowed."""
        if problem := self.problem(value):
            raise ValueError(f"{self.name}={value!r}: {problem}")

    def parse(self, text: str) -> Any:
        """Parses a value; raises ValueError with the rule as its message."""
        text = text.strip()
        try:
            value = _PARSERS[self.kind](text)
        except (ValueError, KeyError):
            raise ValueError(self.rule) from None
        if problem := self.problem(value):
            raise ValueError(problem)
        return value

    def problem(self, value: Any) -> str | None:
        """The problem with a value, or None."""
        if self.kind == "choice":
            return None if isinstance(value, str) and value in self.allowed else self.rule
        if self.kind == "bool":
            return None if isinstance(value, bool | np.bool_) else self.rule
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
            return self.rule
        if self.kind == "int":
            most = NEVER if self.most is None else self.most
            whole = isinstance(value, int | np.integer)
            return None if whole and (self.least or 0) <= value <= most else self.rule
        if not math.isfinite(value):
            return "a hyper-parameter must be finite"
        if abs(value) > LARGEST_FLOAT:
            return f"a hyper-parameter is a 32-bit float, of at most {LARGEST_FLOAT:.3g}"
        inside = self.least is None or value >= self.least
        inside = inside and (self.most is None or value <= self.most)
        inside = inside and (self.below is None or value < self.below)
        return None if inside else self.rule


Record = TypeVar("Record", bound=type)


def documented(options: Mapping[str, Option], **others: str) -> Callable[[Record], Record]:
    """Adds an `Attributes:` section to a dataclass's docstring, with descriptions from a table of
    options or, for other fields, from `others`."""

    def describe(name: str) -> str:
        option = options.get(name)
        if name in others or option is None:
            return others.get(name, "")
        closed = isinstance(option.allowed, tuple) and option.allowed  # not an extensible table
        return f"{option.about} ({', '.join(option.allowed)})" if closed else option.about

    def add(record: Record) -> Record:
        fields = {f.name: describe(f.name) for f in dataclasses.fields(record)}
        lines = [f"      {name}: {text}." for name, text in fields.items() if text]
        record.__doc__ = "\n".join([f"{record.__doc__}\n\n    Attributes:", *lines, "    "])
        return record

    return add


_PARSERS: dict[str, Any] = {
    "choice": str,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": float,
}


_INHERITED: dict[str, str] = {}  # algorithm -> the algorithm whose defaults it inherits


def inherit_defaults(algo: str, like: str) -> None:
    """Gives `algo` the algorithm-dependent defaults of `like`."""
    _INHERITED[algo] = _INHERITED.get(like, like)


def _by_algorithm(value: Any, algo: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(_INHERITED.get(algo, algo)) if isinstance(algo, str) else None
    return value
