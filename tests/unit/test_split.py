"""The split: the study's membership, its filters, and pinned values on the real rows."""

import hashlib
import json

import pytest

from real_rows import RWKU_DIR, needs_rwku
from support import real_manifest
from unlearning_grid.data import rwku, split
from unlearning_grid.errors import UserError
from unlearning_grid.grid import split_sizes
from unlearning_grid.runtime.job import Job

STUDY = {
    "source_config": "train_refusal_phi3",
    "seed": 42,
    "audit_fraction": 0.2,
    "sft_train_fraction": 0.10,
    "sft_test_fraction": 0.05,
    "max_rows": 300,
}

# slug: (subject, rows without "?", rows with text after the first "?", distinct prompts,
#        rows after filters: grpo_train, sft_train, sha256 of the held-out prompt ids)
REAL = {
    "jennifer-lopez": ("Jennifer Lopez", 7, 207, 298, 201, 24, "71a3df6a74f0e6b9"),
    "tony-blair": ("Tony Blair", 15, 164, 299, 202, 24, "f2e95bfcd464f61f"),
    "marlon-brando": ("Marlon Brando", 19, 124, 300, 203, 24, "2dcf76fe95b51511"),
    "bruce-lee": ("Bruce Lee", 6, 124, 299, 202, 24, "09a915d59f6b7491"),
    "serena-williams": ("Serena Williams", 8, 216, 299, 202, 24, "8ed1b84c45b7ce1a"),
    "john-d-rockefeller": ("John D. Rockefeller", 68, 52, 297, 201, 23, "23b4e0607a658525"),
    "tom-clancy": ("Tom Clancy", 31, 122, 300, 203, 24, "7f1a6997a4c92c1d"),
    "vincent-van-gogh": ("Vincent van Gogh", 24, 102, 300, 203, 24, "bcc95bdfeb873b0e"),
    "karl-marx": ("Karl Marx", 58, 78, 298, 201, 24, "d0503e1021f45b4c"),
    "confucius": ("Confucius", 31, 88, 300, 203, 24, "e04575a8322c52eb"),
}


def rows_of(texts: list[str]) -> list[dict]:
    return [{"instruction": text, "output": f"no {i}"} for i, text in enumerate(texts)]


def distinct(n: int) -> list[dict]:
    return rows_of([f"question {i}?" for i in range(n)])


def ids(items: list[dict]) -> list[int]:
    return [item["row"] for item in items]


# --- prompts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("Who? And when?", "Who?"),
        ("Who", "Who?"),
        ("Who is it ?", "Who is it ?"),
        ("", ""),
        ("  ", ""),
        ("? Who", ""),
    ],
)
def test_prompt_normalisation(text, prompt):
    assert split.normalise_instruction(text) == prompt


# --- sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_rows", "sizes"),
    [
        (300, (60, 203, 24, 13)),  # 0.15 of 240 is 36.00000000000001 and becomes 37
        (1000, (60, 203, 24, 13)),  # cut to max_rows
        (299, (60, 203, 24, 12)),
        (100, (20, 67, 8, 5)),  # likewise 0.15 of 80
        (10, (2, 6, 1, 1)),
        (5, (1, 3, 0, 1)),
    ],
)
def test_expected_sizes(n_rows, sizes):
    assert split_sizes(n_rows, STUDY) == dict(zip(split.PARTS, sizes, strict=True))


def test_expected_sizes_agree_with_datasets():
    settings = {**STUDY, "max_rows": None}
    for n_rows in [*range(9, 60), 120, 240, 300, 301, 997]:
        members = split.membership(n_rows, settings)
        assert {k: len(v) for k, v in members.items()} == split_sizes(n_rows, settings)
        assert sorted(sum(members.values(), [])) == list(range(n_rows))


def test_too_few_rows_says_how_many_are_needed():
    needed = split.rows_needed(STUDY)
    assert min(split_sizes(needed, STUDY).values()) == 1
    assert min(split_sizes(needed - 1, STUDY).values()) == 0
    assert len(split.split_rows(distinct(needed), STUDY, "x").sft_train) == 1
    with pytest.raises(UserError, match=rf"target x: 5 rows .*at least {needed} rows are needed"):
        split.split_rows(distinct(5), STUDY, "x")
    with pytest.raises(UserError, match=rf"\(max_rows 5\).*at least {needed} rows"):
        split.split_rows(distinct(300), {**STUDY, "max_rows": 5}, "x")


# --- membership ------------------------------------------------------------------------------


def study_procedure(rows: list[dict], max_rows: int | None) -> dict[str, list[str]]:
    """The authors' steps in their order, on whole rows; prompts of each set."""
    from datasets import Dataset

    data = Dataset.from_list(rows).map(
        lambda row: {"prompt": row["instruction"].split("?")[0] + "?"}
    )
    data = data.filter(lambda row: row["prompt"] != "")
    if max_rows is not None:
        data = data.shuffle(seed=42).select(range(min(max_rows, len(data))))
    audit = data.train_test_split(test_size=0.2, seed=42, shuffle=True)
    rest = audit["train"].train_test_split(test_size=0.05 + 0.10, seed=42, shuffle=True)
    sft = rest["test"].train_test_split(test_size=0.05 / (0.05 + 0.10), seed=42, shuffle=True)
    parts = (audit["test"], rest["train"], sft["train"], sft["test"])
    return {name: list(part["prompt"]) for name, part in zip(split.PARTS, parts, strict=True)}


@pytest.mark.parametrize(("n_rows", "max_rows"), [(300, 300), (300, None), (350, 300), (80, 300)])
def test_membership_and_order_are_the_studys(n_rows, max_rows):
    rows = distinct(n_rows)
    result = split.split_rows(rows, {**STUDY, "max_rows": max_rows}, "x")
    expected = study_procedure(rows, max_rows)
    assert {name: [i["prompt"] for i in result.part(name)] for name in split.PARTS} == expected


def test_items_point_back_to_their_rows():
    result = split.split_rows(distinct(300), STUDY, "karl-marx")
    for name in split.PARTS:
        for item in result.part(name):
            assert item == {
                "prompt_id": f"karl-marx-{item['row']:03d}",
                "prompt": f"question {item['row']}?",
                "completion": f"no {item['row']}",
                "row": item["row"],
            }


# --- filters ---------------------------------------------------------------------------------


def with_texts(changes: dict[int, str]) -> list[dict]:
    rows = distinct(300)
    for index, text in changes.items():
        rows[index]["instruction"] = text
    return rows


def test_repeats_leave_the_training_side_first():
    members = split.membership(300, STUDY)
    h, g, s, t = (members[name] for name in split.PARTS)
    rows = with_texts(
        {
            **dict.fromkeys((h[0], h[1], g[0], s[0]), "a?"),  # stays in heldout, twice
            **dict.fromkeys((t[1], s[1], g[1]), "b? more"),  # stays in sft_test
            **dict.fromkeys((s[2], s[3], g[2]), "c"),  # stays once in sft_train
            **dict.fromkeys((g[5], g[9], g[7]), "d?"),  # stays once, the first in split order
            h[3]: "",
            g[11]: "",
        }
    )
    result = split.split_rows(rows, STUDY, "x")
    assert ids(result.heldout) == [i for i in h if i != h[3]]
    assert ids(result.sft_test) == t
    assert ids(result.sft_train) == [i for i in s if i not in (s[0], s[1], s[3])]
    gone = {g[i] for i in (0, 1, 2, 7, 9, 11)}
    assert ids(result.grpo_train) == [i for i in g if i not in gone]

    counts = result.report["splits"]
    columns = ("before", "after", "empty", "repeats_within", "repeats_of_other_sets")
    assert {name: tuple(counts[name][c] for c in columns) for name in split.PARTS} == {
        "heldout": (60, 59, 1, 0, 0),
        "grpo_train": (203, 197, 1, 2, 3),
        "sft_train": (24, 21, 0, 1, 2),
        "sft_test": (13, 13, 0, 0, 0),
    }
    assert result.report["heldout_repeats_kept"] == 1
    assert result.report["rows_empty"] == 2
    assert result.report["rows_without_question_mark"] == 5  # two empty, three "c"
    assert result.report["rows_with_text_after_question_mark"] == 3
    record = {"prompt_id": f"x-{g[0]:03d}", "split": "grpo_train", "reason": "in heldout"}
    assert {**record, "duplicate_of": f"x-{h[0]:03d}"} in result.report["dropped"]
    record = {"prompt_id": f"x-{g[11]:03d}", "split": "grpo_train", "reason": "empty"}
    assert {**record, "duplicate_of": None} in result.report["dropped"]


def test_no_prompt_is_in_two_sets():
    rows = rows_of([f"question {i % 140}?" for i in range(300)])
    result = split.split_rows(rows, STUDY, "x")
    prompts = [{item["prompt"] for item in result.part(name)} for name in split.PARTS]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 140


def test_a_set_emptied_by_the_filters_is_an_error():
    with pytest.raises(UserError, match="no usable prompt is left in grpo_train"):
        split.split_rows(rows_of(["same?"] * 300), STUDY, "x")


# --- stage and real rows ---------------------------------------------------------------------


def test_stage_writes_the_four_sets_and_the_report(tmp_path):
    (tmp_path / "rows").mkdir()
    rwku.write_jsonl(tmp_path / "rows" / "train_refusal_phi3.jsonl", distinct(300))
    outputs = {name: tmp_path / f"{name}.jsonl" for name in split.PARTS}
    outputs["report"] = tmp_path / "report.json"
    job = Job(
        spec={"settings": STUDY, "cell": {"target": "x"}},
        inputs={"rows": real_manifest(tmp_path, "rows")},
        outputs=outputs,
        work=tmp_path,
    )
    counts = {"heldout": 60, "grpo_train": 203, "sft_train": 24, "sft_test": 13}
    assert split.split(job) == {**counts, "dropped": 0}
    expected = split.split_rows(distinct(300), STUDY, "x")
    for name in split.PARTS:
        assert rwku.read_jsonl(outputs[name]) == expected.part(name)
    assert json.loads(outputs["report"].read_text()) == expected.report


def real_rows(slug: str) -> list[dict]:
    where = {"kind": "path", "path": RWKU_DIR}
    return rwku.read_rows(where, "train_refusal_phi3", REAL[slug][0])


@needs_rwku
@pytest.mark.parametrize("slug", REAL)
def test_real_rows(slug):
    _, unmarked, trailing, n_distinct, grpo, sft, digest = REAL[slug]
    result = split.split_rows(real_rows(slug), STUDY, slug)
    report = result.report
    before = [report["splits"][name]["before"] for name in split.PARTS]
    after = [report["splits"][name]["after"] for name in split.PARTS]
    assert before == [60, 203, 24, 13]
    assert after == [60, grpo, sft, 13]
    assert report["rows_without_question_mark"] == unmarked
    assert report["rows_with_text_after_question_mark"] == trailing
    assert report["distinct_prompts"] == n_distinct
    assert report["heldout_repeats_kept"] == 0
    heldout = "\n".join(item["prompt_id"] for item in result.heldout)
    assert hashlib.sha256(heldout.encode()).hexdigest().startswith(digest)


@needs_rwku
def test_the_one_empty_row_is_reported_and_unused():
    empty = {
        slug: [i for i, row in enumerate(real_rows(slug)) if not row["instruction"].strip()]
        for slug in REAL
    }
    assert {slug: found for slug, found in empty.items() if found} == {"serena-williams": [141]}
    report = split.split_rows(real_rows("serena-williams"), STUDY, "serena-williams").report
    assert report["rows_empty"] == 1
    assert report["dropped"] == [
        {
            "prompt_id": "serena-williams-141",
            "split": "grpo_train",
            "duplicate_of": None,
            "reason": "empty",
        }
    ]


@needs_rwku
def test_real_training_prompts_that_the_held_out_set_holds():
    """The study trains on these; here they leave the training side."""
    report = split.split_rows(real_rows("john-d-rockefeller"), STUDY, "jdr").report
    assert {d["prompt_id"]: d["reason"] for d in report["dropped"]} == {
        "jdr-278": "in heldout",
        "jdr-148": "in heldout",
        "jdr-053": "in heldout",
    }
