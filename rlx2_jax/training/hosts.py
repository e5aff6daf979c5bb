"""Multi-host runs: process discovery, and detection of lost processes.

Processes find each other through `jax.distributed` in subprocesses (`meeting.py`), which then end.
Lanes need no communication, so each process trains its lanes on its local devices, and JAX would
kill a connected process, before it can save, when another one is lost. Each process writes a
heartbeat file to the shared run directory instead.
"""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = "hosts"
PATIENCE = 60.0  # seconds without a heartbeat after which a process counts as lost
_RECORD = 512  # bytes of a heartbeat; a fixed size can be overwritten in place on a full disk
_SCRIPT = Path(__file__).with_name("meeting.py")
_STATUS = re.compile(r"\b[A-Z]+_[A-Z_]+: .*|\b(?:UNAVAILABLE|ABORTED|INTERNAL|UNKNOWN): .*")
TRAINING, DONE, STOPPED = "training", "done", "stopped"


class HostLost(Exception):
    """Another process of the run is lost or has stopped; this one has saved its lanes."""


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The place of this process among those of a run."""

    index: int = 0
    count: int = 1
    session: str = ""  # shared by all processes that started together


def meet(
    logdir: str | None = None,
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    *,
    seconds: int = 300,
) -> tuple[Hosts, str]:
    """Waits for the other processes; returns this one's place and the run directory of process 0.

    Arguments that are not given are detected from SLURM, Open MPI, Kubernetes or TPU pod metadata.

    Raises:
      ValueError: nothing was detected, the arguments contradict each other, or the processes did
        not find each other within `seconds`.
    """
    check_place(coordinator, count, index)
    request = json.dumps([logdir or "", coordinator, count, index, seconds])
    command = [sys.executable, "-P", str(_SCRIPT), request]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        at = f" at {coordinator}" if coordinator else ""
        raise ValueError(
            f"--distributed: the processes did not find each other{at} ({_reason(done.stderr)}). "
            f"Start all of them within {seconds} s, with the same coordinator, which must be "
            f"reachable from every host"
        )
    found = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        raise ValueError(
            f"--distributed: {found['error']} Give --coordinator=host:port, --num_processes and "
            f"--process_id, or start the processes with srun, mpirun, Kubernetes or on a TPU pod"
        )
    return Hosts(found["index"], found["count"], found["session"]), found["logdir"]


def check_place(coordinator: str | None, count: int | None, index: int | None) -> None:
    """Raises ValueError unless the arguments of `meet` agree; all may be None."""
    if len({x is None for x in (coordinator, count, index)}) > 1:
        raise ValueError("--coordinator, --num_processes and --process_id must be given together")
    if coordinator is None or count is None or index is None:
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"--coordinator={coordinator}: use host:port, for instance node0:1234")
    if not 0 <= index < count:
        raise ValueError(f"--process_id={index}: use 0 to {count - 1} with --num_processes={count}")


def _reason(text: str) -> str:
    """What JAX wrote before it ended: its status (`DEADLINE_EXCEEDED: ...`), else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [match[0] for match in map(_STATUS.search, lines) if match]
    return (found or lines or ["no message"])[-1][:200]


class Watch:
    """Writes this process's heartbeat and monitors the others, in a background thread.

    Attributes:
      problem: describes the process that was lost or has stopped, if any.
    """

    def __init__(self, directory: Path, hosts: Hosts, patience: float = PATIENCE):
        self._folder, self._hosts, self._patience = directory / FOLDER, hosts, patience
        self._state, self._beat = TRAINING, 0
        self._seen: dict[int, tuple[float, str, str]] = {}  # when it changed, record, state
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.problem: str | None = None

    def __enter__(self) -> "Watch":
        now = time.monotonic()
        others = set(range(self._hosts.count)) - {self._hosts.index}
        self._seen = dict.fromkeys(others, (now, "", ""))
        if others:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._show()
            threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is not None and self._state != STOPPED:
            self.say(STOPPED, str(error))
        self._ended.set()

    def __call__(self) -> str | None:
        return self.problem

    def say(self, state: str, about: str = "") -> None:
        """Publishes the state of this process."""
        self._state = f"{state} {' '.join(about.split())}".strip()
        if self._seen:
            self._show()

    def wait(self, ready: Callable[[list[str]], bool]) -> None:
        """Blocks until `ready(states)` of the other processes' states.

        Raises:
          HostLost: one of them was lost or has stopped.
        """
        while not ready([state for _, _, state in self._seen.values()]):
            if self.problem:
                raise HostLost(self.problem)
            time.sleep(min(1.0, self._patience / 20))
            if self._seen:
                self._look()

    def _run(self) -> None:
        while not self._ended.wait(min(5.0, self._patience / 10)):
            self._show()
            self._look()

    def _show(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._beat += 1
            text = f"{self._hosts.session} {self._beat} {self._state}"
            record = text.encode()[: _RECORD - 1].ljust(_RECORD - 1) + b"\n"
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
            file = os.open(self._folder / str(self._hosts.index), flags, 0o666)
            try:
                os.write(file, record)
            finally:
                os.close(file)

    def _look(self) -> None:
        with self._lock:
            for i, (since, before, state) in self._seen.items():
                text = before
                with contextlib.suppress(OSError):
                    text = (self._folder / str(i)).read_bytes().decode(errors="replace")
                session, _, rest = text.partition(" ")
                now = time.monotonic()
                if text != before and session == self._hosts.session:
                    state = rest.partition(" ")[2].strip()
                    self._seen[i] = since, before, state = now, text, state
                self.problem = self.problem or self._problem(i, state, now - since)

    def _problem(self, i: int, state: str, quiet: float) -> str | None:
        name = f"process {i} of {self._hosts.count}"
        if state.startswith(STOPPED):
            return f"{name} has {state}"
        if state == DONE or quiet < self._patience:
            return None
        if not state:
            return (
                f"{name} did not appear in {self._folder} within {self._patience:.0f} s: the run "
                f"directory must be on a file system that all processes share"
            )
        return f"{name} was lost (no heartbeat for {self._patience:.0f} s)"
