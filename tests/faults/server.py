"""Runs commands in forks of a process that has imported everything, to save the seconds that
imports take. Reads one JSON request per line, answers with the process id, then its status.

The child runs `python -m <module> <arguments>` as an interpreter would: same `__main__`, same exit.
JAX is imported before the fork and initialized after it. Requests to `stay` go to one child, which
traces and compiles once for all of them; a fault that ends it ends only that request.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from . import inject

PRELOADED = (
    "jax",
    "optax",
    "orbax.checkpoint",
    "gymnasium.envs.mujoco",
    "brax.envs",
    "matplotlib.pyplot",
    "rlx2_jax.training.execute",
    "rlx2_jax.export.actor",
    "rlx2_jax.training.launch",
    "experiments.suites",
    "experiments.cloning",
    "experiments.reporting.ledgers",
    "rlx2_jax.reporting.tables",
)


MOST_BYTES = 1_800_000_000  # memory of a worker above which it is replaced


def _begin() -> None:
    """Prepares a new process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the server
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(request: dict[str, Any], library: str) -> None:
    """Runs a command; ends as it does, with an exception."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, number)
        os.close(file)
    if library:
        inject.install(library, request["directory"], request["rule"], request["log"])
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    sys.exit(0)


def _child(request: dict[str, Any], library: str) -> None:
    _begin()
    _run(request, library)


class _Worker:
    """A fork that runs one command after another and keeps JAX's traced and compiled programs."""

    def __init__(self, library: str):
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._requests)
            os.close(self._answers)
            _begin()
            _work(os.fdopen(requests), os.fdopen(answers, "w"), library)
            os._exit(0)
        os.close(requests)
        os.close(answers)
        self._lines = os.fdopen(self._answers)

    def send(self, request: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended and will not answer
            os.write(self._requests, json.dumps(request).encode() + b"\n")

    def answer(self) -> dict[str, Any] | None:
        """How the command ended; None if the worker ended too."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def close(self, *, kill: bool = False) -> int:
        """The exit code of the worker, which has ended or ends now."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._requests)
        self._lines.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _work(requests: TextIO, answers: TextIO, library: str) -> None:
    from absl import flags

    known = set(flags.FLAGS)
    while line := requests.readline():
        begun, code = time.process_time(), 0
        try:
            _run(json.loads(line), library)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        for name in set(flags.FLAGS) - known:  # defined again by the next command
            delattr(flags.FLAGS, name)
        flags.FLAGS.unparse_flags()
        sys.stdout.flush()
        sys.stderr.flush()
        print(json.dumps({"code": code, "work": time.process_time() - begun}), file=answers)
        answers.flush()


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def main(library: str) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # the collector skips imported objects, so their pages stay shared
    worker = None
    while line := sys.stdin.readline():
        request = json.loads(line)
        if request["stay"]:
            worker = worker or _Worker(library)
            print(json.dumps({"pid": worker.pid}), flush=True)
            worker.send(request)
            answer = worker.answer()
            if answer is None:
                answer = {"code": worker.close(), "work": 0.0}
                worker = None
            print(json.dumps(answer), flush=True)
            if worker and _resident(worker.pid) > MOST_BYTES:
                worker.close(kill=True)
                worker = None
            continue
        pid = os.fork()
        if pid == 0:
            _child(request, library)
        print(json.dumps({"pid": pid}), flush=True)
        _, status, used = os.wait4(pid, 0)
        answer = {"code": os.waitstatus_to_exitcode(status), "work": used.ru_utime + used.ru_stime}
        print(json.dumps(answer), flush=True)
    if worker:
        worker.close(kill=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
