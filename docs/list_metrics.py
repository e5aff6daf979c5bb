"""Writes docs/metrics.md from the table of metrics: python docs/list_metrics.py"""

from pathlib import Path

from rlx2_jax.training.metrics import METRICS

PAGE = Path(__file__).with_name("metrics.md")
_TITLES = {
    "run": "Columns of every row, and of the ledger",
    "lane": "Of a lane, in `metrics.csv`",
    "update": "Of its last update, in `metrics.csv`",
    "network": "Of each network, in `metrics.csv`: `actor_...`, `critic_...`",
    "evaluation": "Of an evaluation, in `evaluations.csv`",
}


def page() -> str:
    """The page's text."""
    lines = [
        "# Metrics",
        "",
        "Everything that a run reports, from the table in `rlx2_jax/training/metrics.py`.",
        "TensorBoard has those with a tag, as `lane/name`. `rlx2.register_metric` adds one.",
    ]
    for scope, title in _TITLES.items():
        lines += ["", f"## {title}", "| name | meaning | tag |", "| --- | --- | --- |"]
        found = [m for m in METRICS.values() if m.scope == scope]
        lines += [f"| `{m.name}` | {m.meaning} | {'yes' if m.tag else ''} |" for m in found]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
