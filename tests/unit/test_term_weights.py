"""PageRank weights of forbidden terms, on graphs that can be worked out by hand."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.models.term_weights import by_largest, embed, knn_graph, pagerank, weigh

SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def unit(*rows: tuple[float, ...]) -> np.ndarray:
    vectors = np.array(rows, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# --- graph -----------------------------------------------------------------------------------


def test_edges_are_cosines_at_or_above_the_smallest() -> None:
    graph = knn_graph(unit((1, 0), (1, 1), (0, 1), (-1, 0)), neighbors=8, min_similarity=0.25)
    assert set(graph.edges) == {(0, 1), (1, 2)}
    assert graph.edges[0, 1]["weight"] == pytest.approx(0.5**0.5)
    assert len(graph) == 4  # a node without an edge stays


def test_an_edge_needs_one_of_two_nodes_to_choose_it() -> None:
    # 0, 1, 2 lie close together; 3 is nearest to 2, but 2 has a nearer neighbour.
    vectors = unit((1, 0.0), (1, 0.1), (1, 0.2), (1, 1.0))
    graph = knn_graph(vectors, neighbors=1, min_similarity=0.25)
    assert {frozenset(edge) for edge in graph.edges} == {
        frozenset({0, 1}),
        frozenset({1, 2}),
        frozenset({2, 3}),
    }


def test_no_edge_has_a_weight_of_zero_or_less() -> None:
    graph = knn_graph(unit((1, 0), (0, 1), (-1, 0.1)), neighbors=8, min_similarity=-1)
    assert {frozenset(edge) for edge in graph.edges} == {frozenset({1, 2})}


# --- PageRank --------------------------------------------------------------------------------


def test_two_nodes_by_hand() -> None:
    # x0 = 0.15 + 0.85 x1, x1 = 0.85 x0: x0 = 1 / 1.85
    graph = knn_graph(unit((1, 0), (1, 0)), 8, 0.25)
    assert pagerank(graph, 0, 0.85) == pytest.approx([1 / 1.85, 0.85 / 1.85], abs=1e-9)


def test_a_star_by_hand() -> None:
    # Start at a leaf (1) of a star around 0 with leaves 1, 2: x1 = .15 + .425 x0, x2 = .425 x0,
    # x0 = .85 (x1 + x2), all together 1.
    graph = knn_graph(unit((1, 1), (1, -0.2), (-0.2, 1)), 8, 0.25)
    assert {frozenset(edge) for edge in graph.edges} == {frozenset({0, 1}), frozenset({0, 2})}
    centre = 0.85 * 0.15 / (1 - 0.85**2)
    expected = [centre, 0.15 + 0.425 * centre, 0.425 * centre]
    assert pagerank(graph, 1, 0.85) == pytest.approx(expected, abs=1e-9)
    assert sum(expected) == pytest.approx(1)


def test_out_of_reach_is_exactly_zero() -> None:
    graph = knn_graph(unit((1, 0, 0), (1, 0.1, 0), (0, 0, 1), (0, 0.1, 1)), 8, 0.25)
    scores = pagerank(graph, 0, 0.85)
    assert scores[2:] == [0.0, 0.0] and min(scores[:2]) > 0.4


def test_weights_are_shares_of_the_largest_term() -> None:
    scores = {"a": 0.2, "b": 0.1, "name": 0.7, "c": 0.0}
    assert by_largest(scores, ["b", "a", "c"]) == {"b": 0.5, "a": 1.0, "c": 0.0}
    assert list(by_largest(scores, ["b", "a", "c"])) == ["b", "a", "c"]
    assert by_largest({"name": 1.0, "a": 0.0}, ["a"]) == {"a": 0.0}


# --- embedding and stage ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers over the letters a to z."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = {c: i for i, c in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"])}
    bare = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(vocab_size=len(vocabulary), intermediate_size=32, **SHAPE)
    ).save_pretrained(folder)
    return folder


def where(folder: Path) -> dict:
    return {"location": str(folder), "revision": None, "dtype": "float32"}


def test_vectors_have_length_one_and_do_not_depend_on_padding(encoder: Path) -> None:
    vectors = embed(["ab", "abcdefghij", "z"], where(encoder))
    assert vectors.shape == (3, 16)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    alone = embed(["ab"], where(encoder))
    assert vectors[0] == pytest.approx(alone[0], abs=1e-6)


def test_a_causal_model_is_an_encoder_too(tmp_path: Path, encoder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=28, intermediate_size=32, num_key_value_heads=2, **SHAPE)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path)
    vectors = embed(["ab", "abcdefghij"], where(tmp_path))
    assert vectors[0] == pytest.approx(embed(["ab"], where(tmp_path))[0], abs=1e-6)


def test_a_model_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="term_weights: .*cannot be loaded"):
        embed(["a"], where(tmp_path / "none"))


def run(tmp_path: Path, encoder: Path, terms: list[str], **changes) -> tuple[dict, dict]:
    settings = {
        "subject": "abc",
        "terms": terms,
        "embedder": {"path": str(encoder), "dtype": "float32"},
        "repo": None,
        "revision": None,
        "neighbors": 8,
        "min_similarity": 0.25,
        "damping": 0.85,
        **changes,
    }
    job = SimpleNamespace(settings=settings, inputs={}, outputs={"weights": tmp_path / "w.json"})
    facts = weigh(job)  # type: ignore[arg-type]
    return json.loads((tmp_path / "w.json").read_text(encoding="utf-8")), facts


def test_the_stage_weighs_every_term_in_order(tmp_path: Path, encoder: Path) -> None:
    terms = ["abd", "abc", "xyz", "q", "abd"]
    weights, facts = run(tmp_path, encoder, terms, min_similarity=-1)
    assert list(weights) == ["abd", "abc", "xyz", "q"]
    assert max(weights.values()) == 1.0 and weights["abc"] == 1.0  # the walk starts there
    assert facts["terms"] == 4 and facts["subject_is_a_term"]
    assert facts["unreachable"] == sum(weight == 0 for weight in weights.values())


def test_a_name_that_is_no_term_has_no_weight(tmp_path: Path, encoder: Path) -> None:
    weights, facts = run(tmp_path, encoder, ["abd", "xyz"], min_similarity=-1)
    assert list(weights) == ["abd", "xyz"] and max(weights.values()) == 1.0
    assert not facts["subject_is_a_term"]


def test_without_any_edge_only_the_name_counts(
    tmp_path: Path, encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights, facts = run(tmp_path, encoder, ["abc", "xyz", "q"], min_similarity=1.0)
    assert weights == {"abc": 1.0, "xyz": 0.0, "q": 0.0}
    assert facts["unreachable"] == 2 and facts["edges"] == 0
    assert "no path from abc to 2 terms, weight 0: xyz, q" in caplog.text
