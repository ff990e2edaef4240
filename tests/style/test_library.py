"""House rules for the library: size, names, documentation, what it may never do."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from modules import MODULES, SCRIPTS, at_import, name_of, packages, tree_of
from support import ROOT

HEAVY = {
    "accelerate",
    "ahocorasick",
    "datasets",
    "gguf",
    "huggingface_hub",
    "matplotlib",
    "networkx",
    "nltk",
    "numpy",
    "openai",
    "pandas",
    "peft",
    "py3langid",
    "punkt",
    "pyarrow",
    "rapidfuzz",
    "safetensors",
    "scipy",
    "tenacity",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "vllm",
}
# Classes that extend a trainer's cannot be written without it; imported inside functions only.
EXTENDS_A_TRAINER = {
    "train.trainer",
    "train.engine",
    "train.callbacks",
    "train.checkpoints",
    "train.monitor",
}
# What the rule files import, before any job.
PARSED = ("config", "grid", "paths", "errors", "spec.stages", "spec.plan", "ops.state", "checks")

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: name_of(p) or "package")


@pytest.mark.parametrize(
    "path",
    sorted(
        [
            *SCRIPTS.rglob("*.py"),
            *(ROOT / "tests").rglob("*.py"),
            *(ROOT / "workflow" / "rules").glob("*.smk"),
        ]
    ),
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_a_file_has_fewer_than_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


@each_module
def test_a_module_is_documented_and_its_name_says_something(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), "module docstring"
    assert not {"utils", "helpers", "common", "misc"} & set(name_of(path).split("."))


@each_module
def test_public_functions_and_classes_have_docstrings(path: Path) -> None:
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@each_module
def test_functions_fit_a_screen_and_are_typed(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.FunctionDef):
            continue
        docstring = ast.get_docstring(node, clean=False) or ""
        lines = (node.end_lineno or 0) - node.lineno - docstring.count("\n")
        assert lines <= 60, f"{node.name}: {lines} lines"
        if not node.name.startswith("_"):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            untyped = [
                a.arg for a in given if a.annotation is None and a.arg not in ("self", "cls")
            ]
            assert not untyped, f"{node.name}: {untyped}"


@each_module
def test_imports_are_absolute_and_name_no_workflow_engine(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "snakemake" not in packages(node), ast.unparse(node)


@each_module
def test_heavy_packages_are_imported_inside_functions(path: Path) -> None:
    found = set().union(*(packages(node) for node in at_import(tree_of(path))), set()) & HEAVY
    assert not found or name_of(path) in EXTENDS_A_TRAINER, found


def test_modules_that_extend_a_trainer_are_imported_inside_functions() -> None:
    for path in MODULES:
        if name_of(path) in EXTENDS_A_TRAINER:
            continue  # loads it anyway
        for node in at_import(tree_of(path)):
            module = getattr(node, "module", None) or ""
            named = {module} | {f"{module}.{alias.name}" for alias in node.names}
            named = {name.removeprefix("unlearning_grid.") for name in named}
            assert not named & EXTENDS_A_TRAINER, f"{name_of(path)}: {ast.unparse(node)}"


@pytest.mark.parametrize("which", ["what the rule files import", "every module"])
def test_importing_loads_nothing_heavy(which: str) -> None:
    every = [name_of(path) for path in MODULES]
    names = PARSED if which.startswith("what") else set(every) - EXTENDS_A_TRAINER
    modules = sorted(
        f"unlearning_grid.{name}".rstrip(".") for name in names if name != "ops.__main__"
    )
    code = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=SCRIPTS, check=True
    )
    assert not HEAVY & set(json.loads(done.stdout))


@each_module
def test_nothing_runs_code_that_comes_with_data(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert not {"pickle", "dill", "joblib", "shelve", "marshal"} & packages(node)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "eval", "exec", "yaml.unsafe_load"), called
            for keyword in node.keywords:
                value = ast.unparse(keyword.value)
                assert keyword.arg != "trust_remote_code" or value == "False", called
                assert keyword.arg != "safe_serialization" or value == "True", called
                assert keyword.arg != "shell" or value == "False", called


def test_no_file_of_the_project_names_a_place_on_a_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    place = re.compile(r"(?<![\w.}>~-])/(?:root|home|work|Users|tmp|mnt|scratch|workspace)/\w")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in (".png", ".pdf", ".parquet"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [
                f"{name}:{n}: {line}" for n, line in enumerate(lines, 1) if place.search(line)
            ]
    assert not found, "\n".join(found)
