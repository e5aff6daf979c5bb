"""What a Ray worker runs. Importing this imports nothing else: the environment comes first."""

import os
import pickle
from collections.abc import Mapping
from typing import Any


class Interrupted(Exception):
    """The worker had to stop and saved; the task is tried again."""


def run(job: bytes, environment: Mapping[str, str], *needs: Any) -> str:
    """Trains a pickled job after its `needs`; returns why it is not finished, or nothing."""
    del needs  # Ray waits for them
    os.environ.update(environment)
    return pickle.loads(job)()
