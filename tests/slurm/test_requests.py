"""What jobs ask Slurm for, in every spelling, and a Slurm that is busy when it is asked."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm.cluster import Cluster
from slurm.runs import assert_same_results, copied, derived, forget, ledger, running, slurm_jobs

pytestmark = pytest.mark.slurm

BASE = "base/tiny"  # no training: five jobs and the tables
SPELLINGS = {
    "generate_completions": {"gres": None, "gpu": 1, "gpu_model": "h100", "runtime": "180"},
    "score_likelihoods": {"gres": "shard:1", "gpu_share": 4, "runtime": "3h"},
    "audit_completions": {"runtime": "180m"},
    "audit_again": {"runtime": 180},
}
BUSY = """#!/bin/sh
# {name}, too busy for its first two callers
if mkdir {folder}/{name}-1 2>/dev/null || mkdir {folder}/{name}-2 2>/dev/null; then
    echo "{name}: error: {message}: Socket timed out on send/recv operation" >&2
    exit 1
fi
exec {real} "$@"
"""
MESSAGES = {"sbatch": "Batch job submission failed", "squeue": "slurm_load_jobs error"}


@dataclass
class Story:
    """A finished run. `text` is what Snakemake said, `commands` where the busy ones lie."""

    directory: Path
    text: str
    commands: Path

    def job(self, rule: str) -> dict[str, str]:
        """The only Slurm job of a rule."""
        (only,) = [job for job in slurm_jobs(self.directory) if job["Rule"] == f"rule_{rule}"]
        return only


def scenario(cluster: Cluster, finished: Path, folder: Path) -> Story:
    """The base model's evaluation anew, by a Slurm that is busy at first."""
    directory = copied(finished, folder / "grid")
    forget(directory, f"results/{BASE}")
    commands = folder / "bin"
    commands.mkdir()
    for name, message in MESSAGES.items():
        real = shutil.which(name)
        text = BUSY.format(name=name, folder=commands, message=message, real=real)
        (commands / name).write_text(text, encoding="utf-8")
        (commands / name).chmod(0o755)
    profile = derived(folder / "profile", {"set-resources": SPELLINGS})
    with running(directory, profile=profile, before=commands) as run:
        return Story(directory, run.end(), commands)


def test_a_busy_sbatch_costs_attempts_and_a_busy_squeue_nothing(story: Story) -> None:
    assert story.text.count("Batch job submission failed: Socket timed out") >= 2
    failures = sorted(path.name for path in story.commands.iterdir() if path.is_dir())
    assert failures == ["sbatch-1", "sbatch-2", "squeue-1", "squeue-2"]
    assert all(story.job(rule)["JobState"] == "COMPLETED" for rule in SPELLINGS)


@pytest.mark.parametrize("rule", sorted(SPELLINGS))
def test_three_hours_are_three_hours_however_they_are_spelled(story: Story, rule: str) -> None:
    assert story.job(rule)["TimeLimit"] == "03:00:00"


@pytest.mark.parametrize(
    ("rule", "stage", "asked", "gpus"),
    [
        ("generate_completions", "completions", ("TresPerJob", "gres:gpu:h100:1"), 1),
        ("score_likelihoods", "likelihoods", ("TresPerNode", "gres:shard:1"), 0.25),
        ("audit_completions", "audit", ("TresPerNode", None), 0),
    ],
)
def test_gpus_by_model_and_shards_bind_what_they_say(
    story: Story, rule: str, stage: str, asked: tuple[str, str | None], gpus: float
) -> None:
    """The profile's own spelling, gres, is that of the undisturbed run."""
    name, value = asked
    assert story.job(rule).get(name) == value
    lines = ledger(story.directory / f"results/{stage}/{BASE}/on/bruce-lee")
    assert [line["gpus"] for line in lines if line["event"] == "start"] == [gpus]


def test_every_result_is_that_of_an_undisturbed_run(story: Story, finished: Path) -> None:
    assert_same_results(story.directory, finished)
