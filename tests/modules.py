"""The library as text: its modules, and what each of them imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

from support import ROOT

SCRIPTS = ROOT / "workflow" / "scripts"
LIBRARY = SCRIPTS / "unlearning_grid"
MODULES = sorted(LIBRARY.rglob("*.py"))
PACKAGE = "unlearning_grid"


def name_of(path: Path) -> str:
    """Module name below the package."""
    parts = path.relative_to(LIBRARY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def at_import(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is imported; those for type checkers do not."""
    found: list[ast.Import | ast.ImportFrom] = []
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With):
            todo += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
    return found


def packages(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Top-level packages that an import names."""
    names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return {name.partition(".")[0] for name in names}


def in_package(nodes: Iterator[ast.AST] | list) -> set[str]:
    """Modules of the package (relative names) that import statements among `nodes` name."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {resolve(name) for name in names if name.partition(".")[0] == PACKAGE}
    return found - {""}


def resolve(dotted: str) -> str:
    """The module that a dotted name lies in: the name itself, or what holds the attribute."""
    name = dotted.removeprefix(PACKAGE).removeprefix(".")
    while name and name not in NAMES:
        name = name.rpartition(".")[0]
    return name


NAMES = {name_of(path): path for path in MODULES}
