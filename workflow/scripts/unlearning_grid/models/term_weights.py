"""Stage: weigh a target's forbidden terms by how central they are to its name.

The recipe is that of "Beyond Binary Rewards" (arXiv 2607.27968): embed terms and name, join each
with its nearest neighbours, run PageRank started at the name, divide by the largest score of a
term.  The name is a node of its own where it is not among the terms.

A random walk that always starts anew at the name never gets to a term without a path from it: such
a term has weight exactly 0, and pagerank-lex does not see it.  These are reported.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearning_grid.models.load import device, locate
from unlearning_grid.spec.hub import cannot_load

if TYPE_CHECKING:
    from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

MAX_TOKENS = 512
BATCH = 64


def weigh(job: Job) -> dict[str, Any]:
    """Write "weights", a JSON object term -> weight in [0, 1], in the order of the terms.

    Settings: subject, terms; embedder (a size's model facts; input "model" if a rule builds it) or
    repo and revision of an encoder; neighbors, min_similarity, damping.
    """
    settings = job.settings
    terms, subject = list(dict.fromkeys(settings["terms"])), settings["subject"]
    embedder = settings["embedder"] or {k: settings[k] for k in ("repo", "revision")}
    names = terms if subject in terms else [*terms, subject]
    vectors = embed(names, locate(job, embedder))
    graph = knn_graph(vectors, settings["neighbors"], settings["min_similarity"])
    scores = pagerank(graph, names.index(subject), settings["damping"])
    weights = by_largest(dict(zip(names, scores, strict=True)), terms)
    text = json.dumps(weights, ensure_ascii=False, indent=1)
    Path(job.outputs["weights"]).write_text(text + "\n", encoding="utf-8")
    unreachable = [term for term in terms if not weights[term]]
    if unreachable:
        log.warning("no path from %s to %d terms, weight 0: %s", *_counted(subject, unreachable))
    return {
        "terms": len(terms),
        "edges": graph.number_of_edges(),
        "unreachable": len(unreachable),
        "subject_is_a_term": subject in terms,
    }


def _counted(subject: str, terms: Sequence[str]) -> tuple[str, int, str]:
    return subject, len(terms), ", ".join(terms)


def embed(texts: Sequence[str], model: Mapping[str, Any]) -> Any:
    """Unit vectors (len(texts), width), float32: last hidden states, mean over real tokens.

    `model` is what models.load.locate gives: an encoder, or a causal model without its head.
    Raises UserError when it cannot be read.
    """
    import torch

    tokenizer, network = _load(model)
    vectors = []
    for start in range(0, len(texts), BATCH):
        encoded = tokenizer(
            list(texts[start : start + BATCH]),
            padding=True,
            truncation=True,
            max_length=min(MAX_TOKENS, tokenizer.model_max_length),
            return_tensors="pt",
        ).to(network.device)
        mask = encoded["attention_mask"]
        with torch.inference_mode():
            states = network(input_ids=encoded["input_ids"], attention_mask=mask)
        weights = mask.unsqueeze(-1).float()
        mean = (states.last_hidden_state.float() * weights).sum(1) / weights.sum(1).clamp(min=1)
        vectors.append(torch.nn.functional.normalize(mean, dim=1).cpu())
    return torch.cat(vectors).numpy()


def _load(model: Mapping[str, Any]) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    where, revision = model["location"], model["revision"]
    try:
        # Padding to the right leaves the states of a causal model as they are without it.
        tokenizer = AutoTokenizer.from_pretrained(where, revision=revision, padding_side="right")
        network: Any = AutoModel.from_pretrained(
            where, revision=revision, dtype=torch.float32, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise cannot_load("term_weights: cannot be loaded:", where, revision, error) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, network.eval().to(device())


def knn_graph(vectors: Any, neighbors: int, min_similarity: float) -> Any:
    """Undirected graph over rows of unit vectors, edges weighted by cosine.

    Two nodes are joined when one is among the `neighbors` nearest of the other and their cosine is
    at least `min_similarity` and above 0.
    """
    import networkx
    import numpy

    similarity = numpy.asarray(vectors, dtype=numpy.float64) @ numpy.asarray(vectors).T
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(similarity)))
    for node, row in enumerate(similarity):
        others = [other for other in range(len(row)) if other != node]
        nearest = sorted(others, key=lambda other: (-row[other], other))[:neighbors]
        for other in nearest:
            if row[other] >= min_similarity and row[other] > 0:
                graph.add_edge(node, other, weight=float(row[other]))
    return graph


def pagerank(graph: Any, start: int, damping: float) -> list[float]:
    """PageRank of each node for a walk that starts anew at one node, exactly 0 out of its reach."""
    import networkx

    reached = networkx.node_connected_component(graph, start)
    # The power iteration only ever comes near 0, hence the walk on what can be reached.
    scores = networkx.pagerank(
        graph.subgraph(reached),
        alpha=damping,
        personalization={start: 1.0},
        max_iter=1000,
        tol=1e-12,
    )
    return [float(scores.get(node, 0.0)) for node in range(len(graph))]


def by_largest(scores: Mapping[str, float], terms: Sequence[str]) -> dict[str, float]:
    """Each term's score over the largest score of a term; all 0 when none can be reached."""
    largest = max((scores[term] for term in terms), default=0.0)
    return {term: scores[term] / largest if largest else 0.0 for term in terms}
