"""Why a result is not current: which field, which module, which pin, which upstream result."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from results_tree import Tree, working_in
from support import ROOT, config
from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.__main__ import main
from unlearning_grid.ops.differences import change, differences
from unlearning_grid.ops.why import FOLLOWS, named, report, spec_changes, why
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime.ingredients import ingredients
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.stages import Specs

COLD = "grpo/tiny/bruce-lee/cold/r0-lex/s0"
WARM = "grpo/tiny/bruce-lee/warm/r0-lex/s0"
WARM_UP = "warmup/tiny/bruce-lee/s0"
MICRO = ROOT / "config" / "micro.yaml"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    axes = {"sizes": ["tiny"], "targets": ["bruce-lee"], "seeds": [0]}
    with working_in(tmp_path, monkeypatch):
        made = Tree(**axes, inits=["cold", "warm"], rewards=["r0-lex"])
        made.train(WARM_UP, {"steps": 10})
        made.train(COLD)
        made.train(WARM)
        made.evaluate(COLD, "bruce-lee")
        yield made


def reasons(tree: Tree) -> dict[tuple[str, str], list[str]]:
    """What is not current for a reason, less what was never made."""
    specs = {
        (rule, str(cell)): json.loads(tree.spec(Path(folder)))
        for folder, rule, cell in tree.planned
    }

    def spec_of(rule: str, cell: Mapping[str, Any]) -> dict[str, Any]:
        return specs[rule, str(cell)]

    made = [item for item in tree.planned if (Path(item[0]) / "work").is_dir()]
    found = why(tree.results(), made, tree.planned, spec_of)
    return {key: [standing.name for standing in at] for key, at in found.items()}


def test_nothing_changed(tree: Tree) -> None:
    assert reasons(tree) == {}
    assert report({}, 4) == ["4 results, all current."]


def test_a_field_is_named_with_both_values_and_what_follows_apart(tree: Tree) -> None:
    tree.settings[COLD] = {"max_steps": 62}
    tree.settings[WARM] = {"max_steps": 62}
    assert reasons(tree) == {
        ("train_grpo", "max_steps: (none) -> 62"): [COLD, WARM],
        ("generate_completions", FOLLOWS): [f"completions/{COLD}/on/bruce-lee"],
    }


def test_another_result_upstream(tree: Tree) -> None:
    shutil.rmtree(policy_dir(WARM_UP))
    tree.train(WARM_UP, {"steps": 11})
    shutil.rmtree(policy_dir(COLD))
    assert reasons(tree) == {
        ("train_grpo", "made from another result of train_warmup"): [WARM],
        ("generate_completions", "what it was made from is gone: train_grpo"): [
            f"completions/{COLD}/on/bruce-lee"
        ],
    }


def test_what_failed_and_what_was_never_made(tree: Tree) -> None:
    shutil.rmtree(policy_dir(WARM))
    with pytest.raises(UserError):
        tree.train(WARM, UserError("grpo: no"))
    shutil.rmtree(stage_dir("completions", COLD, "bruce-lee"))
    assert reasons(tree) == {("train_grpo", "failed: UserError: grpo: no"): [WARM]}


def test_equal_reasons_are_one_line_a_rule(tree: Tree) -> None:
    tree.settings[COLD] = {"max_steps": 62}
    tree.settings[WARM] = {"max_steps": 62}
    wanted = [item for item in tree.planned if item[1] == "train_grpo"]
    new: dict[str, Any] = {"settings": {"version": 2}, "cell": {}, "code": "c", "env": "e"}
    found = why(tree.results(), wanted, tree.planned, lambda *_: new)
    assert report({k: v for k, v in found.items() if k[1].startswith("version")}, 9) == [
        "version: 1 -> 2",
        f"    train_grpo (2): results/{COLD} and 1 more",
        "",
        "2 of 9 results are not current.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (60, 62, "60 -> 62"),
        (None, 0.5, "null -> 0.5"),
        ("a", "b", '"a" -> "b"'),
        (["x", "y"], ["y", "z"], '- "x", + "z"'),
        (list("abcdefg"), ["a"], '- "b", - "c", - "d", - 3 more'),
        (["x", "y"], ["y", "x"], "another order"),
        ("a\x1b[2J", "b", '"a\\u001b[2J" -> "b"'),
        ("0" * 64, "f" * 64, "another digest"),
    ],
)
def test_short_changes(old: Any, new: Any, shown: str) -> None:
    assert change(old, new) == shown


def test_a_long_text_shows_its_first_new_line() -> None:
    head = "You judge completions about a person.\n"
    old = head + "Say yes when in doubt. " * 3 + "\nThe end."
    new = head + "Say no when in doubt. " * 3 + "\nThe end."
    assert change(old, new) == (
        'line 2: "Say yes when in doubt. Say yes when in doubt. Say yes when… -> '
        '"Say no when in doubt. Say no when in doubt. Say no when in…'
    )


def test_blocks_that_come_or_go_are_one_field() -> None:
    old = {"a": {"b": 1, "c": 2}, "same": {"x": 1}}
    new = {"a": {"b": 1}, "same": {"x": 1}, "d": {"e": 1, "f": 2}}
    assert differences(old, new) == [("a.c", "2 -> (none)"), ("d", '(none) -> {"e": 1, "f": 2}')]


def test_a_module_and_a_pin_are_named() -> None:
    new = Specs(load_file(MICRO)).spec("split_target", target="bruce-lee")
    made = ingredients(new)
    assert "data.split" in made["modules"] and len(made["pins"]) > 5
    modules = made["modules"] | {"data.split": "0" * 64, "data.gone": "1" * 64}
    pins = ["numpy==1.0.0" if pin.startswith("numpy==") else pin for pin in made["pins"]]
    (numpy,) = [pin for pin in made["pins"] if pin.startswith("numpy==")]
    run = {"spec": {**new, "code": "old", "env": "old"}, "modules": modules, "pins": pins}
    assert spec_changes(run, new) == [
        "code: data.split, - data.gone",
        f"environment: numpy==1.0.0 -> {numpy}",
    ]
    run = {"spec": {**new, "code": "old"}}
    assert spec_changes(run, new) == ["code: a module changed (run.json does not say which)"]


def test_ingredients_are_those_of_the_digests_or_none() -> None:
    new = Specs(load_file(MICRO)).spec("split_target", target="bruce-lee")
    assert ingredients({**new, "code": "0", "env": "0"}) == {"modules": {}, "pins": []}


def test_a_key_is_named_as_in_the_configuration() -> None:
    made = load_file(MICRO)
    assert named(made, "train_grpo", "max_steps: 6 -> 8") == "grpo.max_steps: 6 -> 8"
    assert named(made, "train_grpo", "lora.rank: 4 -> 8") == "lora.rank: 4 -> 8"
    assert named(made, "train_refusal_detector", "steps: 1 -> 2") == "detector.train.steps: 1 -> 2"
    assert named(made, "audit_again", "code: x") == "code: x"


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    older = config("micro")
    older["split"]["max_rows"] = 30
    file = tmp_path / "older.yaml"
    file.write_text(yaml.safe_dump(older), encoding="utf-8")
    folder = Path("results/data/bruce-lee/split")
    spec = Specs(load_file(file)).text("split_target", target="bruce-lee")
    words = ["--config", str(MICRO), "--directory", str(tmp_path)]
    with working_in(tmp_path, monkeypatch):
        run_stage(Request(lambda: _writes, spec, {}, {"x": folder / "x"}, folder))
        assert main(["why", "split_target", *words]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "split.max_rows: 30 -> 40",
            "    split_target (1): results/data/bruce-lee/split",
            "",
            "1 of 1 results are not current.",
        ]
        assert main(["why", "train_grpo", "grpo/*/warm/*", "--all", *words]) == 0
        assert capsys.readouterr().out.splitlines()[:2] == ["not made yet", "    train_grpo (2)"]
        assert main(["why", "train_gpo", *words]) == 1
        assert "no results of rule 'train_gpo'" in capsys.readouterr().err


def _writes(job: Any) -> None:
    job.outputs["x"].write_text("x", encoding="utf-8")
