"""vLLM as an engine: continuous batching, LoRA adapters served as adapters and not merged.

The engine runs inside this process: its scheduling is then the same each time, and no engine of
its own outlives a killed job. Graph capture and compilation are left out, since a job generates for
seconds and capturing takes as long; prefix caching too, so that no completion depends on another.
"""

# pyright: reportMissingImports=false
# vLLM has an environment of its own.

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from unlearning_grid.errors import UserError
from unlearning_grid.generate.backend import Decoding, Done
from unlearning_grid.generate.engine_errors import explained
from unlearning_grid.models.policy import Policy
from unlearning_grid.models.sampling import completion_of, end_ids, shipped_config
from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

# Read by vLLM when it is imported; what the user has set stays.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else it takes cores that other jobs compute on
}
MOST_SEQUENCES = {"cuda": 256, "cpu": 64}


class VllmBackend:
    """An engine that is started once and then completes prompts of any set.

    Raises UserError when vLLM is not installed or the engine does not start, with the setting to
    change.
    """

    def __init__(self, job: Job, policy: Policy, longest: int) -> None:
        began = time.monotonic()
        self.tokenizer = policy.tokenizer
        self.ends = end_ids(shipped_config(policy.where), policy.tokenizer)
        adapter = job.artefact("policy", "adapter") if "policy" in job.inputs else None
        self.llm = _start(job, policy.where, adapter, longest)
        self.lora = _lora(adapter)
        self.seconds_to_start = time.monotonic() - began
        log.info("vLLM started in %.0f s", self.seconds_to_start)

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int] | None,
        decoding: Decoding,
        done: Done,
    ) -> None:
        """As in generate.backend.Backend."""
        ends = set(self.ends)
        for place, output in self.outputs(prompts, seeds, decoding):
            done(place, completion_of(self.tokenizer, output.token_ids, ends))

    def outputs(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int] | None,
        decoding: Decoding,
        logprobs: int | None = None,
    ) -> Any:
        """Yield (place, vLLM's CompletionOutput) as prompts get ready; ids end with the end token.

        logprobs: how many log-probabilities per token come along (before any penalty).
        """
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        for place, ids in enumerate(prompts):
            params = SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                top_k=0,
                repetition_penalty=decoding.repetition_penalty,
                max_tokens=decoding.max_new_tokens,
                seed=seeds[place] if seeds is not None else None,
                stop_token_ids=self.ends,
                ignore_eos=True,  # the end tokens are all in the list above
                detokenize=False,
                logprobs=logprobs,
            )
            prompt = {"prompt_token_ids": [int(token) for token in ids]}
            engine.add_request(str(place), prompt, params, lora_request=self.lora)
        while engine.has_unfinished_requests():
            for request in engine.step():
                if request.finished:
                    yield int(request.request_id), request.outputs[0]


def _start(job: Job, where: Mapping[str, Any], adapter: Path | None, longest: int) -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM
        from vllm.config.lora import MaxLoRARanks
        from vllm.platforms import current_platform
    except ImportError as error:
        raise UserError(
            f"generate.backend: vllm cannot be imported here ({error}); make its environment with "
            "`make vllm`, name another one in generate.python, run with --sdm conda, or set "
            "generate.backend to transformers"
        ) from error
    kind = "cpu" if current_platform.is_cpu() else "cuda"
    share = job.settings["vllm_memory_share"] / job.gpu_share
    try:
        return LLM(
            model=where["location"],
            revision=where["revision"],
            dtype=where["dtype"],
            load_format="safetensors",
            generation_config="vllm",  # what the model ships decides nothing
            seed=0,
            max_model_len=longest,
            max_num_seqs=MOST_SEQUENCES[kind],
            gpu_memory_utilization=share,
            enforce_eager=True,
            enable_prefix_caching=False,
            enable_lora=adapter is not None,
            max_lora_rank=served_rank(adapter, get_args(MaxLoRARanks)) if adapter else 16,
            max_loras=1,
            disable_log_stats=True,
        )
    except Exception as error:
        raise explained(error, share, longest) from error


def served_rank(adapter: Path, offered: Sequence[int]) -> int:
    """The smallest rank that vLLM offers and the adapter fits in; its default is too small.

    Raises UserError for an adapter of a higher rank than any.
    """
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    rank = max([config["r"], *(config.get("rank_pattern") or {}).values()])
    fitting = [number for number in sorted(offered) if number >= rank]
    if not fitting:
        raise UserError(
            f"lora.rank: vLLM serves adapters up to rank {max(offered)}, this one has {rank}; "
            "lower lora.rank, or set generate.backend to transformers"
        )
    return fitting[0]


def _lora(adapter: Path | None) -> Any:
    if adapter is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", 1, str(adapter.resolve()))
