"""What an engine must do to stand behind `generate.backend`: one way to ask, the same answers.

Prompts are token ids, so that no engine's own template or tokenizer decides. Every engine stops at
the same tokens (`models.sampling.end_ids`), turns ids into text with the same function, and takes
every sampling parameter from `Decoding`, none from what a model ships.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from unlearning_grid.models.sampling import Completion

Done = Callable[[int, Completion], None]


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen. Temperature 0 is greedy.

    repetition_penalty: of every token in the prompt and the completion so far
    (`models.sampling.generate`); 1.0 is none.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    @property
    def facts(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


class Backend(Protocol):
    """An engine with one policy loaded. Made with (job, policy, longest).

    job: its settings hold the engine's own; policy: a models.policy.Policy; longest: prompt and
    completion together have at most so many tokens.
    """

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int] | None,
        decoding: Decoding,
        done: Done,
    ) -> None:
        """Complete every prompt once; call `done` with its place and completion when it is ready.

        seeds: one per prompt where the temperature is above 0. What is sampled depends on the
        prompt and its seed alone, up to rounding, not on what runs beside it.
        """
        ...
