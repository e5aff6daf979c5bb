"""Runs in Ray workers. Imports nothing at the top: environment variables must be set first."""

import os
import pickle
from collections.abc import Mapping
from typing import Any


class Interrupted(Exception):
    """The worker had to stop and has saved; the task will be retried."""


def run(job: bytes, environment: Mapping[str, str], *needs: Any) -> str:
    """Trains a pickled job after its `needs`; returns why it is unfinished, or an empty string."""
    del needs  # Ray waits for them
    os.environ.update(environment)
    return pickle.loads(job)()
