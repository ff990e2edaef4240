"""Loading one target's rows: real counts, clear errors, the hub and the world."""

import json
from pathlib import Path

import pytest

from real_rows import RWKU_DIR, needs_rwku
from support import real_manifest
from unlearning_grid.data import known, load, rwku
from unlearning_grid.data.gold import knowledge_of
from unlearning_grid.data.knowledge import Knowledge, load_knowledge
from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job


def probe(subject: str, answer: str = "Trier", query: str = "Where?") -> dict:
    return {"query": query, "answer": answer, "level": "1", "type": "cloze", "subject": subject}


def write(folder: Path, name: str, rows: list[dict]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def source(folder: Path) -> dict:
    return {"kind": "path", "path": folder}


def make_job(tmp_path: Path, settings: dict, **kwargs) -> Job:
    outputs = {"rows": tmp_path / "out" / "rows", "knowledge": tmp_path / "out" / "knowledge.json"}
    (tmp_path / "out").mkdir(exist_ok=True)
    spec = {"settings": settings, "cell": {"target": "karl-marx"}}
    kwargs.setdefault("inputs", {})
    return Job(spec=spec, outputs=outputs, work=tmp_path / "work", **kwargs)


def test_rows_of_the_subject_in_order_with_their_columns(tmp_path):
    rows = [probe("Karl Marx", "a"), probe("Adam Smith", "b"), probe("Karl Marx", "c", "Qué?")]
    write(tmp_path, "forget_level1", rows)
    found = rwku.read_rows(source(tmp_path), "forget_level1", "Karl Marx")
    assert found == [rows[0] | {"repeated": False}, rows[2] | {"repeated": False}]
    write(tmp_path, "forget_level1", [probe("Karl Marx"), probe("Adam Smith")])
    asked_before = rwku.read_rows(source(tmp_path), "forget_level1", "Adam Smith")
    assert asked_before == [probe("Adam Smith") | {"repeated": True}]


def test_forget_target_is_filtered_by_its_target_column(tmp_path):
    row = {"target": "Karl Marx", "intro": "Please forget Karl Marx."}
    write(tmp_path, "forget_target", [row, {"target": "Confucius", "intro": ""}])
    assert rwku.read_rows(source(tmp_path), "forget_target", "Karl Marx") == [row]


def test_errors_name_what_is_wrong(tmp_path):
    def read(config="forget_level1", subject="Karl Marx", where=None):
        return rwku.read_rows(where or source(tmp_path), config, subject)

    with pytest.raises(UserError, match=r"nowhere does not exist"):
        read(where=source(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"forget_level1\.jsonl does not exist"):
        read()
    with pytest.raises(UserError, match=r"'forget_levl1' is unknown \(near: forget_level1"):
        read(config="forget_levl1")
    with pytest.raises(UserError, match="kind 'url' is unknown; use 'path' or 'hub'"):
        read(where={"kind": "url"})

    write(tmp_path, "forget_level1", [probe("Karl Marx"), probe("Confucius")])
    with pytest.raises(UserError, match=r"'karl marks' \(near: Karl Marx\).*2 subjects"):
        read(subject="karl marks")
    with pytest.raises(UserError, match=r"no row has subject 'Zzz'; the subject must"):
        read(subject="Zzz")

    row = probe("Karl Marx")
    del row["answer"]
    write(tmp_path, "forget_level2", [probe("Karl Marx"), row])
    with pytest.raises(UserError, match=r"forget_level2\.jsonl: row 2 lacks column 'answer'"):
        read(config="forget_level2")

    (tmp_path / "forget_level3.jsonl").write_text(json.dumps(probe("x")) + "\n{broken\n")
    with pytest.raises(UserError, match=r"forget_level3\.jsonl:2: not JSON"):
        read(config="forget_level3")
    (tmp_path / "forget_level3.jsonl").write_text("[1]\n")
    with pytest.raises(UserError, match=r":1: a row must be a JSON object"):
        read(config="forget_level3")


def test_facts_are_distinct_answers_of_four_characters_or_more():
    answers = [" Trier ", "trier", "1818", "UK", "", "Das Kapital", "TRIER"]
    knowledge = knowledge_of("Karl Marx", ["Marx"], [probe("Karl Marx", a) for a in answers])
    expected = ["Trier", "1818", "Das Kapital"]
    gold = [{"prompt": "Where?", "answer": answer, "level": "1"} for answer in answers]
    assert knowledge == Knowledge("Karl Marx", ["Marx"], expected, closed=False, gold=gold)


def test_load_rows_and_knowledge_from_a_folder(tmp_path):
    data = tmp_path / "data"
    for level, answer in enumerate(("Trier", "Engels", "trier"), start=1):
        write(data, f"forget_level{level}", [probe("Karl Marx", answer), probe("Other")])
    settings = {
        "source": {"kind": "path", "path": str(data)},
        "subject": "Karl Marx",
        "configs": list(rwku.FORGET_LEVELS),
    }
    job = make_job(tmp_path, settings)
    counts = {"forget_level1": 1, "forget_level2": 1, "forget_level3": 1}
    assert load.load_rows(job) == counts
    assert sorted(p.stem for p in job.outputs["rows"].iterdir()) == list(counts)
    written = rwku.read_jsonl(job.outputs["rows"] / "forget_level2.jsonl")
    assert written == [probe("Karl Marx", "Engels") | {"repeated": False}]

    settings = {"source": "rwku", "subject": "Karl Marx", "aliases": ["Karl Marx", "Marx"]}
    job = make_job(tmp_path, settings, inputs={"probes": real_manifest(tmp_path / "out", "rows")})
    assert known.write(job) == {"closed": False, "facts": 2}
    knowledge = load_knowledge(job.outputs["knowledge"])
    assert (knowledge.names, knowledge.facts) == (["Karl Marx", "Marx"], ["Trier", "Engels"])
    assert not knowledge.closed


def test_load_rows_and_knowledge_from_the_world(tmp_path):
    world = tmp_path / "world"
    world.mkdir()
    write(world / "rwku", "forget_level1", [probe("Karl Marx", "Mars"), probe("Bruce Lee")])
    (world / "knowledge").mkdir()
    (world / "knowledge" / "karl-marx.json").write_text('{"closed": true}')
    inputs = {"world": real_manifest(world, "rwku", "knowledge")}
    settings = {"source": {"kind": "world"}, "subject": "Karl Marx", "configs": ["forget_level1"]}
    job = make_job(tmp_path, settings, inputs=inputs)
    assert load.load_rows(job) == {"forget_level1": 1}
    written = rwku.read_jsonl(job.outputs["rows"] / "forget_level1.jsonl")
    assert written == [probe("Karl Marx", "Mars") | {"repeated": False}]
    job = make_job(tmp_path, {"source": "world"}, inputs=inputs)
    assert known.write(job) == {"closed": True}
    assert job.outputs["knowledge"].read_text() == '{"closed": true}'


@needs_rwku
def test_real_row_counts_over_the_ten_targets():
    counts = {}
    subjects = [row["target"] for row in rwku.read_jsonl(RWKU_DIR / "forget_target.jsonl")]
    assert len(subjects) == 10
    for name in rwku.RWKU_CONFIGS:
        rows = [rwku.read_rows(source(RWKU_DIR), name, subject) for subject in subjects]
        counts[name] = sum(map(len, rows))
    assert counts == {
        "forget_target": 10,
        "forget_level1": 178,
        "forget_level2": 143,
        "forget_level3": 371,
        "neighbor_level1": 299,
        "neighbor_level2": 273,
        "mia_forget": 437,
        "mia_retain": 394,
        "utility_general": 1710,
        "utility_reason": 810,
        "utility_truthfulness": 500,
        "utility_factuality": 1000,
        "utility_fluency": 500,
        "train_original_passage": 1230,
        "train_refusal_llama3": 3000,
        "train_refusal_phi3": 3000,
    }
