"""Client of the fork server: starts a command with a fault, signals it, waits for it."""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import inject

ROOT = Path(__file__).resolve().parents[2]
# Compiling takes longer than running: do not optimize machine code, and keep it.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)
TIMEOUT = 180.0
STARTING = 600.0  # seconds that a server's imports may take on a busy machine


class Ended(NamedTuple):
    """How a command ended. `code` is negative for a signal, None if it hung and was killed."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    calls: list[inject.Call]
    work: float = 0.0  # processor seconds

    @property
    def fired(self) -> bool:
        """Whether the rule applied to a call."""
        return any(call.action for call in self.calls)


def environment(cache: Path) -> dict[str, str]:
    """Environment of all processes of the campaign, which share compiled programs."""
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "XLA_FLAGS": QUICK,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
        "RLX2_FAULT_DIR": "",
        "MPLBACKEND": "agg",
    }


class Server:
    """One fork server; runs one command at a time."""

    def __init__(self, scratch: Path, cache: Path, library: Path | None):
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch = scratch
        variables = environment(cache)
        if library:
            variables["LD_PRELOAD"] = str(library)
        self._errors = (scratch / "server.stderr").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.server", str(library or "")],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,  # `select` does not see a second line that a buffer has already taken
        )

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        directory: Path,
        *,
        rule: str = "log",
        signals: Sequence[tuple[float, int]] = (),
        timeout: float = TIMEOUT,
        stay: bool = False,
    ) -> Ended:
        """Runs `python -m module arguments`.

        Args:
          directory: whose changes are logged and subject to `rule`, an absolute path.
          signals: seconds after the start, and the signal to send then.
          stay: in the process that ran such commands before, which is faster: where it does not
            have to be a new one.
        """
        names = {n: str(self._scratch / n) for n in ("stdout", "stderr", "log")}
        Path(names["log"]).unlink(missing_ok=True)
        request = {"module": module, "arguments": list(arguments), "rule": rule, **names}
        request["stay"] = stay
        self._send({**request, "directory": str(directory)})
        pid, code, work = self._receive(STARTING)["pid"], None, 0.0
        began = time.monotonic()
        pending = sorted(signals)
        while code is None:
            wait = (pending[0][0] if pending else timeout) - (time.monotonic() - began)
            answer = self._receive(max(wait, 0.0))
            if answer:
                code, work = answer["code"], answer["work"]
            elif pending:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, pending.pop(0)[1])
            else:
                os.kill(pid, signal.SIGKILL)
                self._receive(TIMEOUT)
                break
        text = {n: Path(names[n]).read_text(errors="replace") for n in ("stdout", "stderr")}
        calls = inject.read_log(Path(names["log"]))
        return Ended(code, text["stdout"], text["stderr"], time.monotonic() - began, calls, work)

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(TIMEOUT)
        self._process.stdout.close()
        self._errors.close()

    def _send(self, request: dict) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, timeout: float) -> dict:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            return {}
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server ended: see {self._scratch / 'server.stderr'}")
        return json.loads(line)


class Pool:
    """Fork servers for cases that run at the same time."""

    def __init__(self, scratch: Path, cache: Path, library: Path | None, jobs: int):
        self.servers = [Server(scratch / f"server-{i}", cache, library) for i in range(jobs)]
        self._free: queue.SimpleQueue[Server] = queue.SimpleQueue()
        for server in self.servers:
            self._free.put(server)

    @contextlib.contextmanager
    def server(self) -> Iterator[Server]:
        """A server for exclusive use."""
        server = self._free.get()
        try:
            yield server
        finally:
            self._free.put(server)

    def close(self) -> None:
        for server in self.servers:
            server.close()
