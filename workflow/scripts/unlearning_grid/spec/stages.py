"""The spec of every stage: what its result depends on, and nothing else.

A spec is canonical JSON of
    stage     the rule's name
    cell      the facts of this cell (its wildcards)
    settings  this stage's own effective settings, with the slices of terms, aliases and prompts
              that this very cell uses, less what is only operational (spec.operations)
    modules   the modules that compute it, less what they import
    code      digest of these modules and of what they import
    env       digest of the pins of its environment
Snakemake compares it as one string (`params.spec`); run.json keeps it; a later run that differs in
one field differs in this text.
"""

import json
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from unlearning_grid.checks.served import served_name
from unlearning_grid.config import Config
from unlearning_grid.generate.registry import BACKENDS
from unlearning_grid.grid import base_policy, evaluations, parse_policy
from unlearning_grid.judge.registry import JUDGES
from unlearning_grid.rewards import registry as rewards
from unlearning_grid.spec.canonical import canonical, digest, digest_text
from unlearning_grid.spec.code import code_digest
from unlearning_grid.spec.environment import env_digest
from unlearning_grid.spec.operations import divide
from unlearning_grid.spec.rules import (
    DETECTOR_MODULE,
    ENGINE_SETTINGS,
    ENGINE_STAGES,
    PARTS,
    REMOTE_JUDGE,
    RULES_JUDGE,
    SENTENCES,
    STAGES,
)
from unlearning_grid.spec.sources import model_facts, rows_facts


class Specs:
    """Specs of one configuration. Digests are computed once per process and kept."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def text(self, stage: str, **cell: Any) -> str:
        """Canonical JSON of a stage's spec for one cell."""
        return canonical(self.spec(stage, **cell))

    def digest(self, stage: str, **cell: Any) -> str:
        """Digest of the spec: what run.json must show for the result to be current."""
        return digest_text(self.text(stage, **cell))

    def operations(self, stage: str, **cell: Any) -> str:
        """Canonical JSON of the settings that a job needs and its spec leaves out."""
        settings, _ = getattr(self, f"_{stage}")(**cell)
        return canonical(divide(stage, settings)[1])

    def spec(self, stage: str, **cell: Any) -> dict[str, Any]:
        """The spec as a dict."""
        settings, modules = getattr(self, f"_{stage}")(**cell)
        settings, _ = divide(stage, settings)
        roots = STAGES[stage][0]
        return {
            "stage": stage,
            "cell": cell,
            "settings": settings,
            "modules": [*roots, *modules],
            "code": _code(roots + tuple(modules)),
            "env": env_digest(self.environment(stage), self.config.root),
        }

    @property
    def shares_base_engine(self) -> bool:
        """Whether base models complete all targets' prompts in one start of the engine."""
        return self.config["generate"]["backend"] == "vllm"

    def environment(self, stage: str) -> str:
        """Name of the file in envs/ that a stage runs in."""
        by_vllm = self.config["generate"]["backend"] == "vllm"
        return "vllm" if by_vllm and stage in ENGINE_STAGES else STAGES[stage][1]

    # One method per stage: (settings, further root modules).

    def _build_demo_world(self) -> tuple[dict[str, Any], list[str]]:
        from unlearning_grid.config import load_yaml

        world = dict(self.config["world"])
        facts = load_yaml(self.config.file(world.pop("facts")))
        known = self.config.targets
        subjects = {slug: known[slug]["subject"] for slug in facts["people"] if slug in known}
        return {
            **world,
            "facts": facts,
            "targets": subjects,
            "probe_instructions": {k: self._wording()[k] for k in ("cloze", "question")},
        }, []

    def _load_rows(self, target: str, part: str) -> tuple[dict[str, Any], list[str]]:
        configs = PARTS[part](self.config["split"])
        return {
            "source": rows_facts(self.config, configs),
            "subject": self.config.targets[target]["subject"],
            "configs": list(configs),
        }, []

    def _write_knowledge(self, target: str) -> tuple[dict[str, Any], list[str]]:
        return {**self.config.targets[target], "source": self.config["data"]["source"]}, []

    def _split_target(self, target: str) -> tuple[dict[str, Any], list[str]]:
        return dict(self.config["split"]), []

    def _train_refusal_detector(self, detector: str) -> tuple[dict[str, Any], list[str]]:
        block = dict(self.config["detector"]["train"])
        source = "world" if self.config["data"]["source"] == "world" else "rwku"
        model = model_facts(self.config, block.pop("size"))
        return {**block, "positives": source, "tokenizer": model}, []

    def _write_broad_answers(self, target: str) -> tuple[dict[str, Any], list[str]]:
        block = self.config["broad_answers"]
        keys = ("provider", "seed", "max_missing_share")
        settings: dict[str, Any] = {key: block[key] for key in keys}
        if block["provider"] == "answers":
            settings["answers"] = self._given_answers()
        if block["provider"] == "api":
            settings["judge"] = self.judge(block["judge"])
        if block["provider"] == "policy":
            settings["model"] = model_facts(self.config, block["size"])
            settings |= {k: block[k] for k in ("temperature", "max_new_tokens", "hide_names")}
        if block["provider"] in ("api", "policy"):
            settings["prompt"] = self.config.text(block["prompt_file"])
        if block["provider"] != "answers":
            settings["max_draws"] = block["max_draws"]
        return settings, []

    def _train_warmup(
        self, size: str, target: str, seed: int | str
    ) -> tuple[dict[str, Any], list[str]]:
        block = dict(self.config["warmup"])
        monitor = dict(block.pop("monitor"))
        settings = {
            **block,
            "model": model_facts(self.config, size),
            "lora": self.config["lora"],
            "seed": int(seed),
            "monitor": monitor if monitor["enabled"] else None,
        }
        modules: list[str] = []
        if monitor["enabled"]:
            name = "r2-rubric" if block["objective"] == "broad" else "r4-refusal"
            settings["monitor"]["reward"], modules = self._reward(name, target)
        return settings, modules

    def _train_grpo(
        self, size: str, target: str, init: str, reward: str, seed: int | str
    ) -> tuple[dict[str, Any], list[str]]:
        block, modules = self._reward(reward, target)
        grpo = dict(self.config["grpo"])
        if not grpo["use_vllm"]:
            del grpo["use_vllm"], grpo["vllm_memory_share"]
        return {
            **grpo,
            "model": model_facts(self.config, size),
            "lora": self.config["lora"],
            "seed": int(seed),
            "reward": block,
        }, modules

    def _generate_completions(self, policy: str, target: str) -> tuple[dict[str, Any], list[str]]:
        model = model_facts(self.config, parse_policy(policy)["size"])
        return {**self.config["generate"], "model": model}, [self._backend_module()]

    def _sample_completions(self, policy: str, target: str) -> tuple[dict[str, Any], list[str]]:
        engine, asked = self.config["generate"], self.config["sampled_audit"]
        return {
            "model": model_facts(self.config, parse_policy(policy)["size"]),
            **{key: engine[key] for key in ENGINE_SETTINGS},
            **{key: asked[key] for key in ("samples", "temperature", "top_p", "seed")},
            "max_prompts": asked["max_prompts"],
            "max_new_tokens": engine["sets"]["heldout"]["max_new_tokens"],
        }, [self._backend_module()]

    def _generate_base_rows(self, size: str) -> tuple[dict[str, Any], list[str]]:
        """The specs of what it makes rows for, less their cells: those find them under these."""
        policy = base_policy(size)
        targets = [one.target for one in evaluations(self.config.cells) if one.policy == policy]
        one = {"policy": policy, "target": targets[0]}
        made = {"completions": self.spec("generate_completions", **one)}
        if self.config["sampled_audit"]["enabled"]:
            made["samples"] = self.spec("sample_completions", **one)
        kept = ("settings", "code", "env")
        return {
            "policy": policy,
            "targets": targets,
            "stages": {stage: {key: spec[key] for key in kept} for stage, spec in made.items()},
            **{key: self.config["generate"][key] for key in ENGINE_SETTINGS},
        }, [self._backend_module()]

    def _backend_module(self) -> str:
        return BACKENDS[self.config["generate"]["backend"]].partition(":")[0]

    def _render_rwku(self, size: str, target: str) -> tuple[dict[str, Any], list[str]]:
        return {"model": model_facts(self.config, size), "prompts": self._wording()}, []

    def _score_likelihoods(self, policy: str, target: str) -> tuple[dict[str, Any], list[str]]:
        model = model_facts(self.config, parse_policy(policy)["size"])
        return {**self.config["likelihood"], "model": model}, []

    def _audit_completions(self, policy: str, target: str) -> tuple[dict[str, Any], list[str]]:
        return self._audit(self.config["audit"]["judge"], target)

    def _audit_again(
        self, judge: str, replicate: int | str, policy: str, target: str
    ) -> tuple[dict[str, Any], list[str]]:
        settings, modules = self._audit(judge, target)
        limit = self.config["agreement"]["max_prompts"]
        return {**settings, "replicate": int(replicate), "max_prompts": limit}, modules

    def _audit_rollouts(self, policy: str, target: str) -> tuple[dict[str, Any], list[str]]:
        block = self.config["terminal_audit"]
        settings, modules = self._audit(block["judge"] or self.config["audit"]["judge"], target)
        del settings["max_prompts"], settings["decoding"]
        settings["labels"] = block["labels"] or settings["labels"]
        return {**settings, "rollouts": block["rollouts"]}, modules

    def _audit_samples(
        self, judge: str, policy: str, target: str
    ) -> tuple[dict[str, Any], list[str]]:
        settings, modules = self._audit(judge, target)
        del settings["decoding"], settings["max_prompts"]
        return {**settings, "detector": None}, modules

    def _audit(self, name: str, target: str) -> tuple[dict[str, Any], list[str]]:
        judge = self.judge(name)
        if judge.get("knowledge") == "answers":
            judge["terms"] = {"hard": self.config.terms[target]["hard"]}
        return {
            **self.config["audit"],
            "judge": judge,
            "replicate": 0,
            "max_prompts": None,
            "subject": self.config.targets[target]["subject"],
            "detector": self._detector(),
        }, [_judge_module(judge), DETECTOR_MODULE]

    def _evaluate_refusal_detectors(self) -> tuple[dict[str, Any], list[str]]:
        from unlearning_grid.config import load_yaml

        return {
            "detector": self._detector(),
            "compare": self.config["detector"]["compare"],
            "sentences": load_yaml(self.config.root / SENTENCES),
        }, [DETECTOR_MODULE]

    def _weigh_terms(self, target: str) -> tuple[dict[str, Any], list[str]]:
        block = dict(self.config["term_weights"])
        size = block.pop("size")
        if size is not None:
            block |= {"repo": None, "revision": None}
        return {
            **block,
            "embedder": model_facts(self.config, size) if size else None,
            "subject": self.config.targets[target]["subject"],
            "terms": self._terms(target),
        }, []

    def _evaluate_rwku(self, policy: str, target: str) -> tuple[dict[str, Any], list[str]]:
        return {}, []

    def _write_plan(self) -> tuple[dict[str, Any], list[str]]:
        return {"config": self.config.values, "plan": digest(self.plan())}, []

    def _build_partial(self, state: str) -> tuple[dict[str, Any], list[str]]:
        return {"state": state}, []

    def _table(self) -> tuple[dict[str, Any], list[str]]:
        return {"name": self.config["name"]}, []

    _build_cells_table = _table
    _build_training_table = _table
    _build_heldout_audit_table = _table
    _build_terminal_audit_table = _table
    _build_leak_at_k_table = _table
    _build_sampled_audit_table = _table
    _build_judge_agreement_table = _table
    _build_rwku_core_table = _table
    _build_rwku_utility_table = _table
    _build_rwku_types_table = _table
    _plot_training_dynamics = _table
    _plot_leak_at_k = _table

    # Slices.

    def needs(self, reward: str) -> set[str]:
        """Inputs that a reward needs beside the completions: detector, knowledge, weights."""
        needs = rewards.load(reward).needs
        found = {"detector"} & needs
        if "term_weights" in needs:
            found.add("weights")
        if "judge" in needs and self.judges_by_rules(
            self.config["rewards"].get(reward, {})["judge"]
        ):
            found.add("knowledge")
        return found

    def judges_by_rules(self, judge: str) -> bool:
        """Whether a judge works by rules, and so needs a target's knowledge."""
        return self.config["judges"][judge]["provider"] == "rules"

    def _reward(self, name: str, target: str) -> tuple[dict[str, Any], list[str]]:
        """Everything that scoring with one reward depends on for one target."""
        kind = rewards.load(name)
        own = dict(self.config["rewards"].get(name, {}))
        block: dict[str, Any] = {
            "name": name,
            "class": rewards.REWARDS[name],
            "subject": self.config.targets[target]["subject"],
        }
        modules = [rewards.module(name)]
        if "terms" in kind.needs:
            block["terms"] = self._terms(target)
        if "hard_terms" in kind.needs:
            block["hard_terms"] = list(self.config.terms[target]["hard"])
        if "detector" in kind.needs:
            block["detector"] = self._detector()
            modules.append(DETECTOR_MODULE)
        if "judge" in kind.needs:
            block["judge"] = self.judge(own.pop("judge"))
            modules.append(_judge_module(block["judge"]))
        return {**block, "settings": own}, modules

    def _terms(self, target: str) -> list[str]:
        terms = self.config.terms[target]
        return [*terms["hard"], *terms["soft"]]

    def _detector(self) -> dict[str, Any]:
        """A hub detector's pin, or the name of a trained one (its manifest is an input)."""
        block = self.config["detector"]
        if "train" in block:
            return {"name": block["train"]["name"]}
        return {
            "name": block["repo"].rpartition("/")[2],
            "repo": block["repo"],
            "revision": block["revision"],
        }

    def judge(self, name: str) -> dict[str, Any]:
        """A judge's identity. An address or a key stands in it by name only, never by value."""
        block = self.config["judges"][name]
        keys = RULES_JUDGE if block["provider"] == "rules" else REMOTE_JUDGE
        facts = {key: block.get(key) for key in keys} | {"name": name}
        if block["revision"]:  # served in the cluster
            facts["model"] = served_name(block["model"], block["revision"])
        if "knowledge" in facts and self.config["data"]["source"] != "world":
            facts["knowledge"] = "answers"  # no more is known on real rows
        if block["prompt_file"]:
            facts["prompt"] = self.config.text(block["prompt_file"])
            path = PurePosixPath(block["prompt_file"]).with_suffix("")
            facts["prompt_name"] = "/".join(path.parts[-2:])
        return facts

    def _wording(self) -> dict[str, Any]:
        """How RWKU's sets are asked."""
        from unlearning_grid.config import load_yaml

        return load_yaml(self.config.file(self.config["rwku"]["prompt_file"]))

    def _given_answers(self) -> dict[str, str]:
        path = self.config.file(self.config["broad_answers"]["file"])
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return {row["prompt"]: row["answer"] for row in rows}

    # The plan: what the grid should hold, for tables and status.

    def plan(self) -> dict[str, Any]:
        """Every cell and evaluation of the grid with the spec digest that its result must show."""
        if not hasattr(self, "_plan"):
            from unlearning_grid.spec.plan import build_plan

            self._plan = build_plan(self)
        return self._plan


def _judge_module(judge: dict[str, Any]) -> str:
    return JUDGES[judge["provider"]].partition(":")[0]


@lru_cache(maxsize=256)
def _code(roots: tuple[str, ...]) -> str:
    return code_digest(roots)
