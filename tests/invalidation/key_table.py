"""Which stages' own specs hold which keys of the configuration, and which prompts.

A line for every key, or one for all below a block (`lora.*`); the longest that fits counts. A new
key is held to the line of its block. What follows the stages of a line is run again, too; `-` is
for keys that change no result, and an empty line for those of other kinds of grid.

The grid is WIDE: the demo's with every reward, judges behind an API, and one by rules for a
further opinion. What other grids need stands in VARIANTS.
"""

from typing import Any

from support import config

PROMPTS_FOLDER = "config/prompts/reworded-v1"

ASKS_THE_DETECTOR = "DETECTED RUBRIC train_grpo:r1-antirefusal train_grpo:r4-refusal"

KEYS = {
    "models.tiny.*": "train_refusal_detector weigh_terms render_rwku TRAINING ASKED",
    "models.small.*": "",  # of no cell
    "data.*": "",  # of other sources than the demo's
    "data.source": "load_rows write_knowledge train_refusal_detector",
    "split.*": "split_target",
    "split.source_config": "load_rows split_target",
    "broad_answers.*": "",  # of other providers
    "broad_answers.provider": "write_broad_answers",
    "broad_answers.judge": "write_broad_answers",
    "broad_answers.prompt_file": "write_broad_answers",
    "broad_answers.seed": "write_broad_answers",
    "broad_answers.max_draws": "write_broad_answers",
    "detector.compare": "evaluate_refusal_detectors",
    "detector.train.*": "train_refusal_detector",
    "detector.train.name": "evaluate_refusal_detectors " + ASKS_THE_DETECTOR,
    "term_weights.*": "weigh_terms",
    "term_weights.repo": "",  # `size` is given
    "term_weights.revision": "",
    "judges.reward.*": "RUBRIC",
    "judges.audit.*": "audit_completions audit_again:audit audit_rollouts",
    "judges.teacher.*": "write_broad_answers",
    "judges.lower-bound.*": "",  # it works by rules
    "judges.lower-bound.knowledge": "audit_again:lower-bound audit_samples",
    "judges.lower-bound.error_rate": "audit_again:lower-bound audit_samples",
    "judges.lower-bound.seed": "audit_again:lower-bound audit_samples",
    "judges.lower-bound.prompt_file": "audit_again:lower-bound audit_samples",
    "judges.{name}.knowledge": "",  # of judges by rules
    "judges.{name}.error_rate": "",
    "judges.{name}.seed": "",
    "judges.{name}.key_variable": "-",
    "judges.{name}.price.input": "-",
    "judges.{name}.price.output": "-",
    "lora.*": "TRAINING",
    "warmup.*": "train_warmup",
    "warmup.eval_batch_size": "-",
    "warmup.gradient_checkpointing": "-",
    "warmup.save_steps": "-",
    "warmup.monitor.*": "train_warmup",
    "warmup.monitor.max_missing_share": "-",
    "grpo.*": "train_grpo",
    "grpo.micro_batch_size": "-",
    "grpo.gradient_checkpointing": "-",
    "grpo.save_steps": "-",
    "grpo.max_missing_share": "-",
    "grpo.vllm_memory_share": "-",
    "rewards.r0-lex.*": "train_grpo:r0-lex",
    "rewards.r1-antirefusal.*": "train_grpo:r1-antirefusal",
    "rewards.r2-rubric.*": "RUBRIC",
    "rewards.r3-fuzzy.*": "train_grpo:r3-fuzzy",
    "rewards.exp-lex.*": "train_grpo:exp-lex",
    "rewards.pagerank-lex.*": "train_grpo:pagerank-lex",
    "generate.*": "generate_completions",
    "generate.backend": "generate_completions sample_completions",
    "generate.sets.heldout.max_new_tokens": "generate_completions sample_completions",
    "generate.batch_size": "-",
    "generate.python": "-",
    "generate.vllm_memory_share": "-",
    "likelihood.*": "score_likelihoods",
    "likelihood.batch_size": "-",
    "audit.judge": "audit_completions audit_rollouts",
    "audit.decoding": "audit_completions audit_again",
    "audit.labels": "AUDITS",
    "audit.max_missing_share": "-",
    "sampled_audit.*": "sample_completions",
    "sampled_audit.enabled": "",
    "terminal_audit.*": "audit_rollouts",
    "terminal_audit.enabled": "",
    "agreement.max_prompts": "audit_again",
    "world.*": "build_demo_world",
}

# What is there to compute, and names of files: see edits/grid.py, edits/judging.py, edits/files.py.
ELSEWHERE = (
    "name",
    "grid",
    "resources",
    "rwku",
    "world.facts",
    "broad_answers.file",
    "sampled_audit.judge",
    "sampled_audit.opinions",
    "agreement.judges",
    "agreement.replicates",
    "judges.{name}.provider",
    "judges.lower-bound.revision",  # refused for a judge by rules
)

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "broad answers by a model of the grid": (
        {"broad_answers": {"provider": "policy", "size": "tiny"}},
        {
            "broad_answers.*": "write_broad_answers",
            "broad_answers.judge": "",
            "broad_answers.max_missing_share": "-",
            "models.tiny.*": KEYS["models.tiny.*"] + " write_broad_answers",
        },
    ),
    "rows and models from the hub": (
        {
            "data": {"source": "hub", "revision": "0" * 40},
            "models": dict.fromkeys(("tiny", "small"), {"repo": "a/b", "revision": "0" * 40}),
        },
        {
            "data.repo": "load_rows",
            "data.revision": "load_rows",
            "data.path": "",
            "models.tiny.*": KEYS["models.tiny.*"],
        },
    ),
    "a detector from the hub": (
        {"detector": {"repo": "owner/detector", "revision": "0" * 40}},
        {
            "detector.repo": "evaluate_refusal_detectors " + ASKS_THE_DETECTOR,
            "detector.revision": "evaluate_refusal_detectors " + ASKS_THE_DETECTOR,
        },
    ),
    "terms weighed by an encoder from the hub": (
        {"term_weights": {"size": None}},
        {"term_weights.repo": "weigh_terms", "term_weights.revision": "weigh_terms"},
    ),
    "completions by vLLM": (
        {"generate": {"backend": "vllm"}},
        {
            "generate.*": "generate_completions generate_base_rows",
            "generate.backend": KEYS["generate.backend"],
            "generate.sets.heldout.max_new_tokens": KEYS["generate.sets.heldout.max_new_tokens"]
            + " generate_base_rows",
            "generate.batch_size": "-",
            "generate.python": "-",
            "generate.vllm_memory_share": "-",
            "sampled_audit.*": "sample_completions generate_base_rows",
            "sampled_audit.enabled": "generate_base_rows",
            "models.tiny.*": KEYS["models.tiny.*"] + " generate_base_rows",
        },
    ),
    "warm-ups without a monitor": (
        {"warmup": {"monitor": {"enabled": False}}},
        {"warmup.monitor.samples": "", "judges.reward.model": "train_grpo:r2-rubric"},
    ),
}
"""What differs from WIDE -> (its blocks, lines for its keys)."""

PROMPTS = {
    "audit-five.txt": "",  # of a label set that the grid does not have
    "audit-six.txt": KEYS["judges.audit.*"],
    "rubric.txt": "RUBRIC",
    "teacher.txt": "write_broad_answers",
    "teacher-neighbour.txt": "",  # of another grid
    "rwku.yaml": "build_demo_world render_rwku",
}
"""Every prompt -> the stages whose spec holds it."""


def wide() -> dict[str, Any]:
    """A grid of one target with every reward and every kind of judge."""
    raw = config("demo")
    raw["grid"] |= {
        "targets": ["bruce-lee"],
        "rewards": [
            "r0-lex",
            "r1-antirefusal",
            "r2-rubric",
            "r3-fuzzy",
            "r4-refusal",
            "exp-lex",
            "pagerank-lex",
        ],
    }
    raw["models"]["small"] = {"build": "world", "dtype": "bfloat16"}
    raw["term_weights"] = {"size": "tiny"}
    raw["broad_answers"] = {"provider": "api"}
    raw["judges"] |= {
        "reward": _far("gpt-a", f"{PROMPTS_FOLDER}/rubric.txt"),
        "audit": _far("gpt-b", f"{PROMPTS_FOLDER}/audit-six.txt"),
        "teacher": _far("gpt-c", None),
    }
    raw["agreement"] = {"judges": ["lower-bound"], "replicates": 1}
    raw["sampled_audit"]["judge"] = "lower-bound"
    return raw


def _far(model: str, prompt: str | None) -> dict[str, Any]:
    price = {"input": 1.0, "output": 2.0}
    return {"provider": "openai", "model": model, "prompt_file": prompt, "price": price}
