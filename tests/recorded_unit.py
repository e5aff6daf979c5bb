"""A small collected unit; `PYTHONPATH=. python tests/recorded_unit.py` records it again."""

import tempfile
from pathlib import Path

from small_runs import small_run

from experiments import collect
from rlx2_jax.training import execute

FOLDER = Path(__file__).parent / "recorded"


def record(folder: Path) -> None:
    """Trains `small_run` and collects it into `folder`."""
    with tempfile.TemporaryDirectory() as directory:
        execute.execute(small_run(), Path(directory), progress=False)
        folder.mkdir(exist_ok=True)
        for name, data in collect.small_files(Path(directory)).items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    record(FOLDER)
