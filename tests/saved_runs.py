"""What a run directory holds, read as a resumed run reads it."""

from pathlib import Path

from rlx2_jax.export.actor import read_run
from rlx2_jax.runtime.checkpoint import Checkpoints, Snapshot
from rlx2_jax.runtime.run import make_loop


def snapshots(directory: Path) -> list[Snapshot]:
    """The newest checkpoint of a run of one chunk."""
    run = read_run(directory)
    loop = make_loop(run, run.lanes, directory)
    store = Checkpoints((directory / "checkpoints" / "chunk-0").resolve())
    found = store.restore(loop.snapshots(), warn=print)
    store.close()
    loop.close()
    assert found is not None
    return found[0]
