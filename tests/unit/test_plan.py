"""`ops plan`: what a run would do and cost, against values reckoned by hand."""

import csv
import time
from math import ceil
from pathlib import Path

import pytest
import yaml

from results_tree import working_in
from spent_results import AUDIT, PAPER, R0, R2, asking, kill, make, set_seconds, small_grid, write
from support import ROOT
from unlearning_grid.config import Config, load, load_file, load_yaml
from unlearning_grid.errors import UserError
from unlearning_grid.ops.__main__ import main
from unlearning_grid.ops.estimates import Assumptions, Estimate
from unlearning_grid.ops.judge_requests import ESTIMATES, Asking, read_estimates
from unlearning_grid.ops.plan import group
from unlearning_grid.ops.standing import results_of, survey
from unlearning_grid.spec.stages import Specs

WARMUP = {"size": "7b", "target": "bruce-lee", "seed": "1234"}
CELL = {"size": "7b", "target": "bruce-lee", "init": "cold", "seed": "1234"}
HELDOUT = {"policy": "base/7b", "target": "bruce-lee"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory, one GPU of a Slurm job."""
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with working_in(tmp_path, monkeypatch):
        yield


@pytest.fixture(scope="module")
def specs() -> Specs:
    return Specs(load_file(PAPER))


@pytest.fixture
def small(tmp_path) -> Path:
    """A grid of one target and two sizes."""
    return small_grid(tmp_path / "small.yaml")


def row(text: str, *start: str) -> list[str]:
    """Fields of the one line that begins with these words."""
    found = [line.split() for line in text.splitlines() if line.split()[: len(start)] == [*start]]
    assert len(found) == 1, (start, text)
    return found[0][len(start) :]


def test_requests_of_the_papers_jobs(specs):
    """300 rows are split 60 held out, 203 GRPO, 24 warm-up, 13 monitor (facts of the study)."""
    asking = Asking(specs.config)
    cases = {
        # 75 rollouts (150 steps, 2 on each) of 64 completions
        ("train_grpo", "r2-rubric"): ("reward", 4800),
        # 10 epochs of 2 batches of 16 (24 rows) are 20 steps; judged after 5 to 20: 16 times,
        # 13 prompts, 8 samples each
        ("train_warmup", ""): ("reward", 1664),
        ("audit_completions", ""): ("audit", 60),
        # 32 samples and a greedy completion of each of 60 prompts, where a judge is paid for them
        ("audit_samples", ""): ("audit", 1980),
        # 5 rollouts of 64 completions
        ("audit_rollouts", ""): ("audit", 320),
        # 24 + 13 questions, 4 draws each at most
        ("write_broad_answers", ""): ("teacher", 148),
    }
    for (rule, reward), expected in cases.items():
        found = asking.of(rule, {**CELL, **HELDOUT, "reward": reward, "judge": "audit"})
        assert found is not None and (found.judge, found.number) == expected, rule
    for rule in ("evaluate_rwku", "generate_completions"):
        assert asking.of(rule, HELDOUT) is None
    for reward in ("r0-lex", "r1-antirefusal", "r4-refusal"):
        assert asking.of("train_grpo", {**CELL, "reward": reward}) is None


def test_requests_follow_the_configuration(specs):
    raw = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    raw["judges"]["second"] = {**raw["judges"]["audit"], "max_output_tokens": 50}
    raw["agreement"] = {"judges": ["second"], "replicates": 1, "max_prompts": 40}
    raw["generate"]["sets"]["heldout"] = {"max_new_tokens": 100, "max_prompts": 50}
    raw["terminal_audit"] = {"rollouts": 90, "judge": "second"}
    raw["grpo"] |= {"max_steps": 12, "num_iterations": 4, "save_steps": 4}  # 3 rollouts
    raw["grpo"]["no_learning"]["enabled"] = False
    raw["warmup"]["monitor"] |= {"max_prompts": 7, "first_step": 20}
    raw["broad_answers"] |= {"max_draws": 1}
    asking = Asking(load(raw))

    def number(rule, **cell):
        found = asking.of(rule, {**CELL, **HELDOUT, **cell})
        return found and found.number

    assert number("audit_completions") == 50
    assert number("audit_again", judge="second", replicate="0") == 40
    assert number("audit_rollouts") == 3 * 64
    assert number("train_grpo", reward="r2-rubric") == 3 * 64
    assert number("train_warmup") == 7 * 8
    assert number("write_broad_answers") == 37
    opinion = asking.of("audit_again", {**HELDOUT, "judge": "second", "replicate": "0"})
    assert opinion is not None and opinion.tokens_out == 50
    raw["warmup"]["monitor"]["enabled"] = False
    assert Asking(load(raw)).of("train_warmup", WARMUP) is None


def test_judges_by_rules_and_a_teacher_that_is_no_api_ask_nobody():
    asking = Asking(load_file(ROOT / "config" / "demo.yaml"))
    cell = {"size": "tiny", "target": "bruce-lee", "policy": "base/tiny", "reward": "r2-rubric"}
    for rule in ("train_grpo", "train_warmup", "audit_completions", "write_broad_answers"):
        assert asking.of(rule, cell) is None


def test_rows_of_a_split_that_is_there_count(specs):
    rows = {"heldout": 31, "grpo_train": 9, "sft_train": 17, "sft_test": 3}
    asking = Asking(specs.config, {"bruce-lee": rows})
    found = asking.of("audit_completions", HELDOUT)
    assert found is not None and found.number == 31
    # 10 epochs of 2 batches (17 rows of 16): 20 steps, 16 of them judged, 3 prompts, 8 samples
    monitor = asking.of("train_warmup", WARMUP)
    assert monitor is not None and monitor.number == 16 * 3 * 8
    other = asking.of("audit_completions", {**HELDOUT, "target": "karl-marx"})
    assert other is not None and other.number == 60


def test_tokens_of_a_request_are_its_parts(specs):
    """Prompt and schema, 4 characters a token; 30 around the data; question and completion."""
    found = Asking(specs.config).of("audit_completions", HELDOUT)
    assert found is not None
    prompt = (ROOT / "config/prompts/reworded-v1/audit-six.txt").read_text(encoding="utf-8")
    names = ("lexical_leakage", "semantic_leakage", "prompt_helpfulness", "broad_topic_helpfulness")
    form = found.tokens_in - ceil(len(prompt) / 4) - 30 - 25 - 256
    assert sum(2 * len(name) for name in names) / 4 < form < 200
    # six names with "false" are 160 characters or so: 40 tokens; 150 more by effort low
    assert 180 <= found.tokens_out <= 200


def test_assumed_times_by_hand(specs):
    assumptions = Assumptions(Asking(specs.config))
    grpo = assumptions.of("train_grpo", "7b", {**CELL, "reward": "r0-lex"})
    assert grpo == Estimate(60 + 75 * 27, 60 + 75 * 27, "assumed")
    assert assumptions.of("train_warmup", "0.5b", WARMUP) == Estimate(360, 360, "assumed")
    audit = assumptions.of("audit_completions", "7b", HELDOUT)
    assert audit == Estimate(15 + 60 * 0.125, 0, "assumed")
    assert assumptions.of("build_cells_table", "", {}) == Estimate(4, 0, "assumed")
    assert assumptions.of("train_grpo", "14b", {**CELL, "reward": "r0-lex"}) is None
    demo = Assumptions(Asking(load_file(ROOT / "config" / "demo.yaml")))
    # 60 steps, 2 on each rollout
    assert demo.of("train_grpo", "tiny", {}) == Estimate(10 + 30 * 1.6, 0, "assumed")


def test_the_papers_plan(tmp_path, capsys):
    assert main(["plan", "--config", str(PAPER), "--csv", str(tmp_path / "plan.csv")]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "Snakemake counts 3199 jobs: these and `all`." in text
    # (60 + 75 x 27) s x 80 cells = 46.3 h
    assert row(text, "train_grpo", "7b") == ["80", "80", "80", "-", "-", "-", "34.8", "46.3", "a"]
    assert row(text, "audit", "audit_completions")[:2] == ["400", "24000"]
    assert row(text, "audit", "audit_rollouts")[:2] == ["320", "102400"]
    assert row(text, "reward", "train_grpo")[:2] == ["80", "384000"]
    assert row(text, "reward", "train_warmup")[:2] == ["40", "66560"]
    assert row(text, "teacher", "write_broad_answers")[:2] == ["10", "1480"]
    # 24,000 + 102,400 + 384,000 + 66,560 + 1,480
    lines = [line.split() for line in text.splitlines() if line.startswith("in all")]
    assert [line[2] for line in lines] == ["3198", "578440"]
    with open(tmp_path / "plan.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert sum(int(r["jobs"]) for r in rows) == 3198
    assert {r["source"] for r in rows} == {"assumed"}


# GPU hours assumed for the paper's grid, in seconds: GRPO 80 x (960 + 1185 + 1635 + 2085), warm-up
# 10 x (360 + 400 + 460 + 420), likelihoods 100 x (70 + 75 + 85 + 110); completions of warm-ups and
# cells 90 x (75 + 77 + 82 + 80), samples 90 x (101 + 105 + 113 + 107), 20 for both of each of 40
# base evaluations, whose rows take 4 x 60 + 10 x (56 + 62 + 75 + 67) together:
# 469,200 + 16,400 + 34,000 + 28,260 + 38,340 + 1,600 + 2,840 = 590,640 s = 164.1 h.
@pytest.mark.parametrize(
    "words, status, line",
    [
        (["--gpu-hours", "165"], 0, "within the budget: 164.1 GPU hours, 165 allowed"),
        (["--gpu-hours", "164"], 1, "above the budget: 164.1 GPU hours, 164 allowed"),
        (["--judge-usd", "5"], 1, "not known to be within the budget: 0.0 US dollars"),
    ],
)
def test_a_budget_that_does_not_hold_is_an_exit_status(capsys, words, status, line):
    assert main(["plan", "--config", str(PAPER), *words]) == status
    assert line in capsys.readouterr().out


def test_dollars_by_the_configured_prices(tmp_path, capsys):
    config = small_grid(tmp_path / "priced.yaml", judges={"audit": {"provider": "rules"}})
    raw = yaml.safe_load(config.read_text())
    raw["judges"]["reward"]["price"] = {"input": 0.2, "output": 1.25}
    raw["judges"]["teacher"]["price"] = {"input": 1, "output": 0}
    config.write_text(yaml.safe_dump(raw))
    assert main(["plan", "--config", str(config), "--judge-usd", "3"]) == 1
    text = capsys.readouterr().out
    *_, sent, written, _, _, usd, _ = row(text, "reward", "train_grpo")
    reckoned = 4 * 4800 * (int(sent) * 0.2 + int(written) * 1.25) / 1e6
    assert float(usd) == pytest.approx(reckoned, abs=0.01) and "above the budget" in text
    assert "audit_completions" not in text.partition("judge ")[2]


def test_an_unlisted_size_has_no_estimate_and_the_budget_is_not_known_to_hold(tmp_path, capsys):
    raw = yaml.safe_load(PAPER.read_text())
    raw["models"]["14b"] = {"repo": "Qwen/Qwen2.5-14B-Instruct", "revision": "a" * 40}
    raw["grid"] |= {"sizes": ["14b"], "targets": ["bruce-lee"], "inits": ["cold"]}
    config = tmp_path / "14b.yaml"
    config.write_text(yaml.safe_dump(raw))
    assert main(["plan", "--config", str(config), "--gpu-hours", "1000"]) == 1
    text = capsys.readouterr().out
    assert row(text, "train_grpo", "14b") == ["4", "4", "4", "-", "-", "-", "?", "?", "?"]
    # 4 cells with completions and samples; likelihoods of these and the base model, and its rows
    assert "+ and 18 jobs without an estimate" in text
    assert "not known to be within the budget: 0.0 GPU hours or more, 1000 allowed; 18 jobs" in text


def test_what_was_measured_here_comes_first(server, small, capsys):
    """Two finished runs of 0.5b: one took 1,800 s after a failed attempt of 600, one 4,800 s."""
    specs = Specs(load_file(small))
    with pytest.raises(ValueError):
        make(specs, R2, asking("reward", 1, 2, fails=True))
    make(specs, R2, asking("reward", 1, 2, 3))
    set_seconds(R2, 600, 1800)
    make(specs, R0, write)
    set_seconds(R0, 4800)
    make(specs, AUDIT, write, R0)
    assert main(["plan", "--config", str(small)]) == 0
    text = capsys.readouterr().out
    # median of 2,400 and 4,800 s: 60 min; 6 of 8 cells left
    assert row(text, "train_grpo", "0.5b") == ["6", "8", "6", "-", "-", "-", "60.0", "6.0", "m"]
    assert row(text, "train_grpo", "1.5b")[-1] == "a"
    assert row(text, "audit_completions", "0.5b")[:2] == ["9", "10"]
    # the server names 100 tokens in and 20 out for each request; 3 R2 cells are left
    asked = row(text, "reward", "train_grpo")
    assert asked == ["3", "14400", "100", "20", "1.44M", "288.0k", "?", "m"]
    assert row(text, "reward", "train_warmup")[-1] == "a"


def test_states_and_reasons(small, tmp_path, capsys):
    """Stale, failed and killed results are told apart, with the field that changed."""
    specs = Specs(load_file(small))
    make(specs, R0, write)
    make(specs, AUDIT, write, R0)
    with pytest.raises(ValueError):
        make(specs, R2, lambda job: _fail())
    kill(specs, "results/warmup/0.5b/bruce-lee/s1234")
    assert main(["plan", "--config", str(small)]) == 0
    text = capsys.readouterr().out
    assert row(text, "train_grpo", "0.5b")[:6] == ["7", "8", "6", "-", "1", "-"]
    assert row(text, "train_warmup", "0.5b")[:6] == ["1", "1", "-", "-", "1", "-"]
    assert row(text, "audit_completions", "0.5b")[:6] == ["9", "10", "9", "-", "-", "-"]
    assert "    1  failed: ValueError: no such thing" in text and " 1  failed: killed: " in text

    config = small_grid(tmp_path / "edited.yaml", grpo={"beta": 0.05})
    assert main(["plan", "--config", str(config)]) == 0
    text = capsys.readouterr().out
    assert row(text, "train_grpo", "0.5b")[:6] == ["8", "8", "7", "1", "-", "-"]
    assert row(text, "audit_completions", "0.5b")[:6] == ["10", "10", "9", "1", "-", "-"]
    assert "    1  grpo.beta: 0.04 -> 0.05" in text
    assert main(["plan", "--config", str(config), "--reasons"]) == 0
    text = capsys.readouterr().out
    place = text.index("grpo.beta: 0.04 -> 0.05")
    assert f"    train_grpo (1)\n        {R0}\n" in text[place:]


def _fail():
    raise ValueError("no such thing")


def test_a_split_that_is_there_says_how_many_rows_are_judged(small, capsys):
    """2 rows held out: 2 sizes, 8 cells, a warm-up and a base model each, 2 requests each."""
    folder = "results/data/bruce-lee/split"
    make(Specs(load_file(small)), folder, write)
    for part, rows in {"heldout": 2, "grpo_train": 5, "sft_train": 3, "sft_test": 1}.items():
        (Path(folder) / f"{part}.jsonl").write_text("{}\n" * rows)
    assert main(["plan", "--config", str(small)]) == 0
    text = capsys.readouterr().out
    assert row(text, "audit", "audit_completions")[:2] == ["20", "40"]
    assert row(text, "teacher", "write_broad_answers")[:2] == ["1", str((3 + 1) * 4)]
    (Path(folder) / "heldout.jsonl").unlink()  # then what max_rows allows counts
    assert main(["plan", "--config", str(small)]) == 0
    assert row(capsys.readouterr().out, "audit", "audit_completions")[:2] == ["20", "1200"]


def grid_of(targets: int, folder: Path) -> Config:
    """The paper's grid with so many targets, which exist in these tests only."""
    raw = yaml.safe_load(PAPER.read_text())
    terms = load_yaml(ROOT / "resources" / "forbidden_terms.yaml")["bruce-lee"]
    names = {f"person-{n}": f"Person {n}" for n in range(targets)}
    people = {slug: {"subject": name, "aliases": [name]} for slug, name in names.items()}
    (folder / "targets.yaml").write_text(yaml.safe_dump(people))
    (folder / "terms.yaml").write_text(yaml.safe_dump(dict.fromkeys(names, terms)))
    raw["resources"] = {name: str(folder / f"{name}.yaml") for name in ("targets", "terms")}
    raw["grid"]["targets"] = list(names)
    return load(raw)


def test_planning_takes_time_in_proportion(tmp_path):
    """Eight times the targets: eight times the jobs, and no more than twice that in time."""

    def planned(targets: int) -> tuple[int, float]:
        config = grid_of(targets, tmp_path)
        began = time.process_time()
        specs = Specs(config)
        results, above, built = results_of(specs)
        groups = group(survey(results, above + built), {}, Assumptions(Asking(config)))
        return sum(g.jobs for g in groups), time.process_time() - began

    planned(1)  # reads the code once
    (few, short), (many, long) = planned(4), planned(32)
    # 318 jobs a target, the check of the detectors, 13 tables and the base rows of 4 sizes
    assert (few, many) == (4 * 318 + 18, 32 * 318 + 18)
    assert long < 16 * short


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "many"])
def test_a_budget_is_a_finite_number(text: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--config", str(PAPER), f"--gpu-hours={text}"])
    assert f"'{text}' is no finite number from 0 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("rules: {}\ndemos: {}\ntokens: {}\n", "needs the blocks rules, demo, tokens"),
        ("rules: {train_grpo: {second: 1, per: job}}\ndemo: {}\ntokens: {}\n", "lacks seconds"),
    ],
)
def test_a_typo_in_the_estimates_is_named(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "resources").mkdir()
    (tmp_path / ESTIMATES).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=f"{ESTIMATES}: .*{problem}"):
        read_estimates(tmp_path)
