"""Code identity: what changes a digest and what does not."""

from pathlib import Path

import pytest

from unlearning_grid.rewards import registry
from unlearning_grid.spec.code import ROOT, code_digest, imports_of, reachable, source_digest

EVERY_SYNTAX = Path(__file__).parents[1] / "fixtures" / "every_syntax.py"
# Computed on Python 3.11.7, 3.12.1 and 3.13.0: one value on all three.
EVERY_SYNTAX_DIGEST = "bd75cac1c7e6bead563f62b19ac682dedf94a473036f7e66d855b7908e2f71ef"

BEFORE = '''
"""Module docstring."""
import math

def f(x, y=1):
    """Docstring."""
    return math.sqrt(x) + y  # comment

class A:
    """Docstring."""
'''

HARMLESS = {
    "comment": BEFORE.replace("# comment", "# another comment"),
    "docstring": BEFORE.replace("Docstring.", "Longer docstring."),
    "no docstring": BEFORE.replace('    """Docstring."""\n    return', "    return"),
    "format": BEFORE.replace("x, y=1", "\n    x,\n    y = 1,\n").replace("import", "\n\nimport"),
    "quotes and number format": BEFORE.replace("y=1", "y=0x1"),
}
REAL = {
    "constant": BEFORE.replace("y=1", "y=2"),
    "type of a constant": BEFORE.replace("y=1", "y=1.0"),
    "operator": BEFORE.replace("+ y", "- y"),
    "name": BEFORE.replace("def f", "def g"),
    "keyword only": BEFORE.replace("x, y=1", "x, *, y=1"),
    "import": BEFORE.replace("import math", "import cmath as math"),
    "a string that is no docstring": BEFORE.replace("import math", 'import math\nS = "s"'),
}


@pytest.mark.parametrize("edit", HARMLESS)
def test_harmless_edits_keep_the_digest(edit):
    assert HARMLESS[edit] != BEFORE
    assert source_digest(HARMLESS[edit]) == source_digest(BEFORE)


@pytest.mark.parametrize("edit", REAL)
def test_real_edits_change_it(edit):
    assert source_digest(REAL[edit]) != source_digest(BEFORE)


def test_equal_on_every_supported_python():
    assert source_digest(EVERY_SYNTAX.read_text(encoding="utf-8")) == EVERY_SYNTAX_DIGEST


def test_imports_inside_functions_count(tmp_path):
    package = tmp_path / "unlearning_grid"
    package.mkdir()
    (package / "a.py").write_text(
        "import os\ndef f():\n    from unlearning_grid.b import g\n    import unlearning_grid.c\n"
    )
    (package / "b.py").write_text("from unlearning_grid import d\ng = d.x\n")
    for name in ("c", "d"):
        (package / f"{name}.py").write_text("x = 1\n")
    assert imports_of(package / "a.py", package) == ["b", "c"]
    assert reachable(["a"], package) == {"a", "b", "c", "d"}
    before = code_digest(["a"], package)
    (package / "d.py").write_text("x = 2\n")
    assert code_digest(["a"], package) != before
    with pytest.raises(FileNotFoundError):
        code_digest(["nowhere"], package)


def test_relative_imports_are_refused_because_they_would_be_missed(tmp_path):
    (tmp_path / "a.py").write_text("from . import b\n")
    with pytest.raises(ValueError, match="relative"):
        imports_of(tmp_path / "a.py", tmp_path)


def test_a_rewards_digest_holds_only_what_it_uses():
    lexical = reachable(["train.grpo", registry.module("r0-lex")])
    refusal = reachable(["train.grpo", registry.module("r4-refusal")])
    assert "rewards.lexical" in lexical and "rewards.refusal" not in lexical
    assert "rewards.refusal" in refusal and "rewards.lexical" not in refusal
    for modules in (lexical, refusal):
        assert "judge.rules" not in modules and "models.detector" not in modules
        assert {"models.sampling", "models.chat", "train.trainer", "train.callbacks"} <= modules


def test_tracking_code_and_registries_are_outside():
    everything = reachable(
        [
            str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
            for path in ROOT.rglob("*.py")
            if path.name not in ("__init__.py", "__main__.py")
        ]
    )
    for name in everything:
        assert name.partition(".")[0] not in ("runtime", "ops", "spec", "paths", "grid", "config")
    assert "rewards.registry" not in everything and "judge.registry" not in everything
