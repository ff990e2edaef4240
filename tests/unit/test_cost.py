"""`ops cost`: every attempt counts, by real stages, a real kill and a judge over real HTTP."""

import csv
import json
from pathlib import Path

import pytest
import yaml

from results_tree import working_in
from spent_results import AUDIT, R0, R2, asking, kill, make, set_seconds, small_grid, write
from unlearning_grid.config import load, load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.__main__ import main
from unlearning_grid.ops.columns import short
from unlearning_grid.ops.spending import dollars, policy_in, size_of
from unlearning_grid.runtime.attempts import attempts_of
from unlearning_grid.spec.stages import Specs

WARMUP = "results/warmup/0.5b/bruce-lee/s1234"
KNOWLEDGE = "results/data/bruce-lee/knowledge"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory, one GPU of a Slurm job."""
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with working_in(tmp_path, monkeypatch):
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A grid of one target and two sizes."""
    return small_grid(tmp_path_factory.mktemp("config") / "small.yaml")


@pytest.fixture(scope="module")
def specs(small) -> Specs:
    return Specs(load_file(small))


@pytest.fixture
def priced(small, tmp_path) -> Path:
    """The same with a price for the judge of R2."""
    raw = yaml.safe_load(small.read_text(encoding="utf-8"))
    raw["judges"]["reward"]["price"] = {"input": 2000, "output": 10000}
    path = tmp_path / "priced.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return path


def cost(capsys, config: Path, *words: str) -> str:
    assert main(["cost", "--config", str(config), *words]) == 0
    return capsys.readouterr().out


def words(text: str) -> list[str]:
    return text.split()


def row(text: str, *start: str) -> list[str]:
    """Fields of the one line that begins with these words."""
    found = [line.split() for line in text.splitlines() if line.split()[: len(start)] == [*start]]
    assert len(found) == 1, (start, text)
    return found[0][len(start) :]


def test_gpu_hours_and_tokens_of_failed_killed_and_finished_attempts(
    server, specs, priced, capsys, monkeypatch, tmp_path
):
    # R2: an hour that failed after 2 requests, two hours that finished with 1 more.
    with pytest.raises(ValueError):
        make(specs, R2, asking("reward", 1, 2, fails=True))
    make(specs, R2, asking("reward", 1, 2, 3))
    set_seconds(R2, 3600, 7200)
    # R0: killed after 1,800 s, then finished in 900 s.
    kill(specs, R0)
    make(specs, R0, write)
    set_seconds(R0, 1800, 900)
    # Its audit has no GPU and takes 72 s; the warm-up's attempt with two GPUs fails after 36 s.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    make(specs, AUDIT, asking("audit", 7), R0)
    set_seconds(AUDIT, 72)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ValueError):
        make(specs, WARMUP, asking("reward", fails=True))
    set_seconds(WARMUP, 36)

    text = cost(capsys, priced)
    assert max(map(len, text.splitlines())) <= 100
    # results, attempts, unfinished, hours, GPU hours, lost GPU hours
    assert row(text, "train_grpo", "0.5b") == ["2", "4", "2", "3.75", "3.75", "1.50"]
    assert row(text, "train_warmup", "0.5b") == ["1", "1", "1", "0.01", "0.02", "0.02"]
    assert row(text, "audit_completions", "0.5b") == ["1", "1", "0", "0.02", "0.00", "0.00"]
    # sent, cached, failed, in, out, reasoning; 100, 20 and 5 tokens a request
    # 3 requests cost 300 x 2,000 / 1e6 + 60 x 10,000 / 1e6 dollars
    assert row(text, "reward", "train_grpo", "0.5b") == words("3 2 0 300 60 15 1.20")
    assert row(text, "audit", "audit_completions", "0.5b") == words("1 0 0 100 20 5 ?")
    sums = [line.split()[2:] for line in text.splitlines() if line.startswith("in all")]
    assert sums == [["4", "6", "3", "3.78", "3.77", "1.52"], words("4 2 0 400 80 20 1.20+")]
    assert "killed: 1 attempts, counted up to their last sign of life" in text
    assert "missing: dollars of judge audit; set judges.audit.price" in text

    cells = cost(capsys, priced, "--cells")
    policy = R0.removeprefix("results/")
    assert row(cells, policy) == words("3 1 0.77 0.75 0.50 1 120 ?")
    assert row(cells, R2.removeprefix("results/")) == words("2 1 3.00 3.00 1.00 3 360 1.20")
    assert row(cells, WARMUP.removeprefix("results/")) == words("1 1 0.01 0.02 0.02 - - -")
    only = cost(capsys, priced, "grpo/*/r2-*")
    assert row(only, "train_grpo", "0.5b")[:2] == ["1", "2"] and "train_warmup" not in only

    path = tmp_path / "cost.csv"
    cost(capsys, priced, "--csv", str(path))
    with open(path, newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 6
    assert [r["outcome"] for r in rows if r["folder"] == R0] == ["killed", "finished"]
    (audit,) = (r for r in rows if r["rule"] == "audit_completions")
    assert (audit["policy"], audit["size"], audit["usd"]) == (policy, "0.5b", "")
    failed = next(r for r in rows if r["folder"] == R2 and r["outcome"] == "failed")
    wanted = ("gpus", "gpu_hours", "judges", "sent", "input_tokens", "usd")
    assert [failed[n] for n in wanted] == ["1.0", "1.0", "reward", "2", "200", "0.8"]


def test_an_edit_a_retry_and_an_acceptance_lose_nothing(specs, small, capsys):
    """Attempts of every spec count, also after results were opened again or accepted."""
    make(specs, R0, write, version=1)
    make(specs, R0, write, version=2)
    words = ["train_grpo", R0.removeprefix("results/"), "--reason", "a test"]
    assert main(["accept", *words, "--config", str(small)]) == 0
    main(["retry", "--config", str(small)])
    assert [a.outcome for a in attempts_of(Path(R0))] == ["finished", "finished"]
    (Path(R0) / "manifest.json").unlink()
    make(specs, R0, write)
    set_seconds(R0, 3600, 3600, 3600)
    capsys.readouterr()
    assert row(cost(capsys, small), "train_grpo", "0.5b") == ["1", "3", "0", "3.00", "3.00", "0.00"]


def test_results_that_left_the_grid_stay_in_the_sum(specs, small, capsys, tmp_path):
    make(specs, R0, write)
    make(specs, KNOWLEDGE, write)
    set_seconds(R0, 3600)
    raw = yaml.safe_load(small.read_text())
    raw["grid"] |= {"targets": ["karl-marx"], "sizes": ["7b"]}
    config = tmp_path / "smaller.yaml"
    config.write_text(yaml.safe_dump(raw))
    text = cost(capsys, config)
    assert row(text, "train_grpo", "0.5b") == ["1", "1", "0", "1.00", "1.00", "0.00"]
    assert row(text, "write_knowledge")[:2] == ["1", "1"]


def test_what_nothing_tells_is_said_and_not_put_at_zero(specs, small, capsys):
    """Ledgers of older versions name neither rule nor GPUs, and a kill left no end."""
    make(specs, R0, write)
    path = Path(R0) / "work/attempts.jsonl"
    start, end = (json.loads(line) for line in path.read_text().splitlines())
    for name in ("stage", "gpus", "since"):
        del start[name]
    killed = start | {"nonce": "other"}
    path.write_text("".join(json.dumps(line) + "\n" for line in (killed, start, end)))
    text = cost(capsys, small)
    assert row(text, "train_grpo", "0.5b") == ["1", "2", "1", "0.00+", "0.00+", "0.00+"]
    assert "missing: 1 attempts left no end and no sign of life, their time" in text
    assert "missing: the GPUs of 1 attempts, which nothing names" in text
    assert "No judge was asked over a network." in text


def test_without_attempts_there_is_nothing_to_count(small, capsys):
    assert main(["cost", "--config", str(small)]) == 1
    assert "no attempt is recorded here" in capsys.readouterr().err


def test_a_price_changes_no_spec_and_is_checked(specs, small):
    raw = yaml.safe_load(small.read_text())
    raw["judges"]["audit"]["price"] = {"input": 0.25, "output": 2}
    assert Specs(load(raw)).plan() == specs.plan()
    for wrong in ({"input": 1}, {"input": -1, "output": 1}, 3):
        raw["judges"]["audit"]["price"] = wrong
        with pytest.raises(UserError, match=r"judges\.audit\.price"):
            load(raw)


@pytest.mark.parametrize(
    "folder, policy, size",
    [
        ("results/grpo/7b/confucius/warm/r0-lex/s3", "grpo/7b/confucius/warm/r0-lex/s3", "7b"),
        ("results/audit/base/1.5b/on/confucius", "base/1.5b", "1.5b"),
        ("results/opinions/second/r0/warmup/3b/x/s1/on/x", "warmup/3b/x/s1", "3b"),
        ("results/prompts/3b/on/confucius", None, "3b"),
        ("results/data/base/questions", None, ""),
        ("results/tables/cells", None, ""),
    ],
)
def test_whose_a_folder_is(folder, policy, size):
    assert policy_in(Path(folder)) == policy
    assert size_of(Path(folder), policy) == size


def test_dollars_and_short_numbers():
    counts = {"input_tokens": 3_000_000, "output_tokens": 500_000, "reasoning_tokens": 400_000}
    assert dollars("j", counts, {"j": {"input": 0.2, "output": 1.6}}) == pytest.approx(1.4)
    assert dollars("k", counts, {"j": {"input": 0.2, "output": 1.6}}) is None
    assert [short(n) for n in (0, 812, 9999, 38_420, 4_203_000)] == [
        "0", "812", "9999", "38.4k", "4.20M",
    ]  # fmt: skip
