"""Imports: layers, no cycles, and an up-to-date graph in docs/architecture.md."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

pytestmark = pytest.mark.fast


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


drawing = _load(ROOT / "docs" / "draw_imports.py")
RANK = {name: rank for rank, layer in enumerate(drawing.LAYERS) for name in layer}


@pytest.fixture(scope="module")
def graph():
    return drawing.graph()


def test_imports_go_down(graph):
    wrong = [
        f"{module} imports {other}"
        for module, imported in graph.items()
        for other in imported
        if RANK[drawing.unit(other)] > RANK[drawing.unit(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_no_cycles(graph):
    """Of modules, and of the parts of the package; imports inside functions count as well."""
    assert drawing.cycle(graph) == []
    assert drawing.cycle(drawing.units(graph)) == []


def test_every_part_has_a_layer(graph):
    assert {drawing.unit(module) for module in graph} == set(RANK)


def test_the_drawing_is_up_to_date():
    text = drawing.PAGE.read_text()
    assert drawing.page(text) == text, "run ./dev docs"


def test_only_the_command_line_knows_absl(graph):
    for module, path in drawing.modules().items():
        if drawing.unit(module) not in ("cli", "experiments", "benchmarks"):
            assert "from absl" not in path.read_text(), module


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import rlx2_jax.types", {"rlx2_jax.types"}),
        ("def f():\n    from rlx2_jax import types, nothing", {"rlx2_jax.types", "rlx2_jax"}),
        ("if TYPE_CHECKING:\n    from rlx2_jax.types import Batch", {"rlx2_jax.types"}),
        ("import numpy\nfrom . import types", set()),
    ],
)
def test_every_kind_of_import_counts(code, expected):
    known = {"rlx2_jax": Path(), "rlx2_jax.types": Path()}
    assert drawing._imports(drawing.ast.parse(code), known) == expected


def test_a_cycle_is_found():
    assert drawing.cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert drawing.cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
