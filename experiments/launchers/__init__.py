"""Launchers run the units of a sweep: in this process, as a SLURM job array, or on a Ray cluster.

A launcher is a module with `define_flags(values)` and `launch(jobs, values)`, which returns the
unfinished jobs. Units are resumable run directories on a shared disk, so a launcher only decides
where each one runs.
"""

import importlib
from typing import Any

NAMES = ("local", "slurm", "ray")


def find(name: str) -> Any:
    """The module of a launcher."""
    return importlib.import_module(f"experiments.launchers.{name}")
