"""Folders used by tests."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GOLDEN = ROOT / "tests" / "golden"
