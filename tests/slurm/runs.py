"""Runs of the micro grid on the test cluster: start, watch, disturb, compare."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from support import ROOT, environment

PROFILE = ROOT / "profiles" / "slurm"
# What a user gives on the command line; and for two cores: a short wait before the first look at a
# job, and one thread each.
SITE = ["--default-resources", "slurm_account=test", "slurm_partition=gpu"]
SMALL = ["--slurm-init-seconds-before-status-checks", "3", "--set-threads", "train_grpo=1"]
GRID = ["--configfile", str(ROOT / "config" / "micro.yaml")]
STAGES = (
    "completions",
    "samples",
    "likelihoods",
    "audit",
    "opinions/lower-bound/r0",
    "sampled/audit",
    "terminal",
    "rwku",
)
# The documented way to submit less: here a run's evaluations share a few jobs.
EVALUATED_TOGETHER = [
    *("--groups", "generate_completions=scores", "score_likelihoods=scores"),
    "sample_completions=scores",
    *("audit_completions=audits", "audit_again=audits", "audit_rollouts=audits"),
    *("--group-components", "scores=2", "audits=3"),
]
LIMIT = 900  # seconds that a run may take on a slow machine


def cell(init: str, reward: str) -> str:
    """Folder of a cell of the micro grid."""
    return f"results/grpo/tiny/bruce-lee/{init}/{reward}/s0"


def command(
    directory: Path, *targets: str, profile: Path = PROFILE, words: Sequence[str] = ()
) -> list[str]:
    """The command that runs the micro grid on the cluster."""
    start = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    start += ["--directory", str(directory), "--nocolor", "--profile", str(profile)]
    return [*start, *SITE, *SMALL, *GRID, *words, "--", *(targets or ["all"])]


class Run:
    """A controller in a process group of its own.

    Args:
        directory: where it works; what it says is kept beside it.
        before: folder of commands that come before Slurm's own on the PATH.
    """

    def __init__(
        self,
        directory: Path,
        *targets: str,
        profile: Path = PROFILE,
        words: Sequence[str] = (),
        before: Path | None = None,
    ) -> None:
        self.directory = directory
        self._output = directory.with_name(f"{directory.name}.{time.monotonic_ns()}.out")
        surroundings = environment() | {"OMP_NUM_THREADS": "1"}
        if before:
            surroundings["PATH"] = f"{before}:{surroundings['PATH']}"
        with open(self._output, "wb") as stream:
            self.process = subprocess.Popen(
                command(directory, *targets, profile=profile, words=words),
                cwd=ROOT,
                env=surroundings,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """What it has said so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def until(self, ready: Callable[[], Any], what: str) -> Any:
        """Wait until `ready()` is true while the run goes on; returns its value."""
        return until(ready, what, lambda: self.process.poll() is None, lambda: self.text)

    def end(self, status: int | None = 0) -> str:
        """Wait for the end; returns what it said. `status` None stands for any failure."""
        try:
            code = self.process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {LIMIT} s\n{self.text[-4000:]}") from None
        expected = code != 0 if status is None else code == status
        assert expected, f"exit status {code}\n{self.text[-6000:]}"
        return self.text

    def signal(self, kind: signal.Signals) -> None:
        """Send a signal to the controller alone, as `kill` would."""
        self.process.send_signal(kind)

    def kill(self) -> None:
        """SIGKILL to the controller and what it runs itself."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running(directory: Path, *targets: str, **options: Any) -> Iterator[Run]:
    """A run that does not outlive the test."""
    run = Run(directory, *targets, **options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def run(directory: Path, *targets: str, **options: Any) -> str:
    """Run to the end; returns what Snakemake said. Raises AssertionError when it fails."""
    with running(directory, *targets, **options) as started:
        return started.end()


def unlock(directory: Path) -> None:
    """What a person does once after a controller was killed outright."""
    words = command(directory, words=["--unlock"])
    subprocess.run(words, cwd=ROOT, env=environment(), check=True, capture_output=True)


def until(
    ready: Callable[[], Any],
    what: str,
    going_on: Callable[[], bool] = lambda: True,
    story: Callable[[], str] = lambda: "",
) -> Any:
    """Wait until `ready()` is true; returns its value.

    Raises AssertionError after LIMIT seconds, or when `going_on()` no longer holds.
    """
    deadline = time.monotonic() + LIMIT
    while not (found := ready()):
        alive = going_on()
        if (not alive and not ready()) or time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}\n{story()[-6000:]}")
        time.sleep(0.02)
    return found


def derived(folder: Path, changes: Mapping[str, Any]) -> Path:
    """The cluster's profile with some keys changed; rules below set-resources one by one."""
    profile = yaml.safe_load((PROFILE / "config.yaml").read_text(encoding="utf-8"))
    for key, value in changes.items():
        if key == "set-resources":
            for rule, resources in value.items():
                profile[key][rule] = profile[key][rule] | resources
        elif value is None:
            del profile[key]
        else:
            profile[key] = value
    for resources in profile["set-resources"].values():
        for name in [name for name, value in resources.items() if value is None]:
            del resources[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    return folder


def copied(finished: Path, target: Path) -> Path:
    """A copy of a finished grid with Snakemake's memory of it, free to change."""
    shutil.copytree(finished, target, symlinks=True)
    return target


def forget(directory: Path, *policies: str) -> None:
    """Remove policies' folders and whatever was made from them, tables too."""
    for policy in policies:
        name = policy.removeprefix("results/")
        for path in (policy, *(f"results/{stage}/{name}" for stage in STAGES)):
            shutil.rmtree(directory / path, ignore_errors=True)
    for path in (directory / "results/tables").iterdir():
        if path.name.partition(".")[0] != "refusal_detectors":  # no policy is in it
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("figures", "plan"):
        shutil.rmtree(directory / "results" / name)


def assert_same_results(directory: Path, finished: Path) -> None:
    """Every table has the rows, and every result the manifest, of the undisturbed run."""
    expected = sorted((finished / "results/tables").glob("*.parquet"))
    assert len(expected) > 10
    for path in expected:
        found = pd.read_parquet(directory / path.relative_to(finished))
        pd.testing.assert_frame_equal(found, pd.read_parquet(path), obj=path.stem)
    for path in sorted((finished / "results").rglob("manifest.json")):
        name = path.relative_to(finished)
        assert (directory / name).read_bytes() == path.read_bytes(), name


def ledger(folder: Path) -> list[dict[str, Any]]:
    """Lines of work/attempts.jsonl."""
    path = folder / "work" / "attempts.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def events(folder: Path) -> list[str]:
    """What the ledger tells: start, and each end by its outcome."""
    return [line.get("outcome", line["event"]) for line in ledger(folder)]


def provenance(folder: Path) -> dict[str, Any]:
    """Where a result was made, from its run.json."""
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))["provenance"]


def slurm_log(job: Mapping[str, str]) -> str:
    """What a job said to Slurm: Snakemake's words and the stage's own progress."""
    return Path(job["StdOut"]).read_text(encoding="utf-8", errors="replace")


def log_of(folder: Path) -> str:
    """The log of the last attempt at a training: Snakemake clears it at the start of a job."""
    path = folder / "train_grpo.log"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def holder(folder: Path) -> dict[str, Any] | None:
    """Who works in a result's folder: the highest lease there, with pid and slurm_job."""
    leases = list(folder.glob("work/*/lease-*.json"))
    if not leases:
        return None
    last = max(leases, key=lambda path: int(path.stem.removeprefix("lease-")))
    with suppress(OSError, json.JSONDecodeError):
        content = json.loads(last.read_text(encoding="utf-8"))
        return content if "pid" in content and not content.get("released") else None


def has_checkpoint(folder: Path) -> bool:
    """Whether a training has saved its first checkpoint."""
    return bool(list(folder.glob("work/*/checkpoints/checkpoint-2/complete.json")))


def freeze(folder: Path) -> dict[str, Any] | None:
    """Stop a trainer's process as soon as it has a checkpoint; returns its lease."""
    if not has_checkpoint(folder):
        return None
    found = holder(folder)
    if found:
        os.kill(found["pid"], signal.SIGSTOP)
    return found


def caught(run: Run, *folders: str) -> list[dict[str, Any]]:
    """Freeze each cell's trainer at its first checkpoint; returns their leases."""
    leases: dict[str, dict[str, Any]] = {}

    def all_frozen() -> bool:
        for folder in set(folders) - set(leases):
            if lease := freeze(run.directory / folder):
                leases[folder] = lease
        return len(leases) == len(folders)

    run.until(all_frozen, f"checkpoints of {folders}")
    return [leases[folder] for folder in folders]


def thaw(lease: Mapping[str, Any]) -> None:
    """Let a frozen trainer go on."""
    os.kill(lease["pid"], signal.SIGCONT)


def slurm_jobs(directory: Path) -> list[dict[str, str]]:
    """Every job that a working directory's runs submitted, oldest first, as Slurm tells it.

    Beside Slurm's fields there is `Rule`, the rule's name or the group's.
    """
    text = subprocess.run(
        ["scontrol", "show", "job", "-o"], capture_output=True, text=True, check=True
    ).stdout
    jobs = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in text.splitlines()]
    jobs = [job for job in jobs if job.get("WorkDir") == str(directory)]
    for job in jobs:
        job["Rule"] = Path(job["StdOut"]).relative_to(directory / "logs/slurm").parts[0]
    return sorted(jobs, key=lambda job: int(job["JobId"]))


def training_jobs(directory: Path, folder: str) -> list[dict[str, str]]:
    """Slurm's jobs for the training of one cell, oldest first."""
    init, reward = folder.split("/")[-3:-1]
    log = f"rule_train_grpo/tiny_bruce-lee_{init}_{reward}_0/"
    return [found for found in slurm_jobs(directory) if log in found["StdOut"]]


def job(directory: Path, number: str) -> dict[str, str]:
    """One job of a working directory."""
    return next(found for found in slurm_jobs(directory) if found["JobId"] == str(number))
