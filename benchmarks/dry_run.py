"""What specs cost a dry run: the paper's grid against the same rules with constants for specs.

    .venv/bin/python benchmarks/dry_run.py [repeats]

Prints CPU seconds of `snakemake -n`, milliseconds per job, and the ratio; both run in turn.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JOBS = 1617  # of config/config.yaml; tests/dag holds the number


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


def cpu_seconds(project: Path) -> float:
    """CPU time of one dry run of the paper's grid in an empty folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "snakemake", "-n", "--quiet", "rules"]
        words += ["--snakefile", str(project / "Snakefile"), "--directory", folder, "--", "all"]
        subprocess.run(words, cwd=project, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder:
        bare = bare_copy(Path(folder) / "bare")
        times = [(cpu_seconds(ROOT), cpu_seconds(bare)) for _ in range(repeats)]
    ours, theirs = (min(column) for column in zip(*times, strict=True))
    print(f"with specs    {ours:5.2f} s CPU, {1000 * ours / JOBS:.2f} ms per job")
    print(f"without specs {theirs:5.2f} s CPU, {1000 * theirs / JOBS:.2f} ms per job")
    print(f"ratio         {ours / theirs:.2f} (best of {repeats} each)")


if __name__ == "__main__":
    main()
