"""A judge with open weights inside the cluster: start its Slurm job, look at it, stop it."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from unlearning_grid.checks.served import served, served_name
from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.amounts import amount
from unlearning_grid.ops.columns import columns
from unlearning_grid.remote.servers import (
    folder_of,
    read_announcement,
    trouble_with,
    wanted_mark,
)
from unlearning_grid.remote.serving import VLLM, Service, own_host, serve
from unlearning_grid.runtime.atomic import read_json, write_json
from unlearning_grid.runtime.lease import is_held
from unlearning_grid.spec.canonical import digest

log = logging.getLogger(__name__)

WARN_BEFORE = 120  # seconds before the time limit at which the next job is submitted
SUBMISSION = "submission.json"


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `judge-server` with its own four."""
    parser = commands.add_parser(
        "judge-server",
        help="a judge with open weights inside the cluster: start, status, stop, run",
        description="Serves the model of the `judges` entries whose base_url is cluster:NAME. "
        "docs/judges.md says how jobs find it.",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    how = argparse.ArgumentParser(add_help=False)
    how.add_argument(
        "--command",
        default=VLLM,
        dest="words",
        help="what starts the server, with arguments of its own; {model} {revision} {address} "
        "{port} {name} are filled in, and follow as vLLM wants them where there is no {model} "
        "(default: %(default)s)",
    )
    how.add_argument("--host", help="this machine's name for other nodes (default: Slurm's)")
    how.add_argument(
        "--idle-minutes",
        type=amount,
        default=30.0,
        help="stop when nobody has needed it for so long (default: %(default)g)",
    )
    start = actions.add_parser(
        "start", parents=[common, how], help="submit its Slurm job, unless there is one"
    )
    start.add_argument("name", metavar="NAME", help="the NAME of cluster:NAME")
    start.add_argument(
        "sbatch", nargs="*", metavar="-- SBATCH", help="words for sbatch, after all options"
    )
    start.set_defaults(run=_start)
    run = actions.add_parser("run", parents=[common, how], help="serve here; what the job does")
    run.add_argument("name", metavar="NAME")
    run.set_defaults(run=_run)
    for action, function, text in (
        ("status", _status, "where it is; exit status 0 when it answers"),
        ("stop", _stop, "cancel its Slurm jobs"),
    ):
        other = actions.add_parser(action, parents=[common], help=text)
        other.add_argument("name", metavar="NAME")
        other.set_defaults(run=function)


def _model(arguments: argparse.Namespace) -> tuple[str, str]:
    known = served(load_file(arguments.config)["judges"])
    if arguments.name not in known:
        raise UserError(
            f"{arguments.config.name}: no judge has base_url: cluster:{arguments.name}; "
            f"there are {sorted(known) or 'none'}"
        )
    return known[arguments.name]


def _start(arguments: argparse.Namespace) -> None:
    name = arguments.name
    model = served_name(*_model(arguments))
    for job, state, node in _jobs(name):
        print(f"{name}: job {job} is {state}{f' on {node}' if node else ''}; nothing to start")
        return
    found = read_announcement(name)
    if found and found.model == model and trouble_with(found) is None:
        print(f"{name}: runs at {found.where}; nothing to start")
        return
    words = _submission(arguments)
    write_json(folder_of(name) / SUBMISSION, words)
    job = _submit(words)
    print(f"{name}: job {job} submitted, serves {model}; judge-server status {name} shows it")


def _submission(arguments: argparse.Namespace) -> list[str]:
    """The sbatch command of a server's job; it holds no secret."""
    folder = folder_of(arguments.name)
    library = Path(__file__).resolve().parents[2]
    run = ["env", f"PYTHONPATH={library}", sys.executable, "-m", "unlearning_grid.ops"]
    run += ["judge-server", "run", arguments.name, "--config", str(arguments.config)]
    run += ["--directory", str(Path.cwd()), "--idle-minutes", str(arguments.idle_minutes)]
    run += [f"--command={arguments.words}"]
    run += [f"--host={arguments.host}"] if arguments.host else []
    return [
        "sbatch",
        "--parsable",
        f"--job-name={_job_name(arguments.name)}",
        f"--output={folder}/job-%j.log",
        "--open-mode=append",
        "--requeue",  # after a node failure or a preemption: it has no state to lose
        f"--signal=B:USR1@{WARN_BEFORE}",
        *arguments.sbatch,
        f"--wrap=trap '' USR1; exec {shlex.join(run)}",  # until there is a handler
    ]


def _run(arguments: argparse.Namespace) -> None:
    repo, revision = _model(arguments)
    service = Service(
        name=arguments.name,
        repo=repo,
        revision=revision,
        model=served_name(repo, revision),
        host=own_host(arguments.host),
        command=arguments.words,
        idle=arguments.idle_minutes * 60,
    )
    successors: list[str] = []

    def end(_signal: int, _frame: object) -> None:
        service.stop.set()

    def move(_signal: int, _frame: object) -> None:
        if not successors and service.demand.was_there():
            successors.extend(_succeed(arguments.name))

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGUSR1, move)
    try:
        log.info("judge server %s ended: %s", arguments.name, serve(service))
    finally:
        if successors and not service.stop.is_set():
            _cancel(successors)  # nobody needs it, or it cannot start: nor does the next one


def _succeed(name: str) -> list[str]:
    """Submit the job that follows this one; its id, or nothing where that fails."""
    words = read_json(folder_of(name) / SUBMISSION)
    job = os.environ.get("SLURM_JOB_ID")
    if not words or not job:
        return []
    try:
        found = _submit([words[0], f"--dependency=afterany:{job}", *words[1:]])
    except UserError as error:
        log.warning("no job submitted to go on when this one ends: %s", error)
        return []
    log.info("the time limit is near: job %s goes on when this one ends", found)
    return [found]


def _status(arguments: argparse.Namespace) -> int:
    name = arguments.name
    model = served_name(*_model(arguments))
    found = read_announcement(name)
    trouble = trouble_with(found) if found else "none"
    mark = wanted_mark(name)
    rows = [
        ["model", model],
        ["jobs", _jobs_in_words(name)],
        ["announced", found.where if found else "no"],
        ["answers", "yes" if trouble is None else ("no" if not found else f"no: {trouble}")],
        ["last needed", f"{time.time() - mark / 1e9:.0f} s ago" if mark else "never"],
    ]
    print("\n".join(columns(rows, last=True)))
    return 0 if trouble is None else 1


def _stop(arguments: argparse.Namespace) -> None:
    name = arguments.name
    jobs = [job for job, _, _ in _jobs(name)] if _has_slurm() else []
    if jobs:
        _cancel(jobs)
        print(f"{name}: job {', '.join(jobs)} cancelled")
        return
    if is_held(folder_of(name)):
        found = read_announcement(name)
        raise UserError(
            f"{name} runs outside Slurm{f' at {found.where}' if found else ''}: end it there"
        )
    print(f"{name}: no job and no server; nothing to stop")


# Slurm.


def _job_name(name: str) -> str:
    """Tells the servers of several working directories apart."""
    return f"judge-{name}-{digest(str(Path.cwd()))[:8]}"


def _jobs(name: str) -> list[tuple[str, str, str]]:
    """(id, state, node) of a server's Slurm jobs. Raises UserError where there is no Slurm."""
    words = ["squeue", "--noheader", f"--user={os.getuid()}", f"--name={_job_name(name)}"]
    lines = _slurm([*words, "--format=%i|%T|%N"]).splitlines()
    found = [line.strip().split("|") for line in lines if line.count("|") == 2]
    return [(job, state, node) for job, state, node in found if state != "COMPLETING"]


def _jobs_in_words(name: str) -> str:
    """The same for people, also where Slurm does not answer: a server may run without it."""
    if not _has_slurm():
        return "none"
    try:
        return ", ".join(" ".join(filter(None, job)) for job in _jobs(name)) or "none"
    except UserError as error:
        return f"unknown: {error}"


def _submit(words: list[str]) -> str:
    """Job id of what was submitted."""
    return _slurm(words).strip().partition(";")[0]


def _cancel(jobs: list[str]) -> None:
    _slurm(["scancel", *jobs])


def _has_slurm() -> bool:
    from shutil import which

    return which("squeue") is not None


def _slurm(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise UserError(
            f"no {words[0]} here; where there is no Slurm, judge-server run serves on this machine"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{words[0]} did not answer for a minute; try again") from None
    if done.returncode:
        raise UserError(f"{words[0]}: {' '.join(done.stderr.split())[:400]}")
    return done.stdout
