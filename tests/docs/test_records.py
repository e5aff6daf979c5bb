"""The API reference: complete, and every field of every record is documented."""

import dataclasses
import importlib
import inspect
import re

import pytest
from paths import DOCS

import rlx2_jax as rlx2

pytestmark = pytest.mark.fast

API = DOCS / "api"
MODULE_PAGES = "\n".join(path.read_text() for path in sorted(API.glob("*.rst")))
MODULES = sorted(set(re.findall(r"automodule:: (\S+)", MODULE_PAGES)))
CLASSES = re.findall(r"autoclass:: (rlx2_jax\.\S+)", MODULE_PAGES)


def fields(record: type) -> list[str]:
    """Names of the fields of a named tuple or dataclass; of others, none."""
    if issubclass(record, tuple) and hasattr(record, "_fields"):
        return list(getattr(record, "_fields"))  # noqa: B009
    if dataclasses.is_dataclass(record):
        # A Flax module's name and parent are Flax's.
        return [f.name for f in dataclasses.fields(record) if f.name not in ("parent", "name")]
    return []


def records() -> dict[str, type]:
    """All named tuples and dataclasses of the package that the API reference shows."""
    found = {}
    for module in [importlib.import_module(name) for name in MODULES]:
        found |= {
            f"{module.__name__}.{name}": value
            for name, value in vars(module).items()
            if inspect.isclass(value) and not name.startswith("_")
        }
    for path in CLASSES:
        module, _, name = path.rpartition(".")
        found[path] = getattr(importlib.import_module(module), name)
    for name in rlx2.__all__:
        value = getattr(rlx2, name)
        if inspect.isclass(value):
            found[f"rlx2_jax.{name}"] = value
    return {
        path: value
        for path, value in found.items()
        if value.__module__.startswith("rlx2_jax") and fields(value)
    }


RECORDS = records()


def attributes(record: type) -> set[str]:
    """The names that the `Attributes:` section of a docstring describes."""
    section = inspect.getdoc(record) or ""
    _, _, section = section.partition("Attributes:\n")
    named = re.findall(r"^  (\w+(?:, \w+)*): \S", section, re.MULTILINE)
    return {name for names in named for name in names.split(", ")}


def test_there_are_records():
    named = {"Transition", "Batch", "TimeStep", "Config", "Lane", "Hyper", "TrainResult", "State"}
    assert named <= {record.__name__ for record in RECORDS.values()}
    assert len(set(RECORDS.values())) > 40


@pytest.mark.parametrize("path", sorted(RECORDS))
def test_every_field_is_documented(path):
    record = RECORDS[path]
    assert not set(fields(record)) - attributes(record), "describe them in its `Attributes:`"


def test_the_reference_is_complete():
    """Each public name is on a page: by itself, or as a module."""
    shown = set(re.findall(r"auto\w+:: (?:rlx2_jax\.)?(\w+)$", MODULE_PAGES, re.MULTILINE))
    for name in rlx2.__all__:
        value = getattr(rlx2, name)
        if inspect.ismodule(value):
            assert value.__name__ in MODULES
        elif name != "__version__":
            assert name in shown, f"add {name} to docs/api"


def test_the_overview_names_everything():
    """docs/api/index.rst links every public name."""
    overview = (API / "index.rst").read_text()
    missing = [
        n for n in rlx2.__all__ if n != "__version__" and not re.search(rf"\b{n}\b", overview)
    ]
    assert not missing
