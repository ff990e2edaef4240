"""A real Slurm on this machine: munged, slurmctld and one slurmd per pretended node.

python tests/slurm/cluster.py start     installs the packages where they are missing (root, apt)
python tests/slurm/cluster.py stop      ends what was started, and removes its state

Both can be repeated. No accounting, no cgroups, no systemd. GPUs are links to /dev/null: Slurm
counts and hands them out, and nothing opens them. Not for a machine of a real cluster.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

TEMPLATE = Path(__file__).with_name("slurm.conf.in")
# Where commands look by themselves: Snakemake's job step starts srun without SLURM_CONF.
DEFAULT_CONFIG = Path("/etc/slurm/slurm.conf")
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}
NAME = "grid-tests"  # ClusterName of the template
NO_SERVICES = Path("/usr/sbin/policy-rc.d")


class CannotStart(Exception):
    """This machine lacks what the cluster needs; the message says what."""


@dataclass(frozen=True)
class Cluster:
    """Names and sizes. Nodes are gn1, gn2, ..., filled in this order.

    Attributes:
        root: folder of its state, logs and configuration.
        nodes, gpus: how many nodes, and GPUs per node.
        port: the controller's; each node has one of the next.
    """

    root: Path
    nodes: int = 4
    gpus: int = 4
    port: int = 26917

    @property
    def config(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def names(self) -> list[str]:
        return [f"gn{number}" for number in range(1, self.nodes + 1)]

    def start(self) -> bool:
        """Install, configure and start all of it; False where it runs already, which is left alone.

        Raises CannotStart without root or packages, or where another Slurm is configured.
        """
        _check_machine(self.config)
        if self._running("slurmctld"):
            return False
        _install()
        self._configure()
        if not self._running("munged"):
            self._start_munge()
        _run("slurmctld", "-i", "-f", str(self.config))
        _wait("slurmctld", lambda: _succeeds("scontrol", "ping"))
        for name in self.names:
            self.start_node(name)
        _wait("the nodes", lambda: self._idle() == set(self.names), self.root)
        return True

    def stop(self) -> None:
        """End every process that was started here, then remove the state."""
        if self._running("slurmctld"):
            _succeeds("scancel", "--user=root", "--signal=KILL")
            _succeeds("scancel", "--user=root")
        daemons = [f"slurmd-{name}" for name in self.names] + ["slurmctld", "munged"]
        for daemon in daemons:
            self._end(daemon)
        _end_what_jobs_left()
        if DEFAULT_CONFIG.is_symlink() and os.readlink(DEFAULT_CONFIG) == str(self.config):
            DEFAULT_CONFIG.unlink()
        shutil.rmtree(self.root, ignore_errors=True)

    def start_node(self, name: str) -> None:
        """Start a node's slurmd, and take the node back where it was down."""
        if not self._running(f"slurmd-{name}"):
            _run("slurmd", "-N", name, "-f", str(self.config))
        _succeeds("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def kill_node(self, name: str) -> None:
        """End a node's slurmd as a crash would. Its jobs' processes go on."""
        process = self._process(f"slurmd-{name}")
        assert process, f"no slurmd of {name}"
        process.kill()

    def _start_munge(self) -> None:
        key = self.root / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(1024))
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid"}
        files |= {"seed-file": "munged.seed", "log-file": "log/munged.log"}
        words = [f"--{option}={self.root / name}" for option, name in files.items()]
        _run("munged", "--force", *words)
        _wait("munged", (self.root / "munge.sock").exists, self.root)

    def _configure(self) -> None:
        folders = ["log", "state", "dev", *(f"spool-{name}" for name in self.names)]
        for folder in folders:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        for number in range(self.gpus):
            device = self.root / "dev" / f"nvidia{number}"
            if not device.is_symlink():
                device.symlink_to("/dev/null")
        text = TEMPLATE.read_text(encoding="utf-8")
        values = {"HOST": socket.gethostname(), "PORT": self.port, "ROOT": self.root}
        for name, value in {**values, "NODES": self._node_lines()}.items():
            text = text.replace(f"@{name}@", str(value))
        self.config.write_text(text, encoding="utf-8")
        (self.root / "gres.conf").write_text(self._gres_lines(), encoding="utf-8")
        DEFAULT_CONFIG.parent.mkdir(exist_ok=True)
        DEFAULT_CONFIG.unlink(missing_ok=True)
        DEFAULT_CONFIG.symlink_to(self.config)

    def _node_lines(self) -> str:
        size = "CPUs=32 Boards=1 SocketsPerBoard=1 CoresPerSocket=32 ThreadsPerCore=1"
        size += f" RealMemory=512000 Gres=gpu:h100:{self.gpus},shard:{4 * self.gpus}"
        return "\n".join(
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
            f"Port={self.port + number} Weight={number} {size} State=UNKNOWN"
            for number, name in enumerate(self.names, start=1)
        )

    def _gres_lines(self) -> str:
        nodes = f"NodeName={self.names[0]}" if self.nodes == 1 else f"NodeName=gn[1-{self.nodes}]"
        devices = f"{self.root}/dev/nvidia[0-{self.gpus - 1}]"
        lines = ["AutoDetect=off", f"{nodes} Name=gpu Type=h100 File={devices}"]
        lines += [f"{nodes} Name=shard Count={4 * self.gpus}"]
        return "\n".join(lines) + "\n"

    def _idle(self) -> set[str]:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "gpu", "-t", "idle,mix,alloc", "-o", "%N"],
            capture_output=True,
            text=True,
        )
        return set(done.stdout.split())

    def _process(self, daemon: str) -> psutil.Process | None:
        """The daemon that left its process id here, if it is alive."""
        try:
            process = psutil.Process(int((self.root / f"{daemon}.pid").read_text()))
            same = process.name() == daemon.partition("-")[0]
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def _running(self, daemon: str) -> bool:
        return self._process(daemon) is not None

    def _end(self, daemon: str) -> None:
        if process := self._process(daemon):
            process.terminate()
            deadline = time.monotonic() + 10
            while self._running(daemon) and time.monotonic() < deadline:
                time.sleep(0.1)
            if self._running(daemon):
                process.kill()


def _check_machine(config: Path) -> None:
    if os.geteuid() != 0:
        raise CannotStart("needs root to start Slurm's daemons")
    if DEFAULT_CONFIG.exists() and os.path.realpath(DEFAULT_CONFIG) != os.path.realpath(config):
        raise CannotStart(f"{DEFAULT_CONFIG} is there: this machine has a Slurm of its own")


def _install() -> None:
    missing = [package for command, package in PACKAGES.items() if not shutil.which(command)]
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise CannotStart(f"needs {', '.join(missing)}, and there is no apt-get to install them")
    made_policy = not NO_SERVICES.exists()
    if made_policy:  # the packages would start services of their own
        NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
        NO_SERVICES.chmod(0o755)
    quiet = {"env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, "capture_output": True}
    try:
        subprocess.run(["apt-get", "update", "-qq"], check=True, **quiet)
        words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        subprocess.run(words, check=True, **quiet)
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode(errors="replace").strip()[-500:]
        raise CannotStart(f"apt-get could not install {', '.join(missing)}: {text}") from None
    finally:
        if made_policy:
            NO_SERVICES.unlink()


def _end_what_jobs_left() -> None:
    """End processes that outlived their jobs: without cgroups Slurm loses sight of some."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_CLUSTER_NAME") == NAME:
                process.kill()


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{words[0]} did not start: {(done.stdout + done.stderr).strip()}")


def _succeeds(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, timeout=30).returncode == 0


def _wait(what: str, ready: Callable[[], bool], root: Path | None = None) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come up; see the logs below {root or 'its folder'}")
        time.sleep(0.1)


def default() -> Cluster:
    """The cluster of the tests: there is one at a time on a machine."""
    return Cluster(Path(tempfile.gettempdir()) / "grid-tests-slurm")


if __name__ == "__main__":
    if sys.argv[1:] not in (["start"], ["stop"]):
        sys.exit(__doc__)
    try:
        getattr(default(), sys.argv[1])()
    except CannotStart as problem:
        sys.exit(f"cluster.py: {problem}")
