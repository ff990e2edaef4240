"""The policy that a job evaluates: tokenizer and model, loaded once and only when asked for."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unlearning_grid.models.load import load_model, load_tokenizer, locate, with_adapter
from unlearning_grid.runtime.job import Job


@dataclass
class Policy:
    """Base model of settings["model"] (or the input "model"), with the adapter of "policy"."""

    job: Job

    @cached_property
    def where(self) -> dict[str, Any]:
        """Where the base model's files are."""
        return locate(self.job, self.job.settings["model"])

    @cached_property
    def tokenizer(self) -> Any:
        """The base model's tokenizer."""
        return load_tokenizer(self.where)

    @cached_property
    def model(self) -> Any:
        """The base model, with the policy's adapter on top where it has one."""
        model = load_model(self.where)
        if "policy" in self.job.inputs:
            model = with_adapter(model, self.job.artefact("policy", "adapter"))
        return model
