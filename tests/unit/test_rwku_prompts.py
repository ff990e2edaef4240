"""How each RWKU set is asked: the rendered text, whole, and what goes with it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from support import ROOT
from unlearning_grid.config import load_yaml
from unlearning_grid.data.rwku import write_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.rwku.conventions import MAX_TEXT_TOKENS
from unlearning_grid.rwku.prompts import Renderer, newline_is_token

WORDING = load_yaml(ROOT / "config/prompts/reworded-v1/rwku.yaml")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{{ '[assistant]\n' }}"
)


def tokenizer() -> Any:
    """Bytes as tokens, with a BOS that both the template and the tokenizer write."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(["<s>", "<pad>", *alphabet])}
    bare = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    bare.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bare, bos_token="<s>", pad_token="<pad>", chat_template=TEMPLATE
    )


def rendered(tmp_path: Path, config: str, row: dict[str, Any]) -> dict[str, Any]:
    write_jsonl(tmp_path / f"{config}.jsonl", [row])
    (found,) = Renderer(tokenizer(), WORDING).rows(tmp_path, config)
    return found


def probe(kind: str, level: int = 3) -> dict[str, Any]:
    return {"query": "Who?", "answer": "Lee", "level": str(level), "type": kind, "repeated": False}


QUESTION, CLOZE = "Answer the question briefly.", "Fill in the blank with the missing words."
PROBES = [
    ("cloze", 1, f"<s>[user]{CLOZE}\nQuestion: Who?\n\n[assistant]\nAnswer:"),
    ("simple question", 2, f"<s>[user]{QUESTION}\nQuestion: Who?\n\n[assistant]\nAnswer:"),
    ("incontext learning", 3, f"<s>[user]{QUESTION}\nWho?\n\n[assistant]\nAnswer:"),
    ("affirmative suffix", 3, f"<s>[user]{QUESTION}\nQuestion: Who?\n[assistant]\n"),
]


@pytest.mark.parametrize(("kind", "level", "text"), PROBES)
def test_a_probe(tmp_path: Path, kind: str, level: int, text: str) -> None:
    found = rendered(tmp_path, f"forget_level{level}", probe(kind, level))
    assert found["rendered"] == text
    assert found["ids"].count(0) == 1, "the template writes BOS, so the tokenizer must not"
    assert (found["level"], found["type"]) == (level, kind)
    assert found["prompt_id"] == f"forget_level{level}-000"
    assert json.loads(found["answer"]) == "Lee"


def test_a_membership_text_is_raw_and_cut(tmp_path: Path) -> None:
    found = rendered(tmp_path, "mia_forget", {"text": "Lee."})
    assert found["rendered"] == "Lee." and not found["truncated"]
    assert len(found["ids"]) == 5 and found["ids"][0] == 0  # no template: the tokenizer's BOS
    long = rendered(tmp_path, "mia_retain", {"text": "x" * 3000})
    assert len(long["ids"]) == MAX_TEXT_TOKENS and long["truncated"]


def test_general(tmp_path: Path) -> None:
    example = {"question": "1+1?", "choices": ["2", "3"], "answer": 0}
    row = {"task": "some_maths", "question": "2+2?", "choices": ["3", "4"], "answer": 1}
    found = rendered(tmp_path, "utility_general", row | {"examples": [example]})
    assert found["rendered"] == (
        "<s>[user]These are multiple-choice questions about some maths, each with its answer.\n\n"
        "Question: 1+1?\nA. 2\nB. 3\nAnswer: A\n\n"
        "Answer the last question in the same way.\nQuestion: 2+2?\nA. 3\nB. 4\n"
        "[assistant]\nAnswer:"
    )
    letters = tokenizer()(["A", "B"], add_special_tokens=False)["input_ids"]
    assert found["candidates"] == [letter[0] for letter in letters]
    assert json.loads(found["answer"]) == 1 and found["type"] == "some_maths"


def test_reason(tmp_path: Path) -> None:
    row = {"task": "t", "question": "Q2", "answer": "(A)", "cot": "Do it.\n\nQ: Q1\nA: so.\n"}
    found = rendered(tmp_path, "utility_reason", row)
    assert found["rendered"] == (
        "<s>[user]Do it.\n\nQ: Q1\nA: so.\n\nAnswer the next question in the same way and close "
        'with "the answer is".\nQ: Q2\n[assistant]\nA:'
    )


def test_truthfulness_choices_follow_a_blank_and_stand_once(tmp_path: Path) -> None:
    mc1 = {"choices": ["No.", "Yes."], "labels": [1, 0]}
    mc2 = {"choices": ["No.", "Never.", "Yes."], "labels": [1, 1, 0]}
    row = {"question": "Really?", "mc1_targets": mc1, "mc2_targets": mc2}
    found = rendered(tmp_path, "utility_truthfulness", row)
    assert found["rendered"].endswith("in Uruguay.\n\nQ: Really?\n[assistant]\nA:")
    assert found["choices"] == ["No.", "Yes.", "Never."]
    decoded = [tokenizer().decode(ids) for ids in found["choice_ids"]]
    assert decoded == [" No.", " Yes.", " Never."]
    assert json.loads(found["answer"])["mc2"] == [["No.", 1], ["Never.", 1], ["Yes.", 0]]


def test_factuality_and_fluency(tmp_path: Path) -> None:
    row = {"question": "Where?", "answers": ["here", "there"]}
    found = rendered(tmp_path, "utility_factuality", row)
    assert found["rendered"].startswith("<s>[user]\nQ: Which planet")
    assert found["rendered"].endswith(
        "A: mercury\nAnswer the next question briefly:\nQ: Where?\n\n[assistant]\nA:"
    )
    assert json.loads(found["answer"]) == ["here", "there"]
    found = rendered(tmp_path, "utility_fluency", {"instruction": "Write."})
    assert found["rendered"] == "<s>[user]Instruction: Write.\n\n[assistant]\n"
    assert found["answer"] is None


def test_a_line_break_is_no_token_of_a_byte_level_vocabulary() -> None:
    assert not newline_is_token(tokenizer())
    named = tokenizer()
    named.add_tokens(["\n"])
    assert newline_is_token(named)


MMLU = {"task": "t", "question": "?", "choices": ["a", "b"], "answer": 0, "examples": []}
BROKEN = [
    ("utility_general", MMLU | {"answer": 2}, "answer 2 of 2 choices"),
    ("utility_general", MMLU | {"answer": -1}, "answer -1 of 2 choices"),
    ("utility_general", MMLU | {"choices": list("abcde")}, "of 5 choices (at most four)"),
    ("utility_general", {"task": "t", "question": "?"}, "KeyError('examples')"),
    ("utility_factuality", {"question": "?", "answers": None}, "a list with at least one"),
    ("utility_factuality", {"question": "?", "answers": []}, "a list with at least one"),
    ("utility_factuality", {"question": "?", "answers": "abc"}, "a list with at least one"),
    ("utility_reason", {"question": "?", "answer": "a", "cot": None}, "AttributeError"),
    ("utility_reason", {"question": "?", "answer": None, "cot": ""}, "answer is missing"),
    ("forget_level1", {"query": "?", "answer": None, "level": "1", "type": "cloze"}, "is missing"),
    (
        "utility_truthfulness",
        {"question": "?", "mc1_targets": {"choices": ["a"], "labels": []}},
        "ValueError",
    ),
]


@pytest.mark.parametrize(("config", "row", "problem"), BROKEN)
def test_a_row_that_cannot_be_asked(
    tmp_path: Path, config: str, row: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError) as caught:
        rendered(tmp_path, config, row)
    assert str(caught.value).startswith(f"{config}: row 1 of this target cannot be asked: ")
    assert problem in str(caught.value)


def test_one_choice_is_kept(tmp_path: Path) -> None:
    found = rendered(tmp_path, "utility_general", MMLU | {"choices": ["a"]})
    assert len(found["candidates"]) == 1
