"""Sparse against dense training on a classification task, with all methods of `sparsify`.

python -m benchmarks.supervised             # measures: docs/measured/supervised.json and the page
python -m benchmarks.supervised --page      # only the page: docs/supervised.md and its figure

The task is to classify the frequency (one of eight) of a noisy sine wave of random phase. A quarter
of the inputs are samples of the wave, at random positions; the others are noise. The mean input is
0 in every class, so logistic regression learns nothing, and a network with few links must find the
informative inputs. Every batch is new, so training and test error agree.

All sparsities and seeds of a method are one compiled program: sparsity is traced and `vmap`ped.
"""

import hashlib
import json
import sys
import textwrap
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks.measure import machine
from rlx2_jax.cli import crash
from rlx2_jax.sparse.optimizer import sparsify
from rlx2_jax.sparse.state import masks_of
from rlx2_jax.types import Array

CLASSES, INPUTS, SAMPLES, HIDDEN = 8, 128, 32, 64
BATCH, TEST, LEARNING_RATE = 64, 2048, 3e-3
STEPS, SEEDS, SPARSITIES = 1000, 5, (0.8, 0.9, 0.95, 0.98)
ABOUT = {
    "dense": "all links",
    "static": "random links, never changed",
    "set": "drops the smallest, grows at random",
    "rigl": "drops the smallest, grows where the gradient is largest",
    "snfs": "grows by the smoothed gradient, links move between layers",
    "dsr": "drops the smallest of all layers, grows at random",
    "deepr": "replaces links that would change their sign, at every step",
    "srigl": "RigL with the same number of links into every unit",
    "gmp": "dense at first, pruned gradually",
    "magnitude": "dense for the first half, pruned once",
    "snip": "pruned once, before training, by sensitivity",
    "grasp": "pruned once, before training, by gradient flow",
}


def options(method: str, steps: int) -> dict[str, Any]:
    """Settings of a method: a mask update every 25 steps for three quarters of the training."""
    periodic = {"interval": max(steps // 40, 1), "t_end": 3 * steps // 4}
    special = {"deepr": {}, "magnitude": {"at": steps // 2}, "snip": {}, "grasp": {}}
    return special.get(method, periodic)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(2):
            x = nn.relu(nn.Dense(HIDDEN)(x))
        return nn.Dense(CLASSES)(x)


def examples(places: Array, key: Array, n: int) -> tuple[Array, Array]:
    """n waves sampled at `places`, and their classes."""
    key_label, key_phase, key_noise = jax.random.split(key, 3)
    label = jax.random.randint(key_label, (n, 1), 0, CLASSES)
    phase = jax.random.uniform(key_phase, (n, 1), maxval=2 * jnp.pi)
    t = 2 * jnp.pi * jnp.arange(SAMPLES)[None] / SAMPLES
    wave = jnp.sqrt(2.0) * jnp.sin((label + 1) * t + phase)
    x = jax.random.normal(key_noise, (n, INPUTS))
    return x.at[:, places].set(wave + 0.5 * x[:, :SAMPLES]), label[:, 0]


def train(method: str, steps: int, sparsity: Array, key: Array) -> dict[str, Array]:
    """One run: test accuracy and live links. Runs of equal keys see equal data and weights."""
    keys = jax.random.split(key, 4)
    places = jax.random.permutation(keys[0], INPUTS)[:SAMPLES]
    network = Network()
    params = network.init(keys[1], jnp.zeros((1, INPUTS)))
    adam = optax.adam(LEARNING_RATE)
    tx = sparsify(adam, sparsity, method=method, seed=keys[2], **options(method, steps))

    def step(carry: Any, i: Array) -> tuple[Any, None]:
        params, state = carry
        x, label = examples(places, jax.random.fold_in(keys[3], i), BATCH)

        def loss(params: Any) -> Array:
            logits: Any = network.apply(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

        more = {"grad_fn": jax.grad(loss)} if method == "grasp" else {}
        updates, state = tx.update(jax.grad(loss)(params), state, params, **more)
        return (optax.apply_updates(params, updates), state), None

    (params, state), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(steps))
    x, label = examples(places, jax.random.fold_in(keys[3], steps), TEST)
    logits: Any = network.apply(params, x)
    masks = masks_of(state)["params"]
    links = jnp.stack([layer["kernel"].sum() for layer in masks.values()]).sum()
    return {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == label), "links": links}


def measure(
    methods: tuple[str, ...] = tuple(ABOUT), steps: int = STEPS, seeds: int = SEEDS
) -> dict[str, Any]:
    """Accuracies [seeds] and links of every method and sparsity."""
    about, begin, results = machine(), time.process_time(), {}
    keys = jax.random.split(jax.random.key(0), seeds)
    for method in methods:
        sparsities = (0.0,) if method == "dense" else SPARSITIES
        over_seeds = jax.vmap(lambda s, k, m=method: train(m, steps, s, k), (None, 0))
        runs = jax.jit(jax.vmap(over_seeds, (0, None)))(jnp.asarray(sparsities, jnp.float32), keys)
        results[method] = {
            str(s): {
                "accuracy": [round(float(x), 5) for x in runs["accuracy"][i]],
                "links": sorted({int(x) for x in runs["links"][i]}),
            }
            for i, s in enumerate(sparsities)
        }
        shown = {s: round(float(np.mean(x["accuracy"])), 3) for s, x in results[method].items()}
        print(f"{method}: {shown}", file=sys.stderr, flush=True)
    task = {"steps": steps, "seeds": seeds, "batch": BATCH, "learning_rate": LEARNING_RATE}
    task |= {"layers": [INPUTS, HIDDEN, HIDDEN, CLASSES], "informative_inputs": SAMPLES}
    return {
        "task": task | {"test_examples": TEST},
        "methods": results,
        "cpu_seconds": round(time.process_time() - begin),
        "machine": about,
    }


def page(results: dict[str, Any]) -> str:
    """docs/supervised.md."""
    task, methods, about = results["task"], results["methods"], results["machine"]
    sizes, seeds, steps = task["layers"], task["seeds"], task["steps"]
    percent = lambda x: f"{100 * np.mean(x):.1f} ± {100 * np.std(x):.1f}"  # noqa: E731
    dense = percent(methods["dense"]["0.0"]["accuracy"])
    sparse = {name: runs for name, runs in methods.items() if name != "dense"}
    sparsities = sorted({s for runs in sparse.values() for s in runs})
    shown = {s: f"{100 * float(s):g} %" for s in sparsities}
    score = lambda name: float(np.mean(sparse[name][sparsities[-1]]["accuracy"]))  # noqa: E731
    head = ["method", *shown.values(), "what it does"]
    rows = [
        [f"`{name}`", *(percent(sparse[name][s]["accuracy"]) for s in sparsities), ABOUT[name]]
        for name in sorted(sparse, key=score, reverse=True)
    ]
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, f"|---|{'---:|' * len(sparsities)}---|")
    links = ", ".join(f"{_links(sparse['rigl'][s])} at {shown[s]}" for s in sparsities)
    fan_in = ", ".join(_links(sparse["srigl"][s]) for s in sparsities)
    parts = [
        f"The task is to classify the frequency (one of {sizes[-1]}) of a noisy sine wave of "
        f"random phase. Of {sizes[0]} inputs, {task['informative_inputs']} are samples of the "
        "wave; the others are noise. The mean input is 0 in every class, so logistic regression "
        f"learns nothing (chance is {100 / sizes[-1]:.1f} %), and a network with few links must "
        "find the informative inputs.",
        f"Test accuracy in percent, mean ± standard deviation over {seeds} seeds, by sparsity. The "
        f"dense network reaches {dense}. Methods are in the order of the highest sparsity.",
        f"An MLP of {'-'.join(map(str, sizes))} units "
        f"({sum(i * o for i, o in pairwise(sizes)):,} weights), {steps:,} steps of Adam (rate "
        f"{task['learning_rate']:g}) on batches of {task['batch']}, every batch new; "
        f"{task['test_examples']:,} test examples. All methods see the same data and initial "
        f"weights. Those with periodic mask updates have one every {max(steps // 40, 1)} steps for "
        "three quarters of the training; nothing was tuned for a method, and DeepR runs without "
        f"its L1 penalty and noise. Live links: {links}; `srigl`, whose "
        f"units all have the same number of links: {fan_in}.",
        f"`python -m benchmarks.supervised` repeats the measurement ({results['cpu_seconds']} s of "
        f"CPU time on {about['processor']}, jax {about['jax']}) and writes this page; with "
        "`--page` it writes the page from `docs/measured/supervised.json` alone.",
    ]
    task_, table, how, again = (textwrap.fill(part, 100) for part in parts)
    figure = "![Test accuracy against sparsity](supervised.png)"
    title = "# Sparse against dense on a supervised task"
    return "\n\n".join([title, task_, figure, table, "\n".join(lines), how, again]) + "\n"


def _links(runs: dict[str, Any]) -> str:
    return " or ".join(f"{n:,}" for n in runs["links"])


def digest(results: dict[str, Any]) -> str:
    """One line that identifies the data shown in the figure and is stored in it."""
    shown = json.dumps(results["methods"], sort_keys=True)
    return f"sha256 of the methods: {hashlib.sha256(shown.encode()).hexdigest()}"


def plot(results: dict[str, Any], path: Path) -> None:
    """Plots accuracy against sparsity, one line per method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    names = [name for name in results["methods"] if name != "dense"]
    for i, name in enumerate(names):
        runs = results["methods"][name]
        values = np.array([100 * np.array(x["accuracy"]) for x in runs.values()])
        place = np.arange(len(runs)) + 0.03 * (i - len(names) / 2)
        axes.errorbar(
            place, values.mean(axis=1), values.std(axis=1), label=name, marker="os^vDPX"[i % 7],
            color=f"C{i % 10}", linestyle="--" if i >= 10 else "-", markersize=5, capsize=2,
        )  # fmt: skip
    dense = 100 * np.mean(results["methods"]["dense"]["0.0"]["accuracy"])
    axes.axhline(dense, color="black", linestyle=":", label="dense")
    ticks = [f"{100 * float(s):g} %" for s in results["methods"][names[0]]]
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set(xlabel="sparsity", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=110, metadata={"Description": digest(results)})
    plt.close(figure)


def write(measured: Path, out: Path) -> None:
    """Writes the page and its figure from the measurements."""
    results = json.loads(measured.read_text())
    (out / "supervised.md").write_text(page(results))
    plot(results, out / "supervised.png")


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    to: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("measured", "docs/measured/supervised.json", "The measurement.", **to)
    flags.DEFINE_string("out", "docs", "Output directory of the page.", **to)
    flags.DEFINE_bool("page", False, "Write the page from existing measurements.", **to)


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    measured = Path(flags.FLAGS.measured)
    if not flags.FLAGS.page:
        measured.write_text(json.dumps(measure(), indent=1) + "\n")
    elif not measured.exists():
        print(f"error: {measured} does not exist: measure first, without --page", file=sys.stderr)
        return 2
    write(measured, Path(flags.FLAGS.out))
    return 0


if __name__ == "__main__":
    define_flags()
    crash.run(main)
