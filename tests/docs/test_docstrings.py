"""docs/_extensions/docstrings.py: docstrings as reStructuredText."""

import importlib.util
from typing import Any

import pytest
from paths import DOCS

pytestmark = pytest.mark.fast
PATH = DOCS / "_extensions" / "docstrings.py"


def _load() -> Any:
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("docstrings", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("|θ| and a * b, T_ but T_0", "\\|θ\\| and a \\* b, T\\_ but T_0\n"),
        ("`a|b`, `c`s", "`a|b`, `c`\\ s\n"),
        ("`a` on\none line, `b`s", "`a` on\none line, `b`\\ s\n"),
        ("Text.\n\n    k = |x|", "Text.\n\n::\n\n    k = |x|\n"),
        (">>> f(**x)\n|", ">>> f(**x)\n|\n"),
        (
            "Args:\n  x: |a|.\n\n  y: b.\n\nEnd.",
            "Args:\n  x: \\|a\\|.\n\n  y: b.\n\nEnd.\n",
        ),
        ("|x|, and more", "\\|x\\|, and more\n"),
        (
            "| a | b |\n|---|---|\n| 1 | x* |",
            ".. list-table::\n   :header-rows: 1\n\n   * - a\n     - b\n   * - 1\n     - x\\*\n",
        ),
    ],
)
def test_translation(text, expected):
    assert "\n".join(_load().translate(text.split("\n"))).rstrip("\n") + "\n" == expected


def test_fields_of_named_tuples_are_left_to_the_docstring():
    from rlx2_jax import Batch

    assert _load()._skip(None, "class", "obs", Batch.__dict__["obs"], False, None) is True
    assert _load()._skip(None, "class", "f", test_translation, False, None) is None
