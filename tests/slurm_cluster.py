"""A one-machine SLURM cluster for tests, from Debian's packages (slurm-wlm, munge)."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
_PATIENCE = 60.0  # seconds


def impossible() -> str:
    """Why no cluster can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "SLURM's daemons need root"
    missing = [name for name in PROGRAMS if _which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install slurm-wlm munge"
    return ""


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


class Cluster:
    """Daemons that run in `directory`; `environment` points clients to them."""

    def __init__(self, directory: Path):
        self.directory, self.node = directory, socket.gethostname()
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        self._daemons: list[subprocess.Popen] = []

    def start(self) -> None:
        for name in ("state", "spool", "munge"):
            (self.directory / name).mkdir(parents=True)
        munge = self.directory / "munge"
        munge.chmod(0o755)
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o600)
        (self.directory / "slurm.conf").write_text(self._configuration())
        paths = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{name}={munge / path}" for name, path in paths.items()]
        log = f"--log-file={munge / 'log'}"
        self._begin("munged", "--foreground", "--force", *options, log)
        self._wait((munge / "socket").exists, "munged")
        self._begin("slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
        self._begin("slurmd", "-D", "-f", self.environment["SLURM_CONF"], "-N", self.node)
        self._wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False), "SLURM")

    def stop(self) -> None:
        self.run("scancel", "--user=root", check=False)
        time.sleep(1)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()

    def run(self, *command: str, check: bool = True) -> str:
        """The output of one of SLURM's commands."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def steps(self) -> list[str]:
        """The processes on this machine that run job steps."""
        found = subprocess.run(["pgrep", "-x", "slurmstepd"], capture_output=True, text=True)
        return found.stdout.split()

    def _begin(self, program: str, *options: str) -> None:
        path = _which(program)
        assert path is not None
        with (self.directory / f"{program}.out").open("wb") as out:
            command = [path, *options]
            process = subprocess.Popen(command, env=self.environment, stdout=out, stderr=out)
        self._daemons.append(process)

    def _wait(self, ready, what: str) -> None:
        end = time.monotonic() + _PATIENCE
        while not ready():
            if time.monotonic() > end:
                texts = [
                    p.read_text("utf-8", "replace")[-2000:] for p in self.directory.glob("*.out")
                ]
                raise RuntimeError(f"{what} does not start:\n" + "\n".join(texts))
            time.sleep(0.2)

    def _configuration(self) -> str:
        own = self.directory
        settings = {
            "ClusterName": "rlx2",
            "SlurmctldHost": self.node,
            "SlurmUser": "root",
            "SlurmctldPort": _free_port(),
            "SlurmdPort": _free_port(),
            "AuthType": "auth/munge",
            "CredType": "cred/munge",
            # A requeued job waits until the credential of its first start has expired.
            "AuthInfo": f"socket={own / 'munge' / 'socket'},cred_expire=5",
            "StateSaveLocation": own / "state",
            "SlurmdSpoolDir": own / "spool",
            "SlurmctldPidFile": own / "slurmctld.pid",
            "SlurmdPidFile": own / "slurmd.pid",
            "SlurmctldLogFile": own / "slurmctld.log",
            "SlurmdLogFile": own / "slurmd.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "ReturnToService": 1,  # a node that was set DOWN stays so until it is resumed
            "KillWait": 20,
            "SlurmdParameters": "config_overrides",
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines.append(f"NodeName={self.node} CPUs=2 RealMemory=4000 State=UNKNOWN")
        common = f"Nodes={self.node} MaxTime=INFINITE State=UP"
        lines.append(f"PartitionName=low Default=YES PriorityTier=1 GraceTime=20 {common}")
        lines.append(f"PartitionName=high PriorityTier=10 PreemptMode=off {common}")
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    """A cluster that lives as long as a test."""
    cluster = Cluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
