"""End-of-run summary: `summary.json`, a table, a plot of the learning curves."""

import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx2_jax.config import Config, Lane
from rlx2_jax.training.evaluate import final_score
from rlx2_jax.training.fingerprint import git_commit, processor, versions
from rlx2_jax.training.lane_ledger import lane_ledger
from rlx2_jax.training.run import Run


class LaneResult(NamedTuple):
    """The result of a lane."""

    number: int
    lane: Lane
    history: list[dict[str, Any]]  # its rows in evaluations.csv
    last: dict[str, Any]  # its newest report
    seconds: float  # of training, without evaluation


def summarize(run: Run, results: Sequence[LaneResult], **more: Any) -> dict[str, Any]:
    """The contents of `summary.json`, extended by `more`."""
    config, rows = run.config, []
    for result in results:
        lane, last = result.lane, result.last
        rows.append(
            {
                **scores(result),
                "actor_sparsity": sparsity(last, "actor", config),
                "critic_sparsity": sparsity(last, "critic", config),
                "actor_evolutions": last["actor_evolutions"],
                "critic_evolutions": last.get("critic_evolutions"),
                "n": last["n"],
                "trims": last["trims"],
                "buffer_length": last["buffer_length"],
                "alive": bool(last["alive"]),
                "ledger": dataclasses.asdict(lane_ledger(config, lane)),
                "steps_per_second": config.steps / max(result.seconds, 1e-9),
            }
        )
    return {
        "env": run.env,
        "algo": config.algo,
        "steps": config.steps,
        "lanes": rows,
        "versions": versions(),
        "git_commit": git_commit(),
        "processor": processor(),
        **more,
    }


def scores(result: LaneResult) -> dict[str, Any]:
    """A lane's name and returns."""
    means = [row["mean_return"] for row in result.history if row["step"] > 0]
    score, used = final_score(means)
    return {
        "lane": result.number,
        "method": result.lane.method,
        "seed": result.lane.seed,
        "final_score": score,
        "evaluations_used": used,
        "best_return": max(means, default=float("nan")),
        "last_return": means[-1] if means else float("nan"),
    }


def sparsity(row: dict[str, Any], net: str, config: Config) -> float | None:
    """The fraction of absent links over all layers of a network; None if the row does not have its
    layers."""
    sizes = {name: math.prod(shape) for name, shape in getattr(config, f"{net}_layers")}
    total = absent = 0.0
    for key, value in row.items():
        if key.startswith(f"{net}_sparsity/"):
            _, *path = key.split("/")
            size = sizes.get("/".join(path if net == "actor" else path[1:]))  # without q1, q2, ...
            if size is None:
                return None
            total, absent = total + size, absent + size * value
    return max(absent / total, 0.0) if total else None


def table(summary: dict[str, Any]) -> str:
    """The table printed at the end of a run, one line per lane."""
    head = (
        "lane  method      seed  final score (evals)  best return  sparsity a/c  "
        "evolutions a/c  n  trims  buffer    FLOPs"
    )
    lines = [head, "-" * len(head)]
    for row in summary["lanes"]:
        nets = ("actor", "critic") if row["critic_sparsity"] is not None else ("actor",)
        sparsity = "/".join(f"{100 * row[f'{net}_sparsity']:.0f}" for net in nets) + "%"
        evolutions = "/".join(str(row[f"{net}_evolutions"]) for net in nets)
        flops = row["ledger"]["relative"]["train_flops"]
        score = f"{row['final_score']:.1f} ({row['evaluations_used']})"
        lines.append(
            f"{row['lane']:<4}  {row['method']:<10}  {row['seed']:<4}  {score:>19}  "
            f"{row['best_return']:>11.1f}  {sparsity:>12}  {evolutions:>14}  {row['n']}  "
            f"{row['trims']:>5}  {row['buffer_length']:>7,}  {flops:.3f}x"
            + ("" if row["alive"] else "  FROZEN: a gradient was not finite")
        )
    return "\n".join(lines)


def plot(run: Run, results: Sequence[LaneResult]) -> bytes:
    """`curves.png`: return against environment steps, by method, as mean and range over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    results = [r for r in results if r.history]
    for i, method in enumerate(dict.fromkeys(r.lane.method for r in results)):
        group = [r for r in results if r.lane.method == method]
        shared = min(len(r.history) for r in group)  # lanes of an unfinished run may differ
        steps = [row["step"] for row in group[0].history[:shared]]
        returns = np.array([[row["mean_return"] for row in r.history[:shared]] for r in group])
        name = f"{method} ({len(group)} seed{'s' if len(group) > 1 else ''})"
        axes.plot(steps, returns.mean(axis=0), color=f"C{i}", label=name, lw=1.8)
        if len(group) > 1:
            low, high = returns.min(axis=0), returns.max(axis=0)
            axes.fill_between(steps, low, high, color=f"C{i}", alpha=0.15, lw=0)
    axes.set(
        title=f"{run.env}, {run.config.algo.upper()}",
        xlabel="environment steps",
        ylabel=f"return (mean of {run.episodes} episodes)",
    )
    axes.grid(alpha=0.3)
    if results:
        axes.legend(loc="best", frameon=False)
    image = io.BytesIO()
    figure.savefig(image, dpi=120, format="png")
    plt.close(figure)
    return image.getvalue()
