"""What planning costs, and how it grows with the number of targets.

    .venv/bin/python benchmarks/grid.py [TARGETS ...]        default: 10 50 200

For each number of targets, a dry run of the paper's grid under the cluster's profile with nothing
done yet: jobs, jobs that Slurm gets, files below results/ when all is done (a folder counts as
one), CPU seconds and peak memory of the process, and the ratio to the same rules with a constant
for every spec. Targets beyond the study's ten are its ten under other names.
"""

import argparse
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "workflow" / "scripts"), str(ROOT / "tests")]

from rulefiles import local_rules, rules  # noqa: E402
from wide_grid import widened  # noqa: E402

HEAD = ("targets", "jobs", "to Slurm", "files", "CPU s", "MiB", "ms a job", "to bare rules")


def main() -> None:
    """Print one row per number of targets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", type=int, default=[10, 50, 200])
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print("  ".join(f"{name:>13}" for name in HEAD))
    for number in parser.parse_args().targets:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(number, Path(folder))
        print("  ".join(f"{value:>13}" for value in row), flush=True)


def measure(number: int, folder: Path) -> list[str]:
    """The row of one number of targets."""
    config = widened(number, folder)
    seconds, memory, text = dry_run(ROOT, config)
    bare, _, _ = dry_run(bare_copy(folder / "bare"), config)
    counts = {rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE)}
    jobs = counts.pop("total")
    local = local_rules() | {"all"}
    return [
        str(number),
        str(jobs),
        str(sum(n for rule, n in counts.items() if rule not in local)),
        str(sum(n * files(rule) for rule, n in counts.items() if rule != "all")),
        f"{seconds:.1f}",
        str(memory),
        f"{1000 * seconds / jobs:.2f}",
        f"{seconds / bare:.2f}",
    ]


def dry_run(project: Path, config: Path) -> tuple[float, int, str]:
    """(CPU seconds, peak MiB so far, what was printed) of a dry run in an empty folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "snakemake", "-n", "--quiet", "rules"]
        words += ["--profile", "profiles/slurm", "--configfile", str(config)]
        words += ["--directory", folder, "--", "all"]
        done = subprocess.run(words, cwd=project, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, after.ru_maxrss // 1024, done.stdout


def files(rule: str) -> int:
    """Outputs of a rule, its log and its benchmark."""
    return len(rules()[rule].named("output")) + 2


def bare_copy(target: Path) -> Path:
    """The project with a constant for every spec."""
    target.mkdir()
    for name in ("workflow", "config", "resources", "envs", "profiles"):
        shutil.copytree(ROOT / name, target / name)
    shutil.copy2(ROOT / "Snakefile", target)
    common = target / "workflow" / "rules" / "common.smk"
    text = common.read_text(encoding="utf-8")
    line = "    return lambda wildcards: SPECS.text(stage, **dict(wildcards))\n"
    assert line in text
    common.write_text(text.replace(line, '    return "none"\n'), encoding="utf-8")
    return target


if __name__ == "__main__":
    main()
