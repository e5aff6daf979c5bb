"""docs/extending.md: each extension is one file, and every file runs."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rlx2_jax import agents, algorithms, networks, options, trackers
from rlx2_jax.export import exporters
from rlx2_jax.sparse import rules
from rlx2_jax.training import metrics

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "extending"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))
TABLES: tuple[dict[str, Any], ...] = (
    *(rules.GROW, rules.DROP, networks.ARCHITECTURES, agents.ALGORITHMS, algorithms.NETWORK_USE),
    *(options._INHERITED, metrics.METRICS, exporters.EXPORTERS, trackers.TRACKERS),
    gymnasium.registry,
)


@pytest.fixture(autouse=True)
def tables_as_before():
    before = [dict(table) for table in TABLES]
    yield
    for table, old in zip(TABLES, before):
        table.clear()
        table.update(old)


def _named(page: str) -> list[str]:
    return re.findall(r"\[extending/(\w+\.py)\]", page)


@pytest.mark.fast
def test_the_page_shows_every_file():
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks == [(FOLDER / name).read_text() for name in _named(page)]
    assert sorted(_named(page)) == NAMES
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_the_file_runs(name, capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    said = capsys.readouterr().out
    expected = {
        "growth_rule.py": r"16 links, \d+ of them new",
        "drop_rule.py": r"\[0\.?\s+0\.01\d*\s+1\.?",
        "architecture.py": r"masked \(5, 1\) (\S+)\ncompact \(5, 1\) ",
        "algorithm.py": r"td3_clipped 2 \(\('Dense_0', \(3, 256\)\)",
        "exporter.py": r"largest difference: [\d.]+e-0[89]|largest difference: 0\.0",
        "device_environment.py": r"\(4, 1\)",
        "host_environment.py": r"\[-\d+\.\d+\]",
        "metric.py": "largest number of links into a unit",
        "tracker.py": r"lane-[0-9a-f]{8}-0\.jsonl: final score -?\d+",
    }[name]
    assert re.search(expected, said), said


def test_use_imports_extensions_on_the_command_line(tmp_path):
    """A custom growth rule, architecture and metric, from training to the log."""
    flags = (
        "--use=growth_rule,drop_rule,architecture,metric --env=rlx2_jax/Truncation-v0 "
        "--grow=sampled --drop=saliency --architecture=norm_mlp --hidden=8 --steps=40 --warmup=10 "
        "--batch_size=8 --mask_interval=5 --eval_interval=40 --metrics_interval=20 --episodes=1 "
        f"--actor_sparsity=0.5 --critic_sparsity=0.5 --logdir={tmp_path / 'run'}"
    )
    command = [sys.executable, "-m", "rlx2_jax", "train", *flags.split()]
    options_ = {"capture_output": True, "text": True, "cwd": FOLDER}
    done = subprocess.run(command, **options_)
    assert done.returncode == 0, done.stderr
    head, *rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    column = head.split(",").index("actor_largest_fan_in")
    assert rows and all(int(float(row.split(",")[column])) >= 1 for row in rows)
    unknown = [*command[:4], "--use=no_such_module", "--dry_run"]
    done = subprocess.run(unknown, **options_)
    assert done.returncode == 2 and done.stderr.startswith("error: --use=no_such_module: ModuleNot")
