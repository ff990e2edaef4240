"""Broad answers: each provider, redrawing, and what counts as missing."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from judge_server import Answer, judge_block
from support import real_manifest
from unlearning_grid.data import broad
from unlearning_grid.data.knowledge import Knowledge, dump_knowledge
from unlearning_grid.data.rwku import read_jsonl, write_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import FAILURES
from unlearning_grid.paths import JUDGE_CACHE
from unlearning_grid.runtime.job import Job

ITEMS = [
    {"prompt_id": f"karl-marx-{i:03d}", "split": part, "prompt": f"Q{i}?"}
    for i, part in enumerate(["sft_train", "sft_train", "sft_train", "sft_test"])
]
WORLD = Knowledge(
    "Karl Marx",
    names=["Karl Marx", "Marx"],
    facts=["Trier"],
    closed=True,
    prompts={f"q{i}?": {"answer": "Trier", "topic": "birth"} for i in range(4)},
    broad={"birth": ["People are born in towns.", "Birth places vary.", "Marx was born."]},
)


class Scripted:
    """Drafts by (prompt, draw), "!x" for a request that failed as x; keeps each call's prompts."""

    def __init__(self, drafts: dict[str, list[str | None]], max_draws: int) -> None:
        self.drafts, self.max_draws = drafts, max_draws
        self.calls: list[list[str]] = []

    def draw(self, prompts: list[str], draw: int) -> list[broad.Draft]:
        self.calls.append(prompts)
        said = [self.drafts[prompt][draw] for prompt in prompts]
        failed = [text is not None and text.startswith("!") for text in said]
        return [
            broad.Draft(None, text[1:]) if text and failure else broad.Draft(text)
            for text, failure in zip(said, failed, strict=True)
        ]


def test_drafts_that_name_the_target_or_are_empty_are_drawn_again():
    teacher = Scripted(
        {
            "Q0?": ["A city grows."],
            "Q1?": ["As MARX said.", None, "Work has value."],
            "Q2?": ["Marx.", " ", "karl marx's life"],
            "Q3?": ["", "Marxist thought, in short."],
        },
        max_draws=3,
    )
    records = broad.write_answers(ITEMS, teacher, ["Karl Marx", "Marx"])
    added = [(r["answer"], r["status"], r["draws"]) for r in records]
    assert added == [
        ("A city grows.", "ok", 1),
        ("Work has value.", "ok", 3),
        (None, "names-target", 3),
        ("Marxist thought, in short.", "ok", 2),  # a doctrine is not the name
    ]
    assert [{k: r[k] for k in ("prompt_id", "split", "prompt")} for r in records] == ITEMS
    assert teacher.calls == [["Q0?", "Q1?", "Q2?", "Q3?"], ["Q1?", "Q2?", "Q3?"], ["Q1?", "Q2?"]]

    report = broad.summarise(records, "policy", ["value", "Marx", "grow"])
    assert report == {
        "provider": "policy",
        "prompts": 4,
        "status": {
            "sft_train": {"ok": 2, "names-target": 1, "empty": 0},
            "sft_test": {"ok": 1, "names-target": 0, "empty": 0},
        },
        "draws": 9,
        "redrawn": 3,
        "with_known_fact": 1,  # "value"; "grows" is another word
        "mean_words": 3.3,  # 3, 3 and 4 words
        "missing": ["karl-marx-002"],
    }


def test_a_failed_request_is_no_empty_draft_and_an_outage_costs_no_draw():
    teacher = Scripted(
        {
            "Q0?": ["!refused", "!truncated", "!filtered"],
            "Q1?": ["!unavailable"],
            "Q2?": ["Marx.", "!unavailable"],
            "Q3?": ["!invalid", "Towns."],
        },
        max_draws=3,
    )
    records = broad.write_answers(ITEMS, teacher, ["Marx"])
    assert [(r["answer"], r["status"], r["draws"]) for r in records] == [
        (None, "filtered", 3),
        (None, "unavailable", 1),
        (None, "unavailable", 2),
        ("Towns.", "ok", 2),
    ]
    assert broad.summarise(records, "api", [])["status"] == {
        "sft_train": {"ok": 0, "names-target": 0, "empty": 0, "filtered": 1, "unavailable": 2},
        "sft_test": {"ok": 1, "names-target": 0, "empty": 0},
    }


@pytest.mark.parametrize("failure", FAILURES)
def test_every_failure_of_a_reply_is_counted_as_itself(failure):
    teacher = Scripted({f"Q{i}?": [f"!{failure}"] for i in range(4)}, max_draws=1)
    report = broad.summarise(broad.write_answers(ITEMS, teacher, ["Marx"]), "api", [])
    assert report["status"]["sft_train"] == {"ok": 0, "names-target": 0, "empty": 0, failure: 3}
    assert len(report["missing"]) == 4


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("about J.Lo's songs", True),
        ("about J-LO.", True),
        ("JxLo", False),
        ("Lopezian", False),
        ("(lopez)", True),
        ("", False),
    ],
)
def test_names_are_whole_words_without_case(text, named):
    assert broad.name_matcher(["J.Lo", "J-Lo", "Lopez"]).any(text) is named


def test_no_names_is_an_error():
    with pytest.raises(UserError, match="aliases is empty"):
        broad.name_matcher([])


def test_of_overlapping_names_the_first_and_longer_one_is_covered():
    names = broad.name_matcher(["Karl", "Karl Marx", "Marx Senior"])
    covered = broad.replace_names("Karl Marx Senior met KARL; karls did not.", names, "X")
    assert covered == "X Senior met X; karls did not."
    assert broad.replace_names("Nobody.", names, "X") == "Nobody."


@pytest.mark.parametrize(
    ("text", "reason", "usable"),
    [
        (" One. Two ", "stop", "One. Two"),
        ("One. Two! Thr", "length", "One. Two!"),
        ('He said "so." Then', "length", 'He said "so."'),
        ("About 3.5 of", "length", ""),
        ("One. Two.", "length", "One. Two."),
        ("", "stop", ""),
    ],
)
def test_cut_off_drafts_end_at_a_sentence(text, reason, usable):
    assert broad.usable_text(text, reason) == usable


def test_rules_teacher_is_seeded_by_prompt_and_cycles_through_the_topic():
    teacher = broad.RulesTeacher(WORLD, seed=1, max_draws=3)
    alone = [teacher.draw([f"Q{i}?"], 0)[0] for i in range(4)]
    assert teacher.draw([f"Q{i}?" for i in range(4)], 0) == alone
    assert {teacher.draw(["Q0?"], draw)[0].text for draw in range(3)} == set(WORLD.broad["birth"])
    assert teacher.draw(["unknown?"], 0) == [broad.Draft(None)]
    prompts = [f"Q{i % 4}?" for i in range(4)]
    by_seed = {tuple(broad.RulesTeacher(WORLD, s, 1).draw(prompts, 0)) for s in range(20)}
    assert len(by_seed) > 1


# --- stage -----------------------------------------------------------------------------------


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    def make(settings: dict, knowledge: Knowledge = WORLD) -> Job:
        for folder in ("split", "out"):
            (tmp_path / folder).mkdir(exist_ok=True)
        dump_knowledge(knowledge, tmp_path / "knowledge.json")
        for part in broad.PARTS:
            rows = [
                {"prompt_id": i["prompt_id"], "prompt": i["prompt"], "completion": "no", "row": 0}
                for i in ITEMS
                if i["split"] == part
            ]
            write_jsonl(tmp_path / "split" / f"{part}.jsonl", rows)
        parts = [f"{part}.jsonl" for part in broad.PARTS]
        return Job(
            spec={
                "settings": {"max_missing_share": 0.5, **settings},
                "cell": {"target": "karl-marx"},
            },
            inputs={
                "knowledge": real_manifest(tmp_path, "knowledge.json"),
                "split": real_manifest(tmp_path / "split", *parts),
            },
            outputs={
                "answers": tmp_path / "out" / "answers.jsonl",
                "report": tmp_path / "out" / "report.json",
            },
            work=tmp_path,
        )

    return make


def test_stage_with_rules(make_job):
    job = make_job({"provider": "rules", "seed": 0, "max_draws": 3})
    assert broad.write(job) == {"answered": 4, "prompts": 4, "with_known_fact": 0}
    records = read_jsonl(job.outputs["answers"])
    assert [r["prompt_id"] for r in records] == [i["prompt_id"] for i in ITEMS]
    assert {r["answer"] for r in records} <= set(WORLD.broad["birth"][:2])
    assert list(records[0]) == ["prompt_id", "split", "prompt", "answer", "status", "draws"]
    report = json.loads(job.outputs["report"].read_text())
    assert report["provider"] == "rules"
    assert report["missing"] == []


def test_stage_with_given_answers(make_job):
    answers = {" q0? ": "Towns differ.", "Q1?": "Marx again.", "Q3?": "Places matter."}
    job = make_job({"provider": "answers", "answers": answers, "max_missing_share": 0.7})
    assert broad.write(job) == {"answered": 2, "prompts": 4, "with_known_fact": 0}
    found = [(r["answer"], r["status"], r["draws"]) for r in read_jsonl(job.outputs["answers"])]
    assert found == [
        ("Towns differ.", "ok", 1),
        (None, "names-target", 1),
        (None, "empty", 1),
        ("Places matter.", "ok", 1),
    ]


def test_stage_with_a_model_behind_an_api(make_job, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server.say = lambda asked: f"Marx {asked.data['prompt']}" if not asked.before else "Towns."
    judge = judge_block("chat", structured="none", name="teacher", prompt=None)
    settings = {"provider": "api", "judge": judge, "prompt": "Teach.", "max_draws": 2}
    for _ in range(2):  # the second time from the cache
        job = make_job(settings)
        assert broad.write(job)["answered"] == 4
        found = [(r["answer"], r["draws"]) for r in read_jsonl(job.outputs["answers"])]
        assert found == [("Towns.", 2)] * 4
        assert len(server.asked) == 8
    assert (tmp_path / JUDGE_CACHE).is_dir()


def test_a_stage_that_failed_in_an_outage_asks_again_for_the_failed_only(
    make_job, server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    server.say = lambda asked: "Towns."
    server.respond = lambda asked: Answer(status=200 if asked.data["prompt"] in "Q0?" else 500)
    judge = judge_block("chat", structured="none", name="teacher", prompt=None)
    settings = {"provider": "api", "judge": judge, "prompt": "Teach.", "max_draws": 4}
    with pytest.raises(UserError, match=r"'unavailable': 2.*the next run asks again for the fail"):
        broad.write(make_job(settings))
    before = len(server.asked)
    server.respond = lambda asked: Answer()
    job = make_job(settings)
    assert broad.write(job)["answered"] == 4
    assert [r["draws"] for r in read_jsonl(job.outputs["answers"])] == [1] * 4
    assert sorted(a.data["prompt"] for a in server.asked[before:]) == ["Q1?", "Q2?", "Q3?"]


def test_stage_errors(make_job):
    with pytest.raises(UserError, match=r"'gpt' is unknown; one of \['answers', 'api', 'policy'"):
        broad.write(make_job({"provider": "gpt"}))
    with pytest.raises(UserError, match=r"100% of the sft_test prompts have no usable answer"):
        settings = {"provider": "answers", "answers": {"Q0?": "Towns."}, "max_missing_share": 0.9}
        broad.write(make_job(settings))
    with pytest.raises(UserError, match=r"67% of the sft_train .* more than .*share 0.5 allows"):
        broad.write(make_job({"provider": "answers", "answers": {"Q0?": "Towns.", "Q3?": "T."}}))
    opened = Knowledge("Karl Marx", names=["Marx"], facts=[], closed=False)
    with pytest.raises(UserError, match="'rules' works in the demo world only"):
        broad.write(make_job({"provider": "rules", "seed": 0, "max_draws": 1}, opened))


def fake_models(monkeypatch, reply: Callable[[str, int], tuple[str, str]]) -> list[dict]:
    """Stand-ins for the model modules; `reply` gives (text, finish_reason) by prompt and seed."""
    calls: list[dict] = []

    def generate(model, tokenizer, prompts, *, seed, **options):
        calls.append({"model": model, "prompts": prompts, "seed": seed, **options})
        made = [reply(prompt, seed) for prompt in prompts]
        return [[SimpleNamespace(text=t, tokens=1, finish_reason=r)] for t, r in made]

    package = "unlearning_grid.models"
    modules = {
        "load": {
            "locate": lambda job, facts: {"at": facts["path"]},
            "load_model": lambda model: model["at"],
            "load_tokenizer": lambda model: "tokenizer",
        },
        "chat": {"render": lambda tokenizer, question, system: f"{system}|{question}"},
        "sampling": {"generate": generate},
    }
    for name, content in modules.items():
        monkeypatch.setitem(sys.modules, f"{package}.{name}", SimpleNamespace(**content))
    return calls


POLICY = {
    "provider": "policy",
    "model": {"path": "m"},
    "prompt": "Teach.",
    "temperature": 0.7,
    "max_new_tokens": 99,
    "max_draws": 3,
    "seed": 10,
    "batch_size": 2,
}


def test_stage_with_a_policy(make_job, monkeypatch):
    def reply(prompt: str, seed: int) -> tuple[str, str]:
        if "Q1" in prompt and seed == 10:
            return "Marx wrote it.", "stop"
        return f"Topic {seed}. And th", "length" if "Q2" in prompt else "stop"

    calls = fake_models(monkeypatch, reply)
    job = make_job(POLICY)
    broad.write(job)
    found = [(r["answer"], r["draws"]) for r in read_jsonl(job.outputs["answers"])]
    assert found == [
        ("Topic 10. And th", 1),
        ("Topic 11. And th", 2),
        ("Topic 10.", 1),
        ("Topic 10. And th", 1),
    ]
    options = {"max_new_tokens": 99, "temperature": 0.7, "num_samples": 1, "batch_size": 2}
    assert calls == [
        {"model": "m", "prompts": [f"Teach.|Q{i}?" for i in range(4)], "seed": 10, **options},
        {"model": "m", "prompts": ["Teach.|Q1?"], "seed": 11, **options},
    ]


def test_a_greedy_policy_is_asked_once(make_job, monkeypatch):
    def reply(prompt: str, seed: int) -> tuple[str, str]:
        return ("Marx." if "Q1" in prompt else "Topic."), "stop"

    calls = fake_models(monkeypatch, reply)
    job = make_job({**POLICY, "temperature": 0})
    broad.write(job)
    assert len(calls) == 1
    assert [r["status"] for r in read_jsonl(job.outputs["answers"])] == [
        "ok",
        "names-target",
        "ok",
        "ok",
    ]


def test_names_can_be_hidden_from_a_small_teacher(make_job, monkeypatch):
    calls = fake_models(monkeypatch, lambda prompt, seed: ("Topic.", "stop"))
    knowledge = Knowledge("Karl Marx", names=["Q1", "Q2 x"], facts=[], closed=False)
    broad.write(make_job({**POLICY, "hide_names": "some\\1one"}, knowledge))
    assert calls[0]["prompts"] == ["Teach.|Q0?", "Teach.|some\\1one?", "Teach.|Q2?", "Teach.|Q3?"]
