"""docs/extending.md: each extension is one file, and every file runs."""

import re
import runpy
import subprocess
import sys

import pytest
from extension_tables import tables_as_before
from paths import DOCS

FOLDER = DOCS / "extending"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def as_before():
    with tables_as_before():
        yield


def _named(page: str) -> list[str]:
    return re.findall(r"\[extending/(\w+\.py)\]", page)


@pytest.mark.fast
def test_the_page_shows_every_file():
    page = (DOCS / "extending.md").read_text()
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
        "--policy_delay=1 --target_interval=1 "  # one update in the compiled loop, not two
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
