"""Runs commands in forks of a process that has imported everything, to save the seconds that
imports take. Reads one JSON request per line, answers with the process id, then its status.

The child runs `python -m <module> <arguments>` as an interpreter would: same `__main__`, same exit.
JAX is imported before the fork and initialised after it.
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
from typing import Any

from . import inject

PRELOADED = (
    "jax",
    "optax",
    "orbax.checkpoint",
    "gymnasium.envs.mujoco",
    "brax.envs",
    "matplotlib.pyplot",
    "rlx2_jax.runtime.execute",
    "rlx2_jax.export.actor",
    "rlx2_jax.runtime.launch",
    "experiments.suites",
    "experiments.cloning",
    "experiments.reporting.ledgers",
    "experiments.reporting.tables",
)


def _child(request: dict[str, Any], library: str) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the server
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request.get("env", {}))
    if library:
        inject.install(library, request["directory"], request["rule"], request["log"])
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    sys.exit(0)


def main(library: str) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # what was imported is not examined again and stays shared
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(request, library)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
