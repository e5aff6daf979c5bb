"""Writes docs/performance.md and its plots from the benchmark results.

for b in updates capacity steps pipeline growth compact sweep kernels; do
  python -m benchmarks.benchmark $b --sbx=PYTHON --out=docs/measured/$b.json
done
python -m benchmarks.inference_benchmark --torch=PYTHON --out=docs/measured/inference.json
python -m benchmarks.performance

Benchmarks without results are omitted and listed.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags

from rlx2_jax.cli import crash

KINDS = (
    "updates",
    "capacity",
    "steps",
    "pipeline",
    "growth",
    "compact",
    "sweep",
    "kernels",
    "inference",
)


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The existing JSON files, by benchmark."""
    if not folder.is_dir():
        raise ValueError(f"--measured={folder} is not a directory: run the benchmarks first")
    return {
        kind: json.loads((folder / f"{kind}.json").read_text())
        for kind in KINDS
        if (folder / f"{kind}.json").exists()
    }


def table(head: list[str], rows: list[list[str]]) -> str:
    """A markdown table with right-aligned numbers."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _machine(results: dict[str, Any]) -> str:
    about = results["machine"]
    load_ = about.get("load_before")
    loaded = f", load {load_:.2f} when it began" if load_ is not None else ""
    processor = f" of {about['processor']}" if about.get("processor") else ""
    return f"Measured on {about.get('cores')} cores{processor}, jax {about.get('jax')}{loaded}."


def _each(results: dict[str, Any], suffix: str, shown: Callable[[float], str]) -> str:
    """All entries whose names end in `suffix`, on one line."""
    return ", ".join(
        f"{name.removesuffix(suffix).replace('_', ' ')} {shown(value)}"
        for name, value in results.items()
        if name.endswith(suffix)
    )


def rates(results: dict[str, Any], unit: str) -> str:
    """Rates per second and as multiples of SBX."""
    rows = []
    for algo in ("td3", "sac"):
        sbx = results.get(f"sbx_{algo}")
        ours = [
            k
            for k in results
            if k.startswith(f"{algo}_") and re.search(r"lanes?(_own_n|_dense)?$", k)
        ]
        for name in [*ours, *([f"sbx_{algo}"] if sbx else [])]:
            label = name.replace("_", " ").replace("own n", "with RLx2's n").replace("sbx", "SBX")
            label = label.replace("dense", "with all links")
            label = re.sub(r"\b1 lanes", "1 lane", label)
            ratio = f"{results[f'{name}_over_sbx']:.2f}x" if sbx and name in ours else ""
            rows.append([label, f"{results[name]:,.0f}", ratio])
    return table(["", f"{unit}/s", "of SBX"], rows)


def updates(results: dict[str, Any]) -> str:
    """Masked lanes against SBX, updates only."""
    return (
        f"## Updates\n\n{results.get('measured', '')}. Gradient updates per second in a scan, "
        f"Hopper sizes, batch 256, summed over lanes.\n\n{rates(results, 'updates')}\n\n"
        f"{_machine(results)}"
    )


def capacity(results: dict[str, Any]) -> str:
    return (
        f"## Buffer size\n\nA step takes {results['ms_at_1e4']:.2f} ms with room for 1e4 "
        f"transitions and {results['ms_at_1e6']:.2f} ms with room for 1e6: ratio "
        f"{results['ratio']:.2f}. "
        f"{_machine(results)}"
    )


def steps(results: dict[str, Any]) -> str:
    """End to end."""
    overhead = _each(results, "_loop_overhead", lambda v: f"{100 * v:.0f} %")
    more = _each(results, "_8_lanes_over_1", lambda v: f"{v:.2f}x")
    return (
        f"## Whole training steps\n\n{results.get('measured', '')}. Environment steps per second "
        f"on Hopper-v5, one update per step, summed over lanes, without evaluation.\n\n"
        f"{rates(results, 'steps')}\n\nShare of one lane's time spent "
        f"neither in the environment nor in the update (timed in a scan): {overhead}. Speed of "
        f"eight lanes over one: {more}. {_machine(results)}"
    )


def pipeline(results: dict[str, Any]) -> str:
    return (
        f"## Lanes in two halves\n\nEight masked lanes: {results['pipelined']:,.0f} steps/s if "
        "one half steps its environments while the other learns, "
        f"{results['in_turn']:,.0f} in sequence: {results['gain']:.2f}x. {_machine(results)}"
    )


def growth(results: dict[str, Any]) -> str:
    rows = [
        [f"{row['step']:,}", f"{row['us_per_step']:,.0f}", f"{row['memory_mb']:,.0f}"]
        for row in results["windows"]
    ]
    return (
        "## Long runs\n\nOne compact RLx2 lane on Hopper-v5, windows of one run.\n\n"
        f"{table(['until step', 'µs per step', 'memory, MB'], rows)}\n\n{_machine(results)}"
    )


def forms(results: dict[str, Any]) -> str:
    """A table of masked and compact times."""
    rows = [
        [
            name.replace("_", " "),
            f"{row['links']:,}",
            f"{row['masked_us']:,.0f}",
            f"{row['compact_us']:,.0f}",
            f"{row['ratio']:.1f}x",
            f"{row['cpu_ratio']:.1f}x",
        ]
        for name, row in results.items()
        if isinstance(row, dict) and "ratio" in row
    ]
    head = ["", "live links", "masked, µs", "compact, µs", "ratio", "ratio of CPU time"]
    return table(head, rows)


def compact(results: dict[str, Any]) -> str:
    """Compact against masked updates."""
    beside = ", ".join(
        f"{name.replace('_', ' ')} {row['masked_over_sbx']:.2f}x"
        for name, row in results.items()
        if isinstance(row, dict) and "masked_over_sbx" in row
    )
    sbx = f" Masked updates as a multiple of SBX's in the same turns: {beside}." if beside else ""
    return (
        "## Compact against masked\n\nWhole updates (sampling, targets, gradients, Adam, "
        "Polyak), batch 256, 98/95 % (1024 wide: 99/98 %); microseconds per update of one lane. "
        "Masked products skip rows of weights that are zero in a whole block. Live links are those "
        f"of the actor and one critic.\n\n{forms(results)}\n\n"
        f"{_machine(results)}{sbx}"
    )


def sweep(results: dict[str, Any]) -> str:
    """Cost against live links."""
    return (
        "## Cost follows the live links\n\nTD3 updates over sparsities (256 wide) and widths "
        f"(98 %).\n\n{forms(results)}\n\n"
        f"![Time per update against live links](performance-sweep.png)\n\n{_machine(results)}"
    )


def kernels(results: dict[str, Any]) -> str:
    """Kernel throughput against the CPU's peak."""
    rates_ = results["gmac_per_cpu_second"]
    rows = [
        [
            name,
            f"{rate:.1f}",
            f"{100 * rate / rates_['limit']:.0f} %",
            f"{100 * rate / rates_['limit with loads']:.0f} %",
        ]
        for name, rate in rates_.items()
    ]
    head = ["", "10⁹ multiply-adds per CPU second", "of the limit", "of the limit with loads"]
    return (
        "## Kernel throughput\n\nThe limit is the speed of one thread of this CPU in a loop of "
        "multiply-adds in registers. With loads, one factor of each comes from the L1 cache, as in "
        "a sparse product. Networks in batches of 256, whole calls, one thread. A layer with all "
        "links runs as a dense product; with one link missing, as a sparse "
        f"one.\n\n{table(head, rows)}\n\n{_machine(results)}"
    )


def inference(results: dict[str, Any]) -> str:
    """The exported actor against dense baselines."""
    best, size = results["nanoseconds"]["best"], results["bytes"]
    sparse = best["c_sparse"]
    rows = [
        [name.replace("_", " "), f"{ns:,.0f}", f"{ns / sparse:.1f}x"] for name, ns in best.items()
    ]
    sizes = [[name, f"{count:,}"] for name, count in size.items() if isinstance(count, int)]
    about = results["machine"]
    return (
        f"## Inference of one action\n\nThe Hopper actor at 98 % "
        f"({results['network']['live_links']:,} live links), batch 1, one core, best of all turns. "
        f"C is plain C99 with `{results['flags']['plain']}`, vectorised with "
        f"`{results['flags']['vectorised']}`.\n\n"
        f"{table(['', 'ns per action', 'of the sparse C file'], rows)}\n\n"
        f"{table(['size', 'bytes'], sizes)}\n\nMeasured on {about['processor']}, "
        f"{about['compiler']}, jax {about['jax']}, ONNX Runtime {about['onnxruntime']}, "
        f"PyTorch {about['torch']}."
    )


def plot_sweep(results: dict[str, Any], path: Path) -> None:
    """Plots time per update, masked and compact, against live links."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for prefix, marker in (("sparsity", "o"), ("width", "s")):
        rows = sorted(
            (row["links"], row["masked_us"], row["compact_us"])
            for name, row in results.items()
            if name.startswith(prefix)
        )
        if rows:
            links, masked, live = zip(*rows)
            by = "sparsity, 256 wide" if prefix == "sparsity" else "width, 98 %"
            axes.plot(links, masked, f"C0{marker}--", label=f"masked, by {by}")
            axes.plot(links, live, f"C1{marker}-", label=f"compact, by {by}")
    axes.set(
        xscale="log", yscale="log", xlabel="live links (actor and one critic)",
        ylabel="µs per TD3 update",
    )  # fmt: skip
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(folder: Path, out: Path) -> list[str]:
    """Writes the page and its plots; returns the missing benchmarks."""
    results = load(folder)
    makers = {name: globals()[name] for name in KINDS}
    parts = [makers[kind](results[kind]) for kind in KINDS if kind in results]
    missing = [kind for kind in KINDS if kind not in results]
    note = f"\n\nNot measured: {', '.join(missing)}." if missing else ""
    head = (
        "# Performance\n\nRatios compare measurements that alternate within one run; absolute "
        "times are machine-specific. `python -m benchmarks.performance` writes this page "
        "(its docstring has all commands)."
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "performance.md").write_text("\n\n".join([head + note, *parts]) + "\n")
    if "sweep" in results:
        plot_sweep(results["sweep"], out / "performance-sweep.png")
    return missing


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defined when the command runs, because flag names are shared between commands."""
    to: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string(
        "measured", "docs/measured", "Directory of the benchmarks' JSON files.", **to
    )
    flags.DEFINE_string("out", "docs", "Output directory of the page.", **to)


def main(argv: list[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    try:
        missing = write(Path(flags.FLAGS.measured), Path(flags.FLAGS.out))
    except (ValueError, KeyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if missing:
        print(f"not measured: {', '.join(missing)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    define_flags()
    crash.run(main)
