"""Writes docs/metrics.md from the table of metrics: python docs/list_metrics.py"""

from pathlib import Path

from rlx2_jax.training.metrics import METRICS

PAGE = Path(__file__).with_name("metrics.md")
_TITLES = {
    "run": "Columns of every row",
    "lane": "Lane metrics, in `metrics.csv`",
    "update": "Metrics of the last update, in `metrics.csv`",
    "network": "Network metrics, in `metrics.csv`: `actor_...`, `critic_...`",
    "evaluation": "Evaluation metrics, in `evaluations.csv`",
}


def page() -> str:
    """The page's text."""
    lines = [
        "# Metrics",
        "",
        "All metrics of a run, from the table in `rlx2_jax/training/metrics.py`.",
        "Those with a tag are also in TensorBoard, as `lane/name`.",
        "`rlx2.register_metric` adds one.",
    ]
    for scope, title in _TITLES.items():
        lines += ["", f"## {title}", "| name | meaning | tag |", "| --- | --- | --- |"]
        found = [m for m in METRICS.values() if m.scope == scope]
        lines += [f"| `{m.name}` | {m.meaning} | {'yes' if m.tag else ''} |" for m in found]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
