"""Where the units of a sweep run: in this process, as a SLURM job array, or on a Ray cluster.

A launcher is a module with `define_flags(values)`, which returns nothing, and `launch(jobs,
values)`, which returns the jobs that did not finish. Units are resumable run directories on a disk
that all machines share, so a launcher only decides where each is tried.
"""

import importlib
from typing import Any

NAMES = ("local", "slurm", "ray")


def find(name: str) -> Any:
    """The module of a launcher."""
    return importlib.import_module(f"experiments.launchers.{name}")
