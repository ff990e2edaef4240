"""House rules for the rule files and the entry scripts."""

import ast
import re
from pathlib import Path, PurePosixPath

import pytest

from rulefiles import FILES, Rule, local_rules, rules
from support import ROOT
from unlearning_grid.spec.operations import OPERATIONAL
from unlearning_grid.spec.rules import ENGINE_STAGES, STAGES

SCRIPTS = ROOT / "workflow" / "scripts"
COLLECTING = {"all", "partial"}  # targets only: nothing runs
STANDALONE = {"convert_gguf_model"}  # run by `make rwku-cpu`, no rule needs it
VERBS = {
    "load",
    "sample",
    "write",
    "split",
    "train",
    "build",
    "generate",
    "audit",
    "evaluate",
    "render",
    "score",
    "plot",
    "weigh",
}

RULES = rules()
WORKING = [rule for name, rule in RULES.items() if name not in COLLECTING]
each_rule = pytest.mark.parametrize("rule", WORKING, ids=lambda rule: rule.name)


def manifest_folder(rule: Rule) -> PurePosixPath:
    return PurePosixPath(rule.named("output")["manifest"].strip('"')).parent


def script(rule: Rule) -> Path:
    return SCRIPTS / f"{rule.name}.py"


def test_the_reader_sees_every_rule() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert len(RULES) == len(re.findall(r"\brule \w+:", text)) >= 20


def test_the_specs_know_exactly_the_rules_that_work() -> None:
    assert set(STAGES) == {rule.name for rule in WORKING}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_has_a_docstring_of_one_sentence(rule: Rule) -> None:
    assert rule.docstring and rule.docstring.endswith("."), rule.file


@each_rule
def test_a_rule_is_called_verb_object(rule: Rule) -> None:
    assert rule.name.partition("_")[0] in VERBS and "_" in rule.name


@each_rule
def test_a_rule_has_every_directive(rule: Rule) -> None:
    needed = {"output", "log", "benchmark", "conda", "params", "script"}
    assert needed <= set(rule.directives)
    assert not {"run", "shell", "retries", "resources", "threads"} & set(rule.directives)


@each_rule
def test_params_hold_the_spec_of_this_stage_and_what_it_leaves_out(rule: Rule) -> None:
    params = rule.named("params")
    assert f'"{rule.name}"' in params.pop("spec")
    left_out = {"operations": f'stage_operations("{rule.name}")'}
    assert params == (left_out if rule.name in OPERATIONAL else {})


@each_rule
def test_manifest_and_run_come_last_and_lie_together(rule: Rule) -> None:
    names = list(rule.named("output"))
    assert names[-2:] == ["manifest", "run"]
    assert len(names) > 2, "a rule makes something"
    run = PurePosixPath(rule.named("output")["run"].strip('"'))
    assert run == manifest_folder(rule) / "run.json"


@each_rule
def test_paths_are_literal_and_below_results(rule: Rule) -> None:
    for directive in ("output", "log", "benchmark"):
        paths = rule.strings(directive)
        assert paths and all(path.startswith("results/") for path in paths), directive
        assert not re.search(r'\bf"|\bexpand\(|\+', rule.directives[directive]), directive
    assert len(rule.strings("output")) == len(rule.named("output")), "one literal path an output"


@each_rule
def test_log_and_benchmark_carry_the_rules_name_beside_the_manifest(rule: Rule) -> None:
    folder = manifest_folder(rule)
    assert rule.strings("log") == [f"{folder}/{rule.name}.log"]
    assert rule.strings("benchmark") == [f"{folder}/{rule.name}.benchmark.tsv"]


@each_rule
def test_outputs_lie_beside_the_manifest_or_carry_its_folders_name(rule: Rule) -> None:
    folder = manifest_folder(rule)
    for path in map(PurePosixPath, rule.strings("output")):
        named = path.parent == folder.parent and path.name.startswith(folder.name)
        assert path.parent == folder or named, path


@each_rule
def test_the_environment_is_the_one_in_the_spec(rule: Rule) -> None:
    env = STAGES[rule.name][1]
    conda = rule.directives["conda"]
    chosen = f"f\"../../envs/{{SPECS.environment('{rule.name}')}}.yaml\""
    assert conda == (chosen if rule.name in ENGINE_STAGES else f'"../../envs/{env}.yaml"')
    assert (ROOT / "envs" / f"{env}.yaml").is_file()


@each_rule
def test_the_entry_script_has_the_rules_name_and_ten_lines_at_most(rule: Rule) -> None:
    assert rule.directives["script"].strip(',"') == f"../scripts/{rule.name}.py"
    text = script(rule).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 10
    assert text.startswith(f'"""Entry point of rule {rule.name}.')


@each_rule
def test_a_submitted_job_keeps_its_result_for_who_waits_for_it(rule: Rule) -> None:
    """Else a job that waited for an orphan's would compute it again."""
    keeps = "keep_result=True" in script(rule).read_text(encoding="utf-8")
    assert keeps or rule.name in local_rules()


@each_rule
def test_the_entry_script_runs_code_that_the_digest_covers(rule: Rule) -> None:
    found = re.search(r'stage_main\(\s*"unlearning_grid\.([\w.]+):(\w+)"', script(rule).read_text())
    assert found, "stage_main with a literal name"
    module, function = found.groups()
    assert module in STAGES[rule.name][0]
    path = SCRIPTS / "unlearning_grid" / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_an_entry_script_belongs_to_a_rule_and_is_guarded(path: Path) -> None:
    assert path.stem in RULES or path.stem in STANDALONE
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstring, *rest = tree.body
    assert ast.get_docstring(tree) and isinstance(docstring, ast.Expr)
    for node in rest:
        guard = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        assert guard or isinstance(node, ast.Import | ast.ImportFrom), ast.unparse(node)
    assert any(isinstance(node, ast.If) for node in rest)


@pytest.mark.parametrize("path", sorted(SCRIPTS.rglob("*.py")), ids=lambda path: path.stem)
def test_no_script_reads_the_configuration_or_the_wildcards(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"snakemake\.(config|wildcards|rule)\b", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_rule_file_has_a_docstring_and_no_way_around_the_design(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    for forbidden in (r"^\s*checkpoint\b", r"^\s*run:", r"\btouch\(", r"\bancient\(", r"\bshell\("):
        text = text.replace("rows=ancient(base_rows)", "")  # the one that is meant: decision 015
        assert not re.search(forbidden, text, re.MULTILINE), forbidden


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_lambda_fits_on_a_line(rule: Rule) -> None:
    for directive, text in rule.directives.items():
        for entry in re.split(r",\n(?=\w+=)", text):
            joined = re.sub(r"\s*\n\s*", "", entry)
            assert "lambda" not in joined or len(joined) <= 92, f"{directive}: {joined}"


def test_the_snakefile_holds_version_configuration_includes_and_all_only() -> None:
    text = (ROOT / "Snakefile").read_text(encoding="utf-8")
    _, _, body = text.removeprefix('"""').partition('"""')
    before = body[: body.index("rule all:")]
    lines = [line for line in before.splitlines() if line and not line.startswith("#")]
    for line in lines:
        known = r"from snakemake\.utils|min_version\(|if not workflow\.| *configfile: |include: "
        assert re.match(known, line), line
    included = re.findall(r'include: "workflow/rules/(\w+\.smk)"', before)
    assert sorted(included) == sorted(path.name for path in FILES[1:])
    assert included[0] == "common.smk"
