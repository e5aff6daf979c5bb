"""Folders that tests read."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GOLDEN = ROOT / "tests" / "golden"
