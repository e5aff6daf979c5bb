"""Speed ratios, each measured within one run. Prints one JSON object.

    python -m benchmarks.benchmark updates  [--sbx=PYTHON]   gradient updates per second
    python -m benchmarks.benchmark capacity                  cost of a step against buffer size
    python -m benchmarks.benchmark steps    [--sbx=PYTHON]   environment steps per second
    python -m benchmarks.benchmark pipeline                  speedup from stepping lanes in halves
    python -m benchmarks.benchmark growth                    time and memory over a long run
    python -m benchmarks.benchmark compact  [--sbx=PYTHON]   compact against masked updates
    python -m benchmarks.benchmark sweep                     the same over sparsities and widths
    python -m benchmarks.benchmark kernels                   kernels against the CPU's peak
    python -m benchmarks.benchmark sparsify                  `sparsify` against plain Adam

`--sbx` is a Python interpreter with SBX installed (see benchmarks/peers/README.md).
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags, logging

from benchmarks import kernel_benchmark, sparsify_benchmark, training_benchmark
from benchmarks.measure import Peer, Peers, Turns, interleaved, machine, over_sbx
from benchmarks.update_benchmark import Scanned, program
from rlx2_jax import config as configs
from rlx2_jax.cli import crash

FLAGS = flags.FLAGS
flags.DEFINE_string("sbx", None, "Python interpreter with SBX, which is then measured too.")
flags.DEFINE_string("bench_env", "Hopper-v5", "Environment of `steps` and `pipeline`.")
flags.DEFINE_integer(
    "repeats", 5, "Measurements of each subject; the median is reported.", lower_bound=1
)
flags.DEFINE_integer("bench_steps", 3000, "Time steps of each end-to-end measurement.")
flags.DEFINE_integer("growth_steps", 200_000, "Time steps of `growth`.", lower_bound=10)
flags.DEFINE_string("out", None, "Also write the JSON to this file.")


def updates() -> dict[str, Any]:
    """Gradient updates per second in a scan, Hopper sizes, batch 256, sampling included.

    Masked lanes with 1-step targets, as in SBX. `own_n` uses RLx2's n (3; 2 for SAC, which costs
    SAC a second forward pass of the actor). `dense` has all links, so the products skip no rows."""
    out: dict[str, Any] = {"measured": "masked RLx2 lanes at 98/95 %, 1-step targets as SBX has"}
    for algo in ("td3", "sac"):
        ours = {n: Scanned(program(algo, n, n=1, updates=400 // n)) for n in (1, 8)}
        subjects: dict[str, Callable[[], float]] = {
            f"{algo}_{n}_lanes": lambda n=n, ours=ours: n / ours[n]() for n in ours
        }
        more = {
            "own_n": Scanned(program(algo, 1, updates=400)),
            "dense": Scanned(program(algo, 1, n=1, sparsity=(0.0, 0.0), updates=400)),
        }
        subjects |= {f"{algo}_1_lane_{k}": lambda run=run: 1 / run() for k, run in more.items()}
        with Peers() as peers:
            if FLAGS.sbx:
                subjects[f"sbx_{algo}"] = peers.add(Peer("updates", algo))
            results = interleaved(subjects)
        out |= results.medians()
        out[f"{algo}_8_lanes_over_1"] = results.ratio(f"{algo}_8_lanes", f"{algo}_1_lanes")
        out |= over_sbx(results, algo)
        out[f"{algo}_turns"] = results.values
    return out


def capacity() -> dict[str, Any]:
    """The cost of a step must not grow with the buffer."""
    sizes = {"1e4": 10_000, "1e6": 1_000_000}
    subjects = {
        name: Scanned(program("td3", 1, capacity=size), 200) for name, size in sizes.items()
    }
    results = interleaved({f"ms_at_{k}": lambda s=s: 1e3 * s() for k, s in subjects.items()})
    return {**results.medians(), "ratio": results.ratio("ms_at_1e6", "ms_at_1e4")}


def side_by_side(
    algo: str,
    lanes: int,
    hidden: tuple[int, ...],
    sparsity: tuple[float, float],
    count: int,
    *,
    n: int | None = None,
    sbx: bool = False,
) -> dict[str, Any]:
    """Microseconds per update of one masked and one compact lane, in wall-clock and processor
    time; on a busy machine, use the latter. `sbx`: also measures SBX if --sbx is set."""
    forms = {
        form: Scanned(
            program(
                algo,
                lanes,
                form=form,
                hidden=hidden,
                sparsity=sparsity,
                n=n,
                updates=count * factor,
            )
        )
        for form, factor in (("masked", 1), ("compact", 4))
    }
    cpu = Turns({form: [] for form in forms})

    def measured(form: str) -> float:
        start = time.process_time()
        wall = forms[form]()
        spent = (time.process_time() - start) / forms[form].updates
        cpu.values[form].append(1e6 * spent / lanes)
        return 1e6 * wall / lanes

    subjects: dict[str, Callable[[], float]] = {
        form: lambda form=form: measured(form) for form in forms
    }
    with Peers() as peers:
        if sbx and FLAGS.sbx:
            peer = peers.add(Peer("updates", algo))
            subjects["sbx"] = lambda: 1e6 / peer()
        wall = interleaved(subjects)
    out: dict[str, Any] = {f"{name}_us": value for name, value in wall.medians().items()}
    out |= {f"{form}_cpu_us": value for form, value in cpu.medians().items()}
    out["ratio"] = wall.ratio("masked", "compact")
    out["cpu_ratio"] = cpu.ratio("masked", "compact")
    if "sbx" in subjects:
        out["masked_over_sbx"] = wall.ratio("sbx", "masked")
    made = forms["compact"].program
    out["links"] = sum(map(sum, configs.lane_links(made.config, made.lanes[0])))
    return out


def compact() -> dict[str, Any]:
    """Whole updates (sampling, targets, gradients, Adam, Polyak), compact against masked, with
    1-step targets as in SBX."""
    hopper = (0.98, 0.95)  # the same for TD3 and SAC
    return {
        "td3_1_lane": side_by_side("td3", 1, (256, 256), hopper, 200, n=1, sbx=True),
        "td3_8_lanes": side_by_side("td3", 8, (256, 256), hopper, 25, n=1),
        "td3_1024_wide": side_by_side("td3", 1, (1024, 1024), (0.99, 0.98), 10, n=1),
        "sac_1_lane": side_by_side("sac", 1, (256, 256), hopper, 100, n=1, sbx=True),
        "sac_8_lanes": side_by_side("sac", 8, (256, 256), hopper, 25, n=1),
    }


def sweep() -> dict[str, Any]:
    """`compact` over sparsities and widths, with RLx2's targets: cost against live links."""
    out: dict[str, Any] = {}
    for sparsity in (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99):
        name = f"sparsity_{sparsity}"
        out[name] = side_by_side("td3", 1, (256, 256), (sparsity, sparsity), 30)
    for width in (128, 256, 512, 1024, 2048, 4096):
        count = max(1, 10 * 256 // width)
        out[f"width_{width}"] = side_by_side("td3", 1, (width, width), (0.98, 0.98), count)
    return out


BENCHMARKS = {
    "updates": updates,
    "capacity": capacity,
    "steps": training_benchmark.steps,
    "pipeline": training_benchmark.pipeline,
    "growth": training_benchmark.growth,
    "compact": compact,
    "sweep": sweep,
    "kernels": kernel_benchmark.kernels,
    "sparsify": sparsify_benchmark.costs,
}


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    if len(argv) != 2 or argv[1] not in BENCHMARKS:
        print(f"name one of {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    if argv[1] == "kernels":
        kernel_benchmark.on_one_thread()
    about = machine()
    result = {"benchmark": argv[1], **BENCHMARKS[argv[1]](), "machine": about}
    text = json.dumps(result, indent=1)
    print(text)
    if FLAGS.out:
        Path(FLAGS.out).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    crash.run(main)
