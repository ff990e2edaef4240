"""One stage in several processes of this machine, one per GPU.

The stage's own process holds the lease, starts `runtime.worker` N times and waits; it loads no
torch. torchrun is not used because its agent kills its workers 30 seconds after SIGTERM, and a
rollout of a large model, which a run finishes before it saves and stops, takes longer.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.atomic import read_json, remove, write_json
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.runtime.lease import Lease, LeaseLost
from unlearning_grid.runtime.logs import logger, terminal_in_use

FOLDER = "processes"  # in the work folder
GRACE = 60.0  # seconds that the others have once one has ended without a result
POLL = 0.05
LOOK_AT_LEASE = 5.0  # seconds between two looks

_KINDS = {kind.__name__: kind for kind in (UserError, Interrupted, LeaseLost, RuntimeError)}


def check_processes(value: Any, many: bool) -> int:
    """The resource `processes` of a job.

    Args:
        many: the stage can use more than one.
    Raises UserError unless it is a number of processes that the stage and the GPUs allow.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(
            f"resource processes: {value!r} is no number of processes; set it to the number of "
            "GPUs that gres asks for, or leave it out for one"
        )
    if value > 1 and not many:
        raise UserError(
            f"resource processes: {value}, but this rule runs in one process; set it for "
            "train_grpo only"
        )
    gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if value > 1 and gpus and len(gpus) < value:
        raise UserError(
            f"resource processes: {value}, but this job may use {len(gpus)} "
            f"(CUDA_VISIBLE_DEVICES={','.join(gpus)}); ask for a GPU per process with gres"
        )
    return value


def run_processes(job: Job, dotted: str) -> dict[str, Any]:
    """Run the stage function `dotted` in `job.processes` processes; returns the first one's facts.

    Every process runs the whole function and must meet the others in the same collective
    operations. SIGTERM goes on to all of them, and they have as long as they need. When one fails,
    the others are ended, and what failed first is raised: UserError, Interrupted and LeaseLost as
    they are, anything else as RuntimeError. None outlives this call or this process.
    """
    folder = job.work / FOLDER
    remove(folder)
    folder.mkdir(parents=True)
    job.on_terminate_finish_step()
    with _reserved_port() as port:
        processes = _Processes(job, dotted, folder, port)
        try:
            processes.start()
            facts = processes.wait()
        finally:
            processes.kill()
    remove(folder)
    return facts


class _Processes:
    def __init__(self, job: Job, dotted: str, folder: Path, port: int) -> None:
        self.job = job
        self.folder = folder
        self.environment = _environment(job.processes, port)
        self.terminal = terminal_in_use()
        self.children: list[subprocess.Popen[bytes]] = []
        self.last_seen: list[float] = []
        self.results: dict[int, dict[str, Any]] = {}
        self.asked_to_end = False
        where = self.terminal and (self.terminal.stream.fileno(), self.terminal.where)
        write_json(folder / "job.json", _described(job) | {"stage": dotted, "terminal": where})

    def start(self) -> None:
        fds = (self.terminal.stream.fileno(),) if self.terminal else ()
        words = ["-P", "-m", "unlearning_grid.runtime.worker", str(self.folder)]
        for rank in range(self.job.processes):
            child = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                env=self.environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                pass_fds=fds if rank == 0 else (),
            )
            self.children.append(child)
            self.last_seen.append(time.monotonic())
        pids = [child.pid for child in self.children]
        logger.info("%d processes, one per GPU where there are GPUs: %s", len(pids), pids)

    def wait(self) -> dict[str, Any]:
        deadline, looked = float("inf"), time.monotonic()
        while self._look():
            now = time.monotonic()
            errors = [result["error"] for result in self.results.values() if "error" in result]
            if (errors or self.job.stop_requested) and not self.asked_to_end:
                self._terminate()
            if errors:
                deadline = min(deadline, now + GRACE)
            if now > deadline:
                self.kill()
            if now - looked > LOOK_AT_LEASE:
                self.job.checkpoint_guard()
                looked = now
            time.sleep(POLL)
        failed = [result for result in self.results.values() if "error" in result]
        if failed:
            raise _rebuilt(min(failed, key=lambda result: result["time"]))
        self.job.gpu = _gpus([self.results[rank]["gpu"] for rank in sorted(self.results)])
        return self.results[0]["facts"]

    def _look(self) -> bool:
        """Note which processes have ended, and how; False when all have."""
        for rank, child in enumerate(self.children):
            now = time.monotonic()
            if child.poll() is None:
                self.last_seen[rank] = now
            elif rank not in self.results:
                self.results[rank] = self._result(rank, child.returncode)
        return len(self.results) < len(self.children)

    def _result(self, rank: int, status: int) -> dict[str, Any]:
        result = read_json(self.folder / f"result-{rank}.json")
        if result and "facts" in result and status:
            logger.warning("process %d had finished and then ended with status %d", rank, status)
        if result:
            return result
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        kind = "Interrupted" if status == -signal.SIGTERM else "RuntimeError"
        text = f"process {rank} of {len(self.children)} was ended {how} and left no message"
        return {"error": kind, "message": text, "traceback": "", "time": self.last_seen[rank]}

    def _terminate(self) -> None:
        self.asked_to_end = True
        for child in self.children:
            child.terminate()  # nothing happens to one that has ended

    def kill(self) -> None:
        """End every process that is still there, at once."""
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()


class _InTheProcess(Exception):
    """Traceback of an error, where it was raised."""


def _rebuilt(result: dict[str, Any]) -> BaseException:
    kind, message = result["error"], result["message"]
    error = _KINDS[kind](message) if kind in _KINDS else RuntimeError(f"{kind}: {message}")
    error.__cause__ = _InTheProcess(f"\n{result['traceback']}")
    return error


def _described(job: Job) -> dict[str, Any]:
    """What a process needs to make the same job, with its share of the judge, as JSON."""
    paths = {
        name: str(value) if isinstance(value, Path) else [str(path) for path in value]
        for name, value in job.inputs.items()
    }
    lease = job.lease
    assert lease is None or isinstance(lease, Lease)
    witness = lease and asdict(lease.witness()) | {"folder": str(lease.folder)}
    return {
        "spec": dict(job.spec),
        "operations": dict(job.operations),
        "inputs": paths,
        "outputs": {name: str(path) for name, path in job.outputs.items()},
        "work": str(job.work),
        "lease": witness,
        "judge_requests": job.judge_requests and max(1, job.judge_requests // job.processes),
        "processes": job.processes,
        "report_to": job.report_to,
        "parent": os.getpid(),
    }


def _environment(processes: int, port: int) -> dict[str, str]:
    """What torch and accelerate read, this library's place, and a share of the cores."""
    library = str(Path(__file__).resolve().parents[2])
    path = [library, *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    share = str(max(1, threads // processes))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    own = {
        "PYTHONPATH": os.pathsep.join(path),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **dict.fromkeys(names, share),
    }
    if sys.platform == "linux":  # gloo looks up the host's name otherwise, which need not resolve
        own = {"GLOO_SOCKET_IFNAME": "lo"} | own
    return dict(os.environ) | own


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port for the first process to listen on, kept from everybody else while they run.

    It is bound and not listened on: with SO_REUSEADDR, which torch sets too, a process that asks
    for this very port gets it, and the kernel gives it to nobody who asks for any.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _gpus(names: list[str | None]) -> str | None:
    known = [name for name in names if name]
    return f"{len(known)} x {known[0]}" if known else None
