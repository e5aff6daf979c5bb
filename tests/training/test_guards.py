"""Stop signals, and locks of run directories."""

import os
import signal
import subprocess
import sys

import pytest

from rlx2_jax.training.guards import LOCK, Stopper, check_name, locked
from rlx2_jax.training.run import RunError

pytestmark = pytest.mark.fast


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_to_stop(number):
    outside = signal.signal(number, signal.SIG_DFL)  # tests may run under nohup
    try:
        with Stopper() as stop:
            assert not stop()
            send(number)
            assert stop() and stop.signal == number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, outside)


def test_the_end_of_a_session_is_one_request():
    with Stopper() as stop:
        send(signal.SIGHUP, signal.SIGTERM, signal.SIGHUP)
        assert stop.signal == signal.SIGTERM


def test_a_scheduler_asks_to_stop_and_to_requeue():
    """SIGUSR2, alone or with others; no effect without a listener."""
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        for numbers in ([signal.SIGUSR2], [signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM]):
            with Stopper() as stop:
                send(*numbers)
                assert stop.signal == signal.SIGUSR2
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        with Stopper():
            assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopper() as stop:
            send(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_ends_the_process_at_once():
    program = (
        "import os, signal\n"
        "from rlx2_jax.training.guards import Stopper\n"
        "with Stopper():\n"
        "    for number in (signal.SIGINT, signal.SIGTERM):\n"
        "        os.kill(os.getpid(), number)\n"
        "    print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM and not done.stdout
    assert "stopped immediately" in done.stderr and "Traceback" not in done.stderr


def test_a_directory_is_held_once(tmp_path):
    held, again = locked(tmp_path / "run"), locked(tmp_path / "run")
    with held, pytest.raises(RunError, match="in use by another process"), again:
        pass
    with locked(tmp_path / "run"):
        pass


def test_a_lock_is_neither_followed_nor_waited_for(tmp_path):
    (tmp_path / "other").write_text("precious")
    (tmp_path / LOCK).symlink_to(tmp_path / "other")
    with pytest.raises(RunError, match="is a symbolic link: delete it"), locked(tmp_path):
        pass
    assert (tmp_path / "other").read_text() == "precious"
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(RunError, match="not a regular file"), locked(tmp_path):
        pass


def test_a_path_that_checkpoints_cannot_have_is_refused(tmp_path):
    with pytest.raises(RunError, match="UTF-8"):
        check_name(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(RunError, match="UTF-8"), locked(tmp_path / os.fsdecode(b"\xff")):
        pass
