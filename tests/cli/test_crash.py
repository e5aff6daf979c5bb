"""Commands that are interrupted or fail unexpectedly."""

import subprocess
import sys
from pathlib import Path

import pytest
from absl import app
from paths import ROOT

from rlx2_jax.cli import crash

pytestmark = pytest.mark.fast


def test_the_exit_code_is_that_of_the_command():
    assert crash.guarded(lambda: 3) == 3


def test_an_interrupted_command_says_so(capsys):
    def command():
        raise KeyboardInterrupt

    assert crash.guarded(command) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("text", ["no such thing", "\udce9"])
def test_an_unforeseen_error_is_one_line_and_a_file(capsys, tmp_path, monkeypatch, text):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def command():
        raise KeyError(text)

    assert crash.guarded(command) == 70
    (line,) = capsys.readouterr().err.splitlines()
    (details,) = tmp_path.iterdir()
    assert line.startswith("error: KeyError: ") and str(details) in line
    assert "in command" in Path(details).read_text(errors="replace")


def test_wrong_usage_is_left_to_the_parser_of_flags():
    def command():
        raise app.UsageError("a word too many")

    with pytest.raises(app.UsageError):
        crash.guarded(command)


PRINTS = """
import subprocess, sys
from rlx2_jax.cli import crash
def main(argv):
    if argv[1] == "child":  # children have open streams too
        check = "import os, sys; [os.fstat(i) for i in range(3)]"
        return 3 + subprocess.run([sys.executable, "-c", check]).returncode
    for i in range(int(argv[1])):
        print("line", i)
    print("and an error", file=sys.stderr)
    return 3
crash.run(main)
"""


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("{} 9999 2>&1 | head -1; exit ${{PIPESTATUS[0]}}", 3),
        ("{} 1 | true; exit ${{PIPESTATUS[0]}}", 3),
        ("{} 9 >&- 2>&- <&-", 3),
        ("{} 9 >&-", 3),
        ("{} child >&- 2>&- <&-", 3),
        ("{} 9 >/dev/null 2>/dev/full", 3),
        ("{} --help | true; exit ${{PIPESTATUS[0]}}", 1),  # as absl has it
        ("{} 1 >/dev/full", 3),
        ("{} 9999 >/dev/full", 70),
    ],
)
def test_output_that_nobody_reads_ends_no_command(shell, code, tmp_path):
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    line = shell.format(f"{sys.executable} {script}")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    assert "error: standard output: No space" in done.stderr or "1 >/dev/full" not in shell


def test_an_interrupt_at_the_very_end_shows_no_traceback():
    code = (
        "import atexit, os, signal\n"
        "from rlx2_jax.cli import crash\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "raise SystemExit(crash.process(lambda: 0))\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (-2, "")
