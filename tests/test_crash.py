"""Commands that are interrupted, or fail in a way that nobody foresaw."""

from pathlib import Path

import pytest

from experiments import crash

pytestmark = pytest.mark.fast


def test_the_exit_code_is_the_commands_own():
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
