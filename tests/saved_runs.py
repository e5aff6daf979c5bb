"""Reads run directories as a resumed run does."""

from pathlib import Path

from rlx2_jax.training.checkpoint import Checkpoints, Snapshot
from rlx2_jax.training.run import CHECKPOINTS, make_loop, read_run


def snapshots(directory: Path) -> list[Snapshot]:
    """The newest checkpoint of a run of one chunk."""
    run = read_run(directory)
    loop = make_loop(run, run.lanes, directory)
    store = Checkpoints(directory / CHECKPOINTS)
    saved = store.newest(print)
    assert saved is not None
    found = store.load(saved, loop.snapshots())
    loop.close()
    return found
