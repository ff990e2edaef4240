"""Every module of the library belongs to the stages that its line in module_table.py names."""

import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from invalidation.module_table import MODULES, line_of, stages_of
from modules import LIBRARY, NAMES, tree_of
from support import config
from unlearning_grid.config import load
from unlearning_grid.spec.code import code_digest, is_excluded, module_digests
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.rules import STAGES
from unlearning_grid.spec.stages import Specs

PACKAGES = {path.parent: path for path in NAMES.values() if path.name == "__init__.py"}
PLAIN = sorted(name for name, path in NAMES.items() if path.name != "__init__.py")
REWARDS = [
    "r0-lex",
    "r1-antirefusal",
    "r2-rubric",
    "r3-fuzzy",
    "r4-refusal",
    "exp-lex",
    "pagerank-lex",
]


def every_stage() -> dict[str, set[tuple[str, ...]]]:
    """Stage, with its reward or judge -> root modules of its code, in a grid that has them all."""
    raw = config("demo")
    raw["grid"]["rewards"] = REWARDS
    raw["term_weights"] = {"size": "tiny"}
    prompt = "config/prompts/reworded-v1/audit-six.txt"
    raw["judges"]["far"] = {"provider": "openai", "model": "m", "prompt_file": prompt}
    raw["agreement"]["judges"] = ["lower-bound", "far"]
    specs = Specs(load(raw))
    jobs: list[tuple[str, dict[str, Any]]] = [(rule, cell) for _, rule, cell in planned(specs)]
    there = {rule for rule, _ in jobs}
    jobs.append(("generate_base_rows", {"size": "tiny"}))
    there.add("generate_base_rows")
    jobs += [(rule, {}) for rule in STAGES if rule not in there and rule != "build_partial"]
    jobs.append(("build_partial", {"state": "any"}))
    found: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for rule, cell in jobs:
        more = cell.get("reward") or cell.get("judge")
        name = f"{rule}:{more}" if more else rule
        found[name].add(tuple(specs.spec(rule, **cell)["modules"]))
    assert {name.partition(":")[0] for name in found} == set(STAGES)
    return dict(found)


@pytest.fixture(scope="module")
def affected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Module -> stages whose code digest changes when a constant is added to it.

    Added to all modules of a copy at once: the digest of a stage is one over its modules' own.
    """
    copy = tmp_path_factory.mktemp("library") / "unlearning_grid"
    shutil.copytree(LIBRARY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    stages = every_stage()
    roots = set[tuple[str, ...]]().union(*stages.values())
    before = {each: module_digests(each, copy) for each in roots}
    for path in copy.rglob("*.py"):
        path.write_text(path.read_text(encoding="utf-8") + "\nEXTRA = 1\n", encoding="utf-8")
    after = {each: module_digests(each, copy) for each in roots}
    found: dict[str, set[str]] = defaultdict(set)
    for stage, uses in stages.items():
        for each in uses:
            for module in after[each]:
                if after[each][module] != before[each].get(module):
                    found[module].add(stage)
    return found


def written_out(stages: Iterable[str], known: Iterable[str]) -> set[str]:
    """`train_grpo` as the cells of every reward, `audit_again` as every judge's opinions."""
    return {each for stage in stages for each in known if each.partition(":")[0] == stage} | {
        stage for stage in stages if ":" in stage
    }


def test_the_lines_are_of_modules() -> None:
    used = {line_of(name) for name in PLAIN}
    assert used - {None} == set(MODULES), "drop the lines that no module needs"


@pytest.mark.parametrize("module", PLAIN)
def test_a_module_belongs_to_the_stages_of_its_line(
    module: str, affected: dict[str, set[str]]
) -> None:
    line = line_of(module)
    assert line, f"tests/invalidation/module_table.py: add a line for {module}, the stages it is of"
    known = set[str]().union(*affected.values())
    expected = written_out(stages_of(MODULES[line]), known)
    assert affected.get(module, set()) == expected
    if module.startswith(("runtime", "ops", "spec", "checks")):
        assert is_excluded(module)


@pytest.mark.parametrize("path", PACKAGES.values(), ids=lambda path: path.parent.name)
def test_a_package_itself_holds_no_code(path: Path) -> None:
    """The digests follow modules; the `__init__` of a package that has some is in none of them."""
    name = ".".join(path.parent.relative_to(LIBRARY).parts)
    assert is_excluded(name) or len(tree_of(path).body) <= 1, "write it into a module"


def test_a_stages_digest_changes_with_each_of_its_modules(tmp_path: Path) -> None:
    copy = tmp_path / "unlearning_grid"
    shutil.copytree(LIBRARY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = code_digest(["rwku.score"], copy)
    seen = {before}
    for module in sorted(module_digests(["rwku.score"], copy)):
        path = copy.joinpath(*module.split(".")).with_suffix(".py")
        path.write_text(path.read_text(encoding="utf-8") + "\nEXTRA = 1\n", encoding="utf-8")
        seen.add(code_digest(["rwku.score"], copy))
    assert len(seen) == 1 + len(module_digests(["rwku.score"], copy)) > 5
