"""What the tests ask the engines inside vLLM's environment: in_engine.py FUNCTION JSON.

The answer is the last line on stdout, as JSON.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from unlearning_grid.generate.agreement import compare
from unlearning_grid.generate.backend import Decoding
from unlearning_grid.generate.by_vllm import VllmBackend
from unlearning_grid.generate.rows import Part
from unlearning_grid.models.chat import render
from unlearning_grid.models.policy import Policy
from unlearning_grid.runtime.atomic import write_json
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.manifest import describe

QUESTIONS = (
    "Where was Bruce Lee born?",
    "What is the capital of France?",
    "Tell me a fact about Karl Marx.",
    "Hello!",
    "Which languages did Vincent van Gogh speak, and where did he learn each of them?",
    "Count from one to five.",
)


def job(model: str, adapter: str | None = None, **settings: Any) -> Job:
    facts = {"path": model, "dtype": "float32"}
    known = {"model": facts, "batch_size": 4, "vllm_memory_share": 0.1} | settings
    inputs = {"policy": Path(adapter).parent / "manifest.json"} if adapter else {}
    return Job(spec={"settings": known}, inputs=inputs, outputs={}, work=Path("."))


def prompts(policy: Policy) -> list[list[int]]:
    texts = [render(policy.tokenizer, question) for question in QUESTIONS]
    return policy.tokenizer(texts, add_special_tokens=False)["input_ids"]


def order(model: str, adapter: str) -> dict[str, Any]:
    """Sampled texts of every prompt and seed: in order, shuffled and in parts, other seeds."""
    made = job(model, adapter)
    policy = Policy(made)
    asked = [ids for ids in prompts(policy) for _ in range(8)]
    seeds = list(range(100, 100 + len(asked)))
    engine = VllmBackend(made, policy, 128)

    def texts(places: list[int], shift: int = 0) -> dict[int, str]:
        found: dict[int, str] = {}
        engine.complete(
            [asked[i] for i in places],
            [seeds[i] + shift for i in places],
            Decoding(24, temperature=1.0, top_p=0.95),
            lambda place, completion: found.__setitem__(places[place], completion.text),
        )
        return found

    shuffled = list(range(len(asked)))
    random.Random(0).shuffle(shuffled)
    parts = texts(shuffled[:7]) | texts(shuffled[7:])
    whole = texts(list(range(len(asked))))
    other = texts(list(range(len(asked))), shift=1000)
    ordered = [[some[i] for i in range(len(asked))] for some in (whole, parts, other)]
    return dict(zip(("whole", "parts", "other"), ordered, strict=True))


def distribution(model: str, draws: int) -> dict[str, Any]:
    """First tokens that vLLM samples at a temperature, and transformers' probabilities of them."""
    import torch

    made = job(model)
    policy = Policy(made)
    ids = prompts(policy)[0]
    found: list[int] = []
    engine = VllmBackend(made, policy, 64)
    outputs = engine.outputs([ids] * draws, list(range(draws)), Decoding(1, temperature=1.5))
    found = [output.token_ids[0] for _, output in outputs]
    with torch.inference_mode():
        logits = policy.model(torch.tensor([ids])).logits[0, -1] / 1.5
    probabilities = logits.softmax(-1)
    top = probabilities.topk(5).indices.tolist()
    return {
        "counts": [found.count(token) for token in top],
        "probabilities": [float(probabilities[token]) for token in top],
    }


def agreement(model: str, rank: int, tokens: int) -> dict[str, Any]:
    """Differences between the engines, without and with a random adapter, with a penalty."""
    with tempfile.TemporaryDirectory() as folder:
        adapter = random_adapter(model, Path(folder), rank)
        made = job(model, adapter if rank else None)
        policy = Policy(made)
        asked = prompts(policy)
        import pandas as pd

        rows = pd.DataFrame({"prompt_id": [str(i) for i in range(len(asked))], "ids": asked})
        parts = [
            Part("plain", rows, Decoding(tokens)),
            Part("shipped", rows, Decoding(tokens, repetition_penalty=1.1)),
        ]
        table = compare(made, parts)
    return {
        "same": int(table["same"].sum()),
        "rows": len(table),
        "logprob_difference": float(table["logprob_difference"].max()),
        "texts": table["vllm"].tolist(),
    }


def random_adapter(model: str, folder: Path, rank: int) -> str:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    place = folder / "adapter"
    if rank:
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_pretrained(model)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        peft = get_peft_model(base, config)
        for name, weight in peft.named_parameters():
            if "lora_B" in name:  # zeros as they come, which change nothing
                torch.nn.init.normal_(weight, std=0.02)
        peft.save_pretrained(str(place))
        write_json(folder / "manifest.json", describe("test", {"adapter": place}, {}))
    return str(place)


def refused(model: str, share: float) -> dict[str, Any]:
    """What is said when the engine does not start."""
    made = job(model, vllm_memory_share=share)
    try:
        VllmBackend(made, Policy(made), 64)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": None}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
