"""What several test folders need: dry runs as data, and configurations to vary.

from support import plan
made = plan(ROOT / "config" / "demo.yaml", tmp_path)
made.counts["train_grpo"]          16
made.inputs["train_grpo", frozenset({("size", "tiny"), ...})]
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from unlearning_grid.runtime import manifest

ROOT = Path(__file__).resolve().parents[1]

# What is planned whenever a cell changes: the plan and every table and figure.
PLANNED = {
    "write_plan": 1,
    "build_cells_table": 1,
    "build_training_table": 1,
    "build_heldout_audit_table": 1,
    "build_terminal_audit_table": 1,
    "build_leak_at_k_table": 1,
    "build_sampled_audit_table": 1,
    "build_judge_agreement_table": 1,
    "build_rwku_core_table": 1,
    "build_rwku_utility_table": 1,
    "build_rwku_types_table": 1,
    "plot_training_dynamics": 1,
    "plot_leak_at_k": 1,
    "all": 1,
}

Job = tuple[str, frozenset[tuple[str, str]]]

_HEAD = re.compile(r"^(?:local)?(?:rule|checkpoint) (\w+):$")
_FIELD = re.compile(r"^    (input|output|wildcards|reason|resources|log|threads): (.*)$")


@dataclass
class Plan:
    """The jobs of one dry run.

    Attributes:
        jobs: (rule, frozenset of (wildcard, value)) of every planned job, `all` included.
        inputs, outputs: files of a job, in the order of its rule.
        reasons: why Snakemake would run a job.
        resources: resources of a job as text, by name.
        text: what Snakemake printed.
    """

    jobs: set[Job] = field(default_factory=set)
    inputs: dict[Job, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[Job, tuple[str, ...]] = field(default_factory=dict)
    reasons: dict[Job, str] = field(default_factory=dict)
    resources: dict[Job, dict[str, str]] = field(default_factory=dict)
    text: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Rule -> number of planned jobs; a rule without a job is absent."""
        return dict(Counter(rule for rule, _ in self.jobs))

    @property
    def rules(self) -> set[str]:
        """Rules with at least one planned job."""
        return {rule for rule, _ in self.jobs}

    def of(self, rule: str) -> list[dict[str, str]]:
        """Wildcards of the planned jobs of one rule, in a stable order."""
        found = [dict(wildcards) for name, wildcards in self.jobs if name == rule]
        return sorted(found, key=lambda wildcards: sorted(wildcards.items()))


def job(rule: str, **wildcards: str) -> Job:
    """The key of a job in a Plan."""
    return rule, frozenset(wildcards.items())


def plan(
    config_file: Path | Mapping[str, Any],
    directory: Path,
    targets: Sequence[str] = ("all",),
    extra: Sequence[str] = (),
    root: Path = ROOT,
) -> Plan:
    """Dry-run the workflow of `root` and return the planned jobs.

    Args:
        config_file: a complete configuration, as a file or as a dict.
        directory: working directory, made if it is missing.
        extra: more words for Snakemake's command line.
    Raises AssertionError with Snakemake's output when the dry run fails.
    """
    done = dry_run(config_file, directory, targets, extra, root)
    assert done.returncode == 0, f"dry run failed:\n{done.stdout}{done.stderr}"
    return parse(done.stdout)


def dry_run(
    config_file: Path | Mapping[str, Any],
    directory: Path,
    targets: Sequence[str] = ("all",),
    extra: Sequence[str] = (),
    root: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """The finished `snakemake -n` process, whatever its exit status."""
    directory.mkdir(parents=True, exist_ok=True)
    path = as_file(config_file, directory)
    words = ["-n", "--configfile", str(path), *extra]
    return snakemake(words, directory, targets, root)


def snakemake(
    words: Sequence[str], directory: Path, targets: Sequence[str] = (), root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run this environment's Snakemake on the workflow of `root` in a working directory."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile")]
    command += ["--directory", str(directory), "--nocolor", *words, "--", *targets]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=root, env=environment(), timeout=1500
    )


def environment() -> dict[str, str]:
    """This process's environment without what would steer Snakemake."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SNAKEMAKE_")}


def real_manifest(folder: Path, *names: str) -> Path:
    """Write the manifest that a stage with these outputs would leave; returns its path."""
    path = folder / manifest.NAME
    made = manifest.describe("test", {name: folder / name for name in names}, {})
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


def as_file(config: Path | Mapping[str, Any], directory: Path) -> Path:
    """A configuration as a file: itself, or written beside the working directory."""
    if isinstance(config, Path):
        return config
    path = directory.with_name(f"{directory.name}.config.yaml")
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    return path


def config(name: str) -> dict[str, Any]:
    """A configuration of the checkout by name ("demo"), free to change."""
    return yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text(encoding="utf-8"))


def parse(text: str) -> Plan:
    """The jobs in the output of a dry run at its normal verbosity.

    Raises AssertionError when they are fewer than Snakemake's own count.
    """
    made = Plan(text=text)
    for block in _blocks(text.splitlines()):
        rule, fields = block
        key = rule, frozenset(_pairs(fields.get("wildcards", "")).items())
        made.jobs.add(key)
        made.inputs[key] = _paths(fields.get("input", ""))
        made.outputs[key] = _paths(fields.get("output", ""))
        made.reasons[key] = fields.get("reason", "")
        made.resources[key] = _pairs(fields.get("resources", ""))
    total = re.search(r"^total +(\d+)$", text, re.MULTILINE)
    counted = int(total[1]) if total else 0
    assert len(made.jobs) == counted, f"parsed {len(made.jobs)} of {counted} jobs"
    return made


def _blocks(lines: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    inside = False
    for line in lines:
        head = _HEAD.match(line)
        if head:
            found.append((head[1], {}))
        elif inside and (part := _FIELD.match(line)):
            found[-1][1].setdefault(part[1], part[2])
        inside = bool(head) or (inside and line.startswith("    "))
    return found


def _pairs(text: str) -> dict[str, str]:
    """`a=1, b=x` as a dict."""
    return dict(part.split("=", 1) for part in text.split(", ") if "=" in part)


def _paths(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(", ") if part)
