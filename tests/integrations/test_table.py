"""The table of integrations in the documentation matches the tests."""

import importlib.util
from typing import Any

import pytest
from paths import DOCS


@pytest.mark.fast
def test_the_page_has_a_row_per_test():
    spec: Any = importlib.util.spec_from_file_location(
        "list_integrations", DOCS / "list_integrations.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run python docs/list_integrations.py"
