"""The transformers library as an engine: where vLLM is absent, and for small models on a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from unlearning_grid.generate.backend import Decoding, Done
from unlearning_grid.models.policy import Policy
from unlearning_grid.models.sampling import Completion, generate
from unlearning_grid.runtime.job import Job


@dataclass
class TransformersBackend:
    """Batches of similar length through `generate`; batch_size null fits them to the memory."""

    job: Job
    policy: Policy
    longest: int

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int] | None,
        decoding: Decoding,
        done: Done,
    ) -> None:
        """As in generate.backend.Backend."""

        def batch_done(places: list[int], groups: list[list[Completion]]) -> None:
            for place, (completion,) in zip(places, groups, strict=True):
                done(place, completion)

        generate(
            self.policy.model,
            self.policy.tokenizer,
            prompts,
            batch_size=self.job.settings["batch_size"],
            seeds=seeds,
            done=batch_done,
            **decoding.facts,
        )
