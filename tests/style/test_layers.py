"""Imports point downward only; those inside functions and for type checkers count."""

import ast
from graphlib import TopologicalSorter

import pytest

from modules import NAMES, at_import, in_package, tree_of

# From top to bottom. A module may import from lower layers and from its own package, not from
# another package of its layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("ops",),
    ("tables",),
    ("audit", "generate", "train", "rwku", "diagnostics"),
    ("rewards",),
    ("judge",),
    ("models",),
    ("data",),
    ("remote",),
    ("runtime",),
    ("spec",),
    ("paths",),
    ("config",),
    ("grid",),
    ("rewards.registry", "judge.registry", "generate.registry"),
    ("rewards.base",),
    ("judge.base", "judge.labels"),
    ("errors",),
)
# Names and declarations without behaviour, which the checks of a configuration need: they lie
# below it, though their packages lie above. `checks` is the second half of `config`.
SAME = {"checks": "config"}

ALLOWED = {
    ("data.broad", "models"): "writes answers with a model when the provider is `policy`",
}


def layer(module: str) -> tuple[int, str]:
    """(height from the bottom, package) of a module."""
    module = SAME.get(module.partition(".")[0], module)
    names = [module, module.partition(".")[0]]
    for name in names:
        for height, group in enumerate(reversed(LAYERS)):
            if name in group:
                return height, name.partition(".")[0] if "." not in name else name
    raise AssertionError(f"{module} has no layer; add it to LAYERS")


def allowed(module: str, imported: str) -> bool:
    return (module, imported.partition(".")[0]) in ALLOWED


@pytest.mark.parametrize("module", [name for name in NAMES if name])
def test_a_module_imports_from_below(module: str) -> None:
    height, package = layer(module)
    for imported in sorted(in_package(ast.walk(tree_of(NAMES[module])))):
        other_height, other = layer(imported)
        fine = other_height < height or other == package
        assert fine or allowed(module, imported), f"{module} imports {imported}"


def test_each_exception_is_needed_and_inside_a_function() -> None:
    for module, package in ALLOWED:
        tree = tree_of(NAMES[module])
        everywhere = {name.partition(".")[0] for name in in_package(ast.walk(tree))}
        at_once = {name.partition(".")[0] for name in in_package(at_import(tree))}
        assert package in everywhere, f"{module} no longer imports {package}"
        assert package not in at_once, f"{module} imports {package} at once"


def test_imports_at_import_time_have_no_cycle() -> None:
    graph = {name: in_package(at_import(tree_of(path))) - {name} for name, path in NAMES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def test_what_retrains_nothing_is_known_and_changes_no_result() -> None:
    """What the code digests leave out lies at the bottom or is tracking code."""
    from unlearning_grid.spec.code import EXCLUDED

    lowest_stage = layer("data")[0]
    for name in EXCLUDED:
        assert layer(name)[0] < lowest_stage or name == "ops", name
