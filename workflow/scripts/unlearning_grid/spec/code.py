"""Code identity: a digest that changes when behaviour can change, and not otherwise.

The digest of a stage covers the syntax trees of its root modules and of every in-package module
they import (imports inside functions too), without docstrings, comments, positions or formatting.
It is equal on Python 3.11 to 3.13: the dump below leaves out empty fields, which is where the
trees of these versions differ.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from unlearning_grid.spec.canonical import digest, digest_text

PACKAGE = "unlearning_grid"
ROOT = Path(__file__).resolve().parents[1]

# Outside every digest, on purpose. Tracking code (runtime, ops, paths) must not retrain anything;
# the registries map names to modules, and the module that a cell uses is a root of its own digest;
# how requests are sent, repeated and kept decides when a judge is asked, not what it says.
EXCLUDED = (
    "runtime",
    "ops",
    "paths",
    "errors",
    "spec",
    "grid",
    "config",
    "checks",
    "rewards.registry",
    "judge.registry",
    "generate.registry",
    "remote.transport",
    "remote.faults",
    "remote.quotes",
    "remote.outage",
    "remote.records",
    "remote.cache",
    "remote.client",
    "remote.servers",
    "remote.serving",
)

_SKIPPED_FIELDS = frozenset({"ctx", "type_comment", "kind", "type_params", "type_ignores"})


def source_digest(source: str) -> str:
    """Digest of Python source, blind to comments, docstrings and formatting."""
    return digest_text(_dump(_without_docstrings(ast.parse(source))))


def code_digest(roots: Iterable[str], package_root: Path = ROOT) -> str:
    """Digest over the modules reachable from `roots` (names relative to the package).

    Raises FileNotFoundError when a root does not exist.
    """
    return digest(module_digests(roots, package_root))


def module_digests(roots: Iterable[str], package_root: Path = ROOT) -> dict[str, str]:
    """Module -> digest of its source, of every module that the code digest of `roots` covers."""
    names = sorted(reachable(roots, package_root))
    return {name: _module_digest(_path(name, package_root)) for name in names}


def reachable(roots: Iterable[str], package_root: Path = ROOT) -> set[str]:
    """Names of the package's modules that `roots` import, directly or not, without EXCLUDED."""
    seen: set[str] = set()
    queue = [root.removeprefix(f"{PACKAGE}.") for root in roots]
    while queue:
        name = queue.pop()
        if name in seen or is_excluded(name):
            continue
        seen.add(name)
        queue.extend(imports_of(_path(name, package_root), package_root))
    return seen


def is_excluded(name: str) -> bool:
    """Whether a module (relative name) lies outside every code digest."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in EXCLUDED)


def imports_of(path: Path, package_root: Path = ROOT) -> list[str]:
    """Relative names of the in-package modules that a file imports, at any depth."""
    found = []
    for node in ast.walk(_tree(path, path.stat().st_mtime_ns)):
        for name in _imported_names(node):
            module = _resolve(name, package_root)
            if module:
                found.append(module)
    return sorted(set(found))


def _imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            raise ValueError("relative imports are not used in this package: the digest skips them")
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _resolve(dotted: str, package_root: Path) -> str | None:
    """The package's module that `dotted` names: itself, or the module that holds the attribute."""
    if not dotted.startswith(PACKAGE + "."):
        return None
    name = dotted.removeprefix(PACKAGE + ".")
    while name:
        if _exists(name, package_root):
            return name
        name = name.rpartition(".")[0]
    return None


def _exists(name: str, package_root: Path) -> bool:
    base = package_root.joinpath(*name.split("."))
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


def _path(name: str, package_root: Path) -> Path:
    base = package_root.joinpath(*name.split("."))
    module = base.with_suffix(".py")
    if module.is_file():
        return module
    if (base / "__init__.py").is_file():
        return base / "__init__.py"
    raise FileNotFoundError(f"no module {PACKAGE}.{name} below {package_root}")


def _module_digest(path: Path) -> str:
    return _cached_module_digest(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=512)
def _cached_module_digest(path: Path, _mtime_ns: int) -> str:
    return source_digest(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=512)
def _tree(path: Path, _mtime_ns: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
    return tree


def _dump(node: object) -> str:
    if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some of them with an empty string
        node.values = [v for v in node.values if not _is_empty_text(v)]
    if isinstance(node, ast.AST):
        fields = (
            f"{name}={_dump(value)}"
            for name, value in ast.iter_fields(node)
            if name not in _SKIPPED_FIELDS and value is not None and value != []
        )
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(_dump(item) for item in node)}]"
    return repr(node)


def _is_empty_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""
