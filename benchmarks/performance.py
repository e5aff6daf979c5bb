"""Writes docs/performance.md and its pictures from what the benchmarks measured.

for b in updates capacity steps pipeline growth compact sweep kernels; do
  python -m benchmarks.benchmark $b --sbx=PYTHON --out=docs/measured/$b.json
done
python -m benchmarks.inference_benchmark --torch=PYTHON --out=docs/measured/inference.json
python -m benchmarks.performance

Whatever was not measured is left out and named; nothing is filled in.
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
    """The JSON files that are there, by benchmark."""
    if not folder.is_dir():
        raise ValueError(f"--measured={folder} is no directory: run the benchmarks first")
    return {
        kind: json.loads((folder / f"{kind}.json").read_text())
        for kind in KINDS
        if (folder / f"{kind}.json").exists()
    }


def table(head: list[str], rows: list[list[str]]) -> str:
    """A markdown table, numbers to the right."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _machine(found: dict[str, Any]) -> str:
    about = found["machine"]
    load_ = about.get("load_before")
    loaded = f", load {load_:.2f} when it began" if load_ is not None else ""
    processor = f" of {about['processor']}" if about.get("processor") else ""
    return f"Measured on {about.get('cores')} cores{processor}, jax {about.get('jax')}{loaded}."


def _each(found: dict[str, Any], suffix: str, shown: Callable[[float], str]) -> str:
    """Everything whose name ends so, in one line."""
    return ", ".join(
        f"{name.removesuffix(suffix).replace('_', ' ')} {shown(value)}"
        for name, value in found.items()
        if name.endswith(suffix)
    )


def rates(found: dict[str, Any], unit: str) -> str:
    """Everything per second, and as a multiple of SBX."""
    rows = []
    for algo in ("td3", "sac"):
        sbx = found.get(f"sbx_{algo}")
        ours = [
            k
            for k in found
            if k.startswith(f"{algo}_") and re.search(r"lanes?(_own_n|_dense)?$", k)
        ]
        for name in [*ours, *([f"sbx_{algo}"] if sbx else [])]:
            label = name.replace("_", " ").replace("own n", "with RLx2's n").replace("sbx", "SBX")
            label = label.replace("dense", "with all links")
            label = re.sub(r"\b1 lanes", "1 lane", label)
            ratio = f"{found[f'{name}_over_sbx']:.2f}x" if sbx and name in ours else ""
            rows.append([label, f"{found[name]:,.0f}", ratio])
    return table(["", f"{unit}/s", "of SBX"], rows)


def updates(found: dict[str, Any]) -> str:
    """Masked lanes against SBX, updates only."""
    return (
        f"## Updates\n\n{found.get('measured', '')}. Gradient updates per second in a scan, Hopper "
        f"sizes, batch 256, all lanes together.\n\n{rates(found, 'updates')}\n\n{_machine(found)}"
    )


def capacity(found: dict[str, Any]) -> str:
    return (
        f"## Buffer size\n\nA step takes {found['ms_at_1e4']:.2f} ms with room for 1e4 transitions "
        f"and {found['ms_at_1e6']:.2f} ms with room for 1e6: ratio {found['ratio']:.2f}. "
        f"{_machine(found)}"
    )


def steps(found: dict[str, Any]) -> str:
    """End to end."""
    overhead = _each(found, "_loop_overhead", lambda v: f"{100 * v:.0f} %")
    more = _each(found, "_8_lanes_over_1", lambda v: f"{v:.2f}x")
    return (
        f"## Whole training steps\n\n{found.get('measured', '')}. Environment steps per second on "
        f"Hopper-v5, one update per step, all lanes together, evaluation left out.\n\n"
        f"{rates(found, 'steps')}\n\nShare of one lane's time that is neither "
        f"environment nor update (as it runs in a scan): {overhead}. Eight lanes together over "
        f"one: {more}. {_machine(found)}"
    )


def pipeline(found: dict[str, Any]) -> str:
    return (
        f"## Halves in turn\n\nEight masked lanes: {found['pipelined']:,.0f} steps/s while one "
        f"half steps its environments and the other learns, {found['in_turn']:,.0f} one after the "
        f"other: {found['gain']:.2f}x. {_machine(found)}"
    )


def growth(found: dict[str, Any]) -> str:
    rows = [
        [f"{row['step']:,}", f"{row['us_per_step']:,.0f}", f"{row['memory_mb']:,.0f}"]
        for row in found["windows"]
    ]
    return (
        "## Long runs\n\nOne compact RLx2 lane on Hopper-v5, windows of one run.\n\n"
        f"{table(['until step', 'µs per step', 'memory, MB'], rows)}\n\n{_machine(found)}"
    )


def forms(found: dict[str, Any]) -> str:
    """A table of both forms."""
    rows = [
        [
            name.replace("_", " "),
            f"{row['links']:,}",
            f"{row['masked_us']:,.0f}",
            f"{row['compact_us']:,.0f}",
            f"{row['ratio']:.1f}x",
            f"{row['cpu_ratio']:.1f}x",
        ]
        for name, row in found.items()
        if isinstance(row, dict) and "ratio" in row
    ]
    head = ["", "live links", "masked, µs", "compact, µs", "ratio", "ratio of CPU time"]
    return table(head, rows)


def compact(found: dict[str, Any]) -> str:
    """Live links against masks."""
    beside = ", ".join(
        f"{name.replace('_', ' ')} {row['masked_over_sbx']:.2f}x"
        for name, row in found.items()
        if isinstance(row, dict) and "masked_over_sbx" in row
    )
    sbx = f" Masked updates as a multiple of SBX's in the same turns: {beside}." if beside else ""
    return (
        "## Live links only, against masks\n\nWhole updates (sampling, targets, gradients, Adam, "
        "Polyak), batch 256, 98/95 % or, 1024 wide, 99/98 %; microseconds per update of one lane. "
        "Masked products leave out rows of weights that are zero in a whole block. Links are those "
        f"of the actor and one critic.\n\n{forms(found)}\n\n"
        f"{_machine(found)}{sbx}"
    )


def sweep(found: dict[str, Any]) -> str:
    """Cost against live links."""
    return (
        "## Cost follows the live links\n\nTD3 updates over sparsities (256 wide) and widths "
        f"(98 %).\n\n{forms(found)}\n\n![Time per update against live links](performance-sweep.png)"
        f"\n\n{_machine(found)}"
    )


def kernels(found: dict[str, Any]) -> str:
    """The kernels against what the CPU's arithmetic can do."""
    rates_ = found["gmac_per_cpu_second"]
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
        "## How far the kernels are from the limit\n\nThe limit is what one thread of this CPU "
        "does in a loop of multiply-adds in registers; with loads, one factor of each comes from "
        "the first cache, which is what a product with live links needs. Networks in batches of "
        "256, whole calls, one thread. A layer that has all its links is taken as the matrix that "
        f"it is; without one link, link by link.\n\n{table(head, rows)}\n\n{_machine(found)}"
    )


def inference(found: dict[str, Any]) -> str:
    """The exported actor against dense ones."""
    best, size = found["nanoseconds"]["best"], found["bytes"]
    sparse = best["c_sparse"]
    rows = [
        [name.replace("_", " "), f"{ns:,.0f}", f"{ns / sparse:.1f}x"] for name, ns in best.items()
    ]
    sizes = [[name, f"{count:,}"] for name, count in size.items() if isinstance(count, int)]
    about = found["machine"]
    return (
        f"## One action at a time\n\nThe Hopper actor at 98 % ({found['network']['live_links']:,} "
        f"live links), batch 1, one core, best of all turns. C is plain C99 with "
        f"`{found['flags']['plain']}`, vectorised with `{found['flags']['vectorised']}`.\n\n"
        f"{table(['', 'ns per action', 'of the sparse C file'], rows)}\n\n"
        f"{table(['size', 'bytes'], sizes)}\n\nMeasured on {about['processor']}, "
        f"{about['compiler']}, jax {about['jax']}, ONNX Runtime {about['onnxruntime']}, "
        f"PyTorch {about['torch']}."
    )


def plot_sweep(found: dict[str, Any], path: Path) -> None:
    """Time per update of both forms against live links."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for prefix, marker in (("sparsity", "o"), ("width", "s")):
        rows = sorted(
            (row["links"], row["masked_us"], row["compact_us"])
            for name, row in found.items()
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
    """The page and its pictures; returns the benchmarks that are missing."""
    found = load(folder)
    makers = {name: globals()[name] for name in KINDS}
    parts = [makers[kind](found[kind]) for kind in KINDS if kind in found]
    missing = [kind for kind in KINDS if kind not in found]
    note = f"\n\nNot measured: {', '.join(missing)}." if missing else ""
    head = (
        "# Performance\n\nRatios compare measurements that alternate within one run; absolute "
        "times are machine-specific. `python -m benchmarks.performance` writes this page "
        "(its docstring has all commands)."
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "performance.md").write_text("\n\n".join([head + note, *parts]) + "\n")
    if "sweep" in found:
        plot_sweep(found["sweep"], out / "performance-sweep.png")
    return missing


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """This command's flags, defined when it runs: other commands have some of the same names."""
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string(
        "measured", "docs/measured", "Directory of the benchmarks' JSON files.", **own
    )
    flags.DEFINE_string("out", "docs", "Where the page goes.", **own)


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
