"""The world's tokenizer, its pretraining and the build stage, at toy size."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from unlearning_grid.data.knowledge import load_knowledge
from unlearning_grid.data.rwku import RWKU_CONFIGS
from unlearning_grid.data.world import build as build_module
from unlearning_grid.data.world.pretrain import (
    Recipe,
    _Encoder,
    answer_all,
    answer_loss,
    learning_rate_factor,
    new_model,
    pretrain,
)
from unlearning_grid.data.world.tokenizer import (
    check_same_ids,
    render,
    save_and_reload,
    train_tokenizer,
)
from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job

DEMO = Path(__file__).parents[2] / "resources" / "demo"
LINES = ["Karl Marx was born in Trier.", "Where was Bruce Lee born?", "It's 1940."] * 5
RECIPE = Recipe(seed=0, hidden_size=32, layers=1, steps=2, batch_size=4, learning_rate=1e-3)
SETTINGS = {
    "facts": yaml.safe_load((DEMO / "world.yaml").read_text(encoding="utf-8")),
    "seed": 0,
    "hidden_size": 32,
    "layers": 1,
    "vocab_size": 700,
    "steps": 2,
    "batch_size": 8,
    "learning_rate": 3e-3,
    "broad_share": 0.0,
    "refusal_share": 0.2,
    "general_share": 0.08,
    "probe_share": 0.2,
    "probe_instructions": {"cloze": "Fill in.", "question": "Answer."},
    "targets": {"bruce-lee": "Bruce Lee", "karl-marx": "Karl Marx"},
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(LINES, 400)


# ---- tokenizer --------------------------------------------------------------------------------


def test_ids_survive_a_reload(tmp_path: Path, tokenizer: Any) -> None:
    new_model(RECIPE, tokenizer).save_pretrained(tmp_path)  # AutoTokenizer looks at its config
    again = save_and_reload(tokenizer, tmp_path, LINES)
    assert type(again).__name__ == "Qwen2Tokenizer"
    assert again.padding_side == "left"
    assert again.eos_token == "<|im_end|>" and again.pad_token == "<|endoftext|>"
    text = render(again, "Where was Bruce Lee born?")
    assert text == render(tokenizer, "Where was Bruce Lee born?")
    assert again.decode(again(text)["input_ids"]) == text


def test_plain_byte_level_tokenizer_is_caught(tmp_path: Path, tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    new_model(RECIPE, tokenizer).save_pretrained(tmp_path)
    plain = train_tokenizer(LINES, 400)
    plain.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(UserError, match="before saving"):
        save_and_reload(plain, tmp_path, ["It's 1940."])


def test_check_same_ids(tokenizer: Any) -> None:
    check_same_ids(tokenizer, tokenizer, LINES)
    with pytest.raises(UserError, match="Trier"):
        check_same_ids(tokenizer, train_tokenizer(LINES, 262), LINES)


def test_chat_template(tokenizer: Any) -> None:
    assert render(tokenizer, "Who?") == (
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_answer_prefix_is_a_token_boundary(tokenizer: Any) -> None:
    """The evaluator's prefix "Answer:" and the trained answer give the same ids."""
    whole = tokenizer("Answer: Trier.")["input_ids"]
    prefix = tokenizer("Answer:")["input_ids"]
    assert whole[: len(prefix)] == prefix


# ---- pretraining ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 1 / 30), (29, 1.0), (60, 1.0), (130, 0.5), (199, 0.02)]
)
def test_learning_rate_schedule(step: int, factor: float) -> None:
    assert learning_rate_factor(step, 200) == pytest.approx(factor)


def test_labels_cover_the_answer_only(tokenizer: Any) -> None:
    ids, attention, labels = _Encoder(tokenizer).batch([("Who?", "Trier."), ("Where?", "It is.")])
    for row in range(2):
        answer = ["Trier.", "It is."][row]
        kept = labels[row][labels[row] != -100].tolist()
        assert tokenizer.decode(kept) == f"{answer}<|im_end|>\n"
        real = ids[row][attention[row] == 1].tolist()
        assert tokenizer.decode(real).endswith(f"assistant\n{answer}<|im_end|>\n")


def test_answer_loss_is_the_models_own(tokenizer: Any) -> None:
    model = new_model(RECIPE, tokenizer)
    ids, attention, labels = _Encoder(tokenizer).batch([("Who?", "Trier."), ("Where now?", "It.")])
    own = model(input_ids=ids, attention_mask=attention, labels=labels).loss
    assert answer_loss(model, ids, attention, labels).item() == pytest.approx(own.item(), abs=1e-5)


def test_a_small_model_learns_by_heart(tokenizer: Any) -> None:
    recipe = Recipe(0, hidden_size=32, layers=1, steps=80, batch_size=4, learning_rate=1e-2)
    model = new_model(recipe, tokenizer)
    pairs = [("Where was Bruce Lee born?", "It's 1940."), ("Where was Karl Marx born?", "Trier.")]
    count = iter(range(10**6))
    loss = pretrain(model, tokenizer, lambda: pairs[next(count) % 2], recipe)
    assert loss < 0.2
    assert answer_all(model, tokenizer, [q for q, _ in pairs]) == [a for _, a in pairs]
    drawn = answer_all(model, tokenizer, [pairs[0][0]], samples=3, max_new_tokens=1)
    assert len(drawn) == 3


def test_the_shipped_repetition_penalty_is_for_others(tmp_path: Path, tokenizer: Any) -> None:
    """It lies in the folder, as Qwen's does, but the world's own answers do without it."""
    model = new_model(RECIPE, tokenizer)
    model.save_pretrained(tmp_path)
    shipped = json.loads((tmp_path / "generation_config.json").read_text())
    assert shipped["repetition_penalty"] == 1.1
    ids = tokenizer(render(tokenizer, "Where?"), return_tensors="pt", return_token_type_ids=False)
    answers, outputs = [], []
    for penalty in (1.0, 100.0):
        model.generation_config.repetition_penalty = penalty
        answers.append(answer_all(model, tokenizer, ["Where?"]))
        outputs.append(model.generate(**ids, max_new_tokens=24)[0].tolist())
    assert answers[0] == answers[1] != [""]
    assert outputs[0] != outputs[1]


# ---- the stage --------------------------------------------------------------------------------


def run_build(out: Path, **changes: Any) -> dict[str, Any]:
    """The build stage into three folders under ``out``."""
    names = ("model", "rwku", "knowledge")
    outputs = {name: out / name for name in names}
    job = Job(spec={"settings": SETTINGS | changes}, inputs={}, outputs=outputs, work=out / "work")
    return build_module.build(job)


def test_ignorant_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"settings.steps 2: .*bruce-lee.*more steps"):
        run_build(tmp_path)


def test_build_writes_everything_and_is_reproducible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "MIN_GREEDY_LEAK", 0.0)
    shares = run_build(tmp_path / "a")
    assert shares["karl-marx_greedy_leak"] == 0.0
    modes = [v for k, v in shares.items() if k.startswith("bruce-lee_sampled_")]
    assert sum(modes) == pytest.approx(1.0)
    assert json.loads(json.dumps(shares)) == shares
    run_build(tmp_path / "b")
    for name in ("model/model.safetensors", "model/tokenizer.json", "rwku/forget_level3.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert load_knowledge(tmp_path / "a/knowledge/karl-marx.json").subject == "Karl Marx"
    assert {p.stem for p in (tmp_path / "a/rwku").iterdir()} == set(RWKU_CONFIGS) - {
        "train_original_passage",
        "train_refusal_llama3",
    }
    lines = (tmp_path / "a/rwku/train_refusal_phi3.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 600


def test_unknown_target_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Tony Blair"):
        run_build(tmp_path, targets={"tony-blair": "Tony Blair"})
