"""Tables of the report: known numbers from synthetic logs, next to the paper's."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import report_logs as logs

from experiments import paper
from experiments.reporting import exhibits, ledgers, percent, results
from experiments.reporting.exhibits import EXHIBITS
from experiments.reporting.figures import Absent
from rlx2_jax.reporting import tables
from rlx2_jax.reporting.tables import Column, Table, Value

pytestmark = pytest.mark.fast

KNOWN = {name: exhibit.title for name, exhibit in EXHIBITS.items()}
SCORES = {"dense": (1000, 2000), "rlx2": (1500, 1800), "ss": (300, 300), "1-step": (750, 750)}


def returns(name: str, seed: int, step: int) -> float:
    return float(SCORES.get(name, (900, 1200))[seed])


def suite(
    logdir: Path,
    name: str,
    lanes: Sequence[str],
    tasks: Sequence[str] = ("Hopper",),
    seeds: int = 2,
    **options,
) -> results.Suite:
    units = [
        logs.unit(f"td3-{t.lower()}", f"{t}-v5", [logs.lane(n, s) for n in lanes for s in (0, 1)])
        for t in tasks
    ]
    folder = logs.plan(logdir, name, units)
    for unit in units:
        own = {**unit, "lanes": [x for x in unit["lanes"] if x["seed"] < seeds]}
        logs.run(folder, own, options.pop("returns", returns), **options)
    return results.load(logdir, KNOWN).suites[name]


def table_of(found: results.Suite, key: str) -> Table:
    section = exhibits.section(found)
    return next(x for x in section.items if isinstance(x, Table) and x.key == key)


def row(table: Table, head: str) -> dict[str, str]:
    (i,) = [i for i, cells in enumerate(table.rows) if cells[0] == head]
    return {c.title: table.text(i, j) for j, c in enumerate(table.columns)}


def test_percent_of_dense_by_hand(tmp_path: Path) -> None:
    # Dense 1000 and 2000, so 100 % is 1500: RLx2 has 100 % and 120 %, SS 20 % twice.
    found = suite(tmp_path, "table2", ["dense", "ss", "rlx2"])
    hopper = row(table_of(found, "table2"), "TD3 Hopper")
    assert (hopper["RLx2: ours"], hopper["RLx2: paper"]) == ("110.0", "97.0")
    assert (hopper["SS: ours"], hopper["SS: paper"]) == ("20.0", "67.7")
    assert (hopper["RigL: ours"], hopper["RigL: paper"]) == ("missing", "90.6")
    ant = row(table_of(found, "table2"), "TD3 Ant")
    assert (ant["RLx2: ours"], ant["RLx2: paper"]) == ("missing", "103.9")
    average = row(table_of(found, "table2"), "TD3 average")
    assert average["RLx2: ours"] == "110.0 (1 of 4 tasks)" and average["RLx2: paper"] == "99.7"
    assert row(table_of(found, "table2"), "SAC average")["RLx2: ours"] == "missing"
    overall = row(table_of(found, "table2"), "average")
    assert overall["RLx2: ours"] == "110.0 (1 of 8 tasks)" and overall["RLx2: paper"] == "101.8"
    deviations = row(table_of(found, "table7"), "TD3 Hopper")
    assert deviations["RLx2: ours"] == "110.0 ± 14.1"
    assert deviations["RLx2: paper"] == "97.0 ± 17.6"


def test_aggregates_by_hand(tmp_path: Path) -> None:
    found = suite(tmp_path, "table2", ["dense", "rlx2"], ("Hopper", "Ant"))
    line = row(table_of(found, "table2-aggregate"), "TD3 RLx2")
    assert (line["tasks"], line["runs"]) == ("2 of 4", "4")
    assert (line["mean over tasks"], line["IQM"]) == ("110.0", "110.0")
    assert line["std"] == f"{np.std([100, 120, 100, 120], ddof=1):.1f}"
    # Three or four of a resample's four runs are 100 (then so is the IQM) with a chance of 5/16.
    assert line["95 % interval of the IQM"] == "100.0 to 120.0"
    assert line["paper, mean"] == "99.7"
    assert row(table_of(found, "table2-aggregate"), "TD3+SAC RLx2")["tasks"] == "2 of 8"


def test_one_seed_has_no_spread_and_no_interval(tmp_path: Path) -> None:
    found = suite(tmp_path, "table2", ["dense", "rlx2"], seeds=1)
    assert row(table_of(found, "table7"), "TD3 Hopper")["RLx2: ours"] == "150.0 §"
    line = row(table_of(found, "table2-aggregate"), "TD3 RLx2")
    assert (line["std"], line["95 % interval of the IQM"]) == ("one run", "none")
    scores = row(table_of(found, "table2-scores"), "td3-hopper: RLx2")
    assert (scores["seeds"], scores["return: std"]) == ("1 of 2", "one seed")
    assert scores["return: 95 % interval of the IQM"] == "none"
    assert any("§ fewer seeds than planned" in n for n in table_of(found, "table7").all_notes())


def test_without_dense_lanes_returns_are_marked_as_raw(tmp_path: Path) -> None:
    found = suite(tmp_path, "nstep", ["1-step", "3-step"])
    table = table_of(found, "table3-nstep")
    hopper = row(table, "Hopper")
    assert (hopper["1-step: ours"], hopper["1-step: paper"]) == ("750.0 ‡", "77.9")
    assert hopper["2-step: ours"] == "missing" == row(table, "average")["1-step: ours"]
    notes = table.all_notes()
    assert "td3-hopper: the dense lane is missing: raw returns are shown." in notes
    assert any(note.startswith("‡ a raw return") for note in notes)


def test_a_negative_dense_score_is_no_hundred_percent(tmp_path: Path) -> None:
    found = suite(tmp_path, "nstep", ["dense", "1-step"], returns=lambda *_: -50.0)
    table = table_of(found, "table3-nstep")
    assert row(table, "Hopper")["1-step: ours"] == "-50.0 ‡"
    assert any("the dense score is -50.0" in note for note in table.all_notes())


def test_unfinished_units_are_marked(tmp_path: Path) -> None:
    found = suite(tmp_path, "nstep", ["dense", "1-step"], reached=100, finished=False)
    assert row(table_of(found, "table3-nstep"), "Hopper")["1-step: ours"] == "50.0 †"
    scores = row(table_of(found, "nstep-scores"), "td3-hopper: 1-step")
    assert (scores["steps"], scores["evaluations used"]) == ("100 †", "1")
    assert "1 of 1 units unfinished" in exhibits.difference(found)


def test_what_was_run_stands_on_every_table(tmp_path: Path) -> None:
    found = suite(tmp_path, "nstep", ["dense", "1-step"])
    assert exhibits.difference(found) == (
        "Ours: budget smoke, 0.01 % of the paper's steps (300); seeds found: 2 of 2 planned "
        "(paper: 8); a score is the mean of 3 evaluations (paper: 30); -v5 environments "
        "(paper: -v3)."
    )
    note = (
        "Ours: budget smoke, 0.01 % of the paper's steps; seeds found: 2 of 2 planned (paper: 8)."
    )
    for item in exhibits.section(found).items[:-1]:
        assert isinstance(item, Table) and item.notes[0] == note


@pytest.mark.parametrize(
    ("name", "lanes", "key", "heading"),
    [
        ("topology", ["rlx2-tiny"], "table3-topology", "Tiny"),
        ("buffer", ["5e4", "unlimited"], "table8", "5e4"),
        ("sensitivity", ["static"], "table9", "ζ0 = 0"),
        ("sensitivity", ["zeta0=0.7"], "table9", "ζ0 = 0.7"),
        ("sensitivity", ["static"], "table10", "Δm = ∞"),
        ("sensitivity", ["mask_interval=3000"], "table10", "Δm = 3,000"),
        ("sensitivity", ["no adjustment"], "table11", "Δb = ∞"),
        ("sensitivity", ["no adjustment"], "table12", "D0 = ∞"),
        ("sensitivity", ["d0=0.05"], "table12", "D0 = 0.05"),
        ("sensitivity", ["t0=0"], "table13", "T0 = 0"),
        ("sensitivity", ["default"], "table13", "T0 = 300,000"),
        ("sensitivity", ["one-step"], "table13", "T0 = ∞"),
    ],
)
def test_lane_names_find_their_columns(
    tmp_path: Path, name: str, lanes: list[str], key: str, heading: str
) -> None:
    table = table_of(suite(tmp_path, name, ["dense", *lanes]), key)
    assert row(table, "Hopper")[f"{heading}: ours"] == "70.0"  # 900 and 1200 of 1500
    everywhere = [row(table, h)[f"{heading}: paper"] for h in (*percent.TASKS, "average")]
    assert all(float(text) > 20 for text in everywhere)
    empty = [h for h, text in row(table, "Hopper").items() if text == "missing"]
    assert len(empty) == (len(table.columns) - 1) // 2 - len(lanes)


def test_every_number_of_the_paper_is_shown(tmp_path: Path) -> None:
    """Each printed percentage is in its table, in the paper's order."""
    for name in ("topology", "nstep", "buffer", "sensitivity"):
        found = suite(tmp_path, name, [])
        for table in exhibits.section(found).items:
            if not isinstance(table, Table) or "-aggregate" in table.key or table.folded:
                continue
            source = {
                "table3-topology": "ablation_topology",
                "table3-nstep": "ablation_nstep",
                "table8": "ablation_buffer",
                "table9": "sensitivity_zeta0",
                "table10": "sensitivity_mask_interval",
                "table11": "sensitivity_buffer_interval",
                "table12": "sensitivity_d0",
                "table13": "sensitivity_t0",
            }[table.key]
            shown = [c.mean for cells in table.rows for c in cells if isinstance(c, Value)]
            assert shown == [r["performance"] for r in paper.load(source)]


def test_humanoid_has_returns(tmp_path: Path) -> None:
    unit = logs.unit(
        "humanoid-256", "Humanoid-v5", [logs.lane("rlx2", s) for s in (0, 1)], hidden=[256, 256]
    )
    logs.run(logs.plan(tmp_path, "humanoid", [unit]), unit, returns)
    found = results.load(tmp_path, KNOWN).suites["humanoid"]
    rlx2 = row(table_of(found, "table14"), "RLx2")
    assert rlx2["256 hidden units: ours"] == "1650.0 ± 212.1"
    assert rlx2["256 hidden units: paper"] == "5482.0 ± 603.0"
    assert rlx2["1024 hidden units: ours"] == "missing"


def test_smaller_budgets_are_stated(tmp_path: Path) -> None:
    """Narrow layers are listed under the paper's width, and the section says so."""
    unit = logs.unit("humanoid-1024", "Humanoid-v5", [logs.lane("ss", 0)], hidden=[64, 64])
    options = {"narrower": 16, "batch_size": 16, "env_options": {"max_episode_steps": 40}}
    logs.run(logs.plan(tmp_path, "humanoid", [unit], **options), unit, returns)
    found = results.load(tmp_path, KNOWN).suites["humanoid"]
    assert row(table_of(found, "table14"), "SS")["1024 hidden units: ours"] == "300.0"
    text = exhibits.difference(found)
    assert "hidden layers 16 times narrower; batches of 16 (at full budget: 256)" in text
    assert "max_episode_steps = 40" in text


def test_sparsity_levels(tmp_path: Path) -> None:
    lanes = [logs.lane("dense", 0), logs.lane("dense", 1)]
    for level in (0.5, 0.9):
        more = {"actor_sparsity": level, "critic_sparsity": level}
        lanes += [logs.lane("ss", s, **more) for s in (0, 1)]
    unit = logs.unit("td3-hopper", "Hopper-v5", lanes)
    logs.run(logs.plan(tmp_path, "sparsity", [unit]), unit, returns)
    table = table_of(results.load(tmp_path, KNOWN).suites["sparsity"], "figure5")
    assert [[table.text(i, j) for j in range(5)] for i in range(2)] == [
        ["td3-hopper", "50.0", "50.0", "50.0", "20.0 ± 0.0"],
        ["td3-hopper", "90.0", "90.0", "90.0", "20.0 ± 0.0"],
    ]


def test_sizes_of_the_run_next_to_the_papers(tmp_path: Path) -> None:
    found = suite(tmp_path, "table2", ["dense", "rlx2"])
    hopper = row(table_of(found, "table2-sizes"), "TD3 Hopper")
    assert (hopper["actor sparsity: ours"], hopper["actor sparsity: paper"]) == ("0.90", "0.98")
    assert (hopper["total size: ours"], hopper["total size: paper"]) == ("0.133", "0.040")
    assert row(table_of(found, "table2-sizes"), "SAC Ant")["total size: ours"] == "missing"


def test_panels_of_missing_units_say_so(tmp_path: Path) -> None:
    logs.plan(tmp_path, "toy", [logs.unit("inverted-pendulum", "InvertedPendulum-v5", [])])
    (item, _) = exhibits.section(results.load(tmp_path, KNOWN).suites["toy"]).items
    assert isinstance(item, Absent) and item.reason == "inverted-pendulum is missing"


def test_markdown_html_and_csv() -> None:
    columns = (Column("a|b"), Column("ours", "x<y", spread=True), Column("n", digits=3))
    rows = (("r", Value(1.25, 0.5, 4, "†"), None), ("s", None, -0.0001))
    table = Table("key", "A & B", columns, rows, ("note",))
    assert tables.markdown(table).splitlines() == [
        "**A & B**",
        "",
        "| a\\|b | x\\<y: ours | n |",
        "| --- | ---: | ---: |",
        "| r | 1.2 ± 0.5 † | missing |",
        "| s | missing | 0.000 |",
        "",
        "note",
        "",
        "† not all steps were run: a score so far.",
    ]
    html = tables.html(table)
    assert "A &amp; B" in html and "x&lt;y" in html and '<td class="missing">missing</td>' in html
    assert list(csv.reader(io.StringIO(tables.to_csv(table)))) == [
        ["a|b", "x<y: ours", "x<y: ours std", "x<y: ours seeds", "x<y: ours marks", "n"],
        ["r", "1.25", "0.5", "4", "†", "missing"],
        ["s", "missing", "", "", "", "-0.0001"],
    ]
    with pytest.raises(ValueError, match="key: 1 cells in 3 columns"):
        Table("key", "", columns, (("r",),))
    assert tables.number(float("nan"), 1) == "not finite"


def test_sparsities_of_layers_are_weighted_by_their_links(tmp_path: Path) -> None:
    layers = {"actor_sparsity": [0, 0.99, 0], "critic_sparsity": 0.5}
    unit = logs.unit("td3-hopper", "Hopper-v5", [logs.lane("rlx2", 0, **layers)])
    logs.run(logs.plan(tmp_path, "table2", [unit]), unit, returns)
    (found,) = results.load(tmp_path, KNOWN).suites["table2"].units
    actor, critic = percent.sparsities(found, found.lanes[0])
    assert actor == pytest.approx(0.99 * 256 * 256 / (11 * 256 + 256 * 256 + 256 * 3))
    assert critic == 0.5


# The ledger.


def test_ledger_tables_hold_the_papers_columns() -> None:
    two, five, six, fourteen = ledgers.flops_tables()
    printed = paper.load("table2_models")
    names = [c.title for c in two.columns]
    for title, field in (
        ("total size", "total_size"),
        ("FLOPs (train)", "train_flops"),
        ("FLOPs (test)", "inference_flops"),
    ):
        ours, own, off = (names.index(f"{title}: {x}") for x in ("ours", "paper", "difference"))
        assert [r[own] for r in two.rows] == [r[field] for r in printed]
        for cells, source in zip(two.rows, printed, strict=True):
            mine, theirs, gap = (cells[i] for i in (ours, own, off))
            assert isinstance(mine, float) and isinstance(theirs, float)
            assert isinstance(gap, float) and gap == mine - theirs
            if title != "FLOPs (train)" or source["algo"] == "td3":
                assert abs(gap) <= 0.002, (title, source)
    same_n = names.index("FLOPs (train): ours, same n")
    assert [r[same_n] for r in two.rows if str(r[0]).startswith("SAC")][:4] == pytest.approx(
        [0.165, 0.040, 0.100, 0.199], abs=0.0005
    )
    assert "does not follow" in two.notes[0]
    formulas = paper.load("flops_formulas")
    assert [r[2] for r in five.rows] == [r["actor_coefficient"] for r in formulas]
    assert [r[5] for r in five.rows] == [r["critic_coefficient"] for r in formulas]
    assert all(abs(float(str(r[i]))) < 1e-6 for r in five.rows for i in (3, 6))
    assert [r[2] for r in six.rows] == [r["train_flops"] for r in paper.load("relative_flops")]
    assert all(abs(float(str(r[3]))) < 1e-5 for r in six.rows)
    for cells in six.rows:
        tolerance = 0.02 if "Tiny" in str(cells[0]) else 0.002
        assert list(cells[4:]) == pytest.approx([cells[2]] * 4, abs=tolerance)
    assert [r[4] for r in fourteen.rows] == [63000, 72000]
    assert all(abs(int(str(r[5]))) < 1000 for r in fourteen.rows)


def test_ledger_tables_as_text() -> None:
    text = "\n".join(tables.markdown(t) for t in ledgers.flops_tables())
    for part in ("0.133", "0.239", "1.04432", "1.00067", "| TD3 FLOPs (train)", "8.50", "63212"):
        assert part in text
    assert "-0.000 " not in text
