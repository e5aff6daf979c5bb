"""A tracker: one file of JSON lines per lane."""

import json

import rlx2_jax as rlx2


class JsonLines:
    """Appends rows to `tracked/lane-<id>.jsonl` in the run directory."""

    def __init__(self, lane):
        self._path = lane.directory / "tracked" / f"lane-{lane.id}.jsonl"
        self._path.parent.mkdir(exist_ok=True)
        rows = self._path.read_text().splitlines() if self._path.exists() else []
        self.last = max((json.loads(row)["step"] for row in rows), default=-1)

    def log(self, step, row):
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **row}) + "\n")

    def close(self, summary):
        if summary is not None:
            print(f"{self._path.name}: final score {summary['final_score']:.1f}")


rlx2.register_tracker("json_lines", JsonLines)

if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rlx2.train(
            "rlx2_jax/Truncation-v0",
            logdir=folder,
            tracker="json_lines",
            steps=60,
            warmup=20,
            hidden=(8, 8),
            batch_size=8,
            eval_interval=30,
            metrics_interval=30,
            checkpoint_interval=30,
            episodes=1,
            progress=False,
        )
