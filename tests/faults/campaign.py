"""Shared by all parts of the campaign: servers, references, a scratch directory."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlx2_jax.kernels import native

from . import cases, inject
from .cases import CASES, Reference
from .process import Pool


class Campaign:
    """A scratch directory with fork servers and undisturbed runs."""

    def __init__(self, scratch: Path, cache: Path, jobs: int):
        self.scratch, self.jobs = scratch.resolve(), jobs
        self.scratch.mkdir(parents=True, exist_ok=True)
        cache.mkdir(parents=True, exist_ok=True)
        native.execution()  # compile the kernels once, before any case
        self.pool = Pool(self.scratch, cache.resolve(), inject.build(self.scratch), jobs)
        self._references: dict[str, Reference] = {}

    def references(self, names: Sequence[str]) -> list[Reference]:
        """The undisturbed runs of cases."""
        missing = [name for name in names if name not in self._references]
        with ThreadPoolExecutor(self.jobs) as threads:
            for reference in threads.map(self._reference, missing):
                self._references[reference.case.name] = reference
        return [self._references[name] for name in names]

    def _reference(self, name: str) -> Reference:
        began = time.monotonic()
        with self.pool.server() as server:
            found = cases.reference(CASES[name], server, self.scratch / "references")
        text = f"{name}: undisturbed in {found.ended.seconds:.1f} s, {len(found.ended.calls)} calls"
        print(f"{text} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        return found


@contextlib.contextmanager
def campaign(scratch: Path, cache: Path, jobs: int) -> Iterator[Campaign]:
    """Starts the servers and stops them afterwards."""
    found = Campaign(scratch, cache, jobs)
    try:
        yield found
    finally:
        found.pool.close()
