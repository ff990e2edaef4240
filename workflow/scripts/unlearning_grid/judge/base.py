"""What every judge shares: what it is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FAILURES = ("refused", "truncated", "invalid", "filtered", "unavailable")
"""Why there is no verdict: the judge declined; its reply was cut off; it was no verdict; a content
filter held it back; no reply could be had."""

Pair = tuple[str, str]
"""(prompt, completion)."""


@dataclass(frozen=True)
class Verdict:
    """One judge's word on one completion.

    Attributes:
        labels: field -> yes or no (None where this judge cannot decide it); None as a whole when
            there is no verdict, which is then missing and never a "no".
        failure: why there is no verdict, one of FAILURES.
        request: key of the request in the judge cache; None for a judge that asks nobody.
        kind: class of the completion in a closed world (labels.CLASSES).
    """

    labels: Mapping[str, bool | None] | None
    failure: str | None = None
    request: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        if (self.labels is None) != (self.failure is not None):
            raise ValueError("a verdict has either labels or a failure")
        if self.failure is not None and self.failure not in FAILURES:
            raise ValueError(f"failure {self.failure!r} is unknown; one of {FAILURES}")


@dataclass(frozen=True)
class JudgeContext:
    """What a judge works with beside its block in the spec.

    Attributes:
        subject: the person to forget, as RWKU spells the name.
        knowledge: file of what a rules judge knows about the target.
        requests_at_once: how many requests may be open at a time.
        replicate: 0 for the first opinion; another number asks the same question anew.
        cache: folder of the judge cache; None keeps nothing.
        stop_requested: whether the job was asked to stop, looked at while replies are awaited.
    """

    subject: str
    knowledge: Path | None = None
    requests_at_once: int = 16
    replicate: int = 0
    cache: Path | None = None
    stop_requested: Callable[[], bool] = lambda: False


class Judge(Protocol):
    """Labels completions, a whole batch at a time, in order.

    Attributes:
        gold_recall: for a judge that knows gold answers and no more, the share of them that it
            would call a semantic leak, said whole ("whole") or by their longest word ("part");
            else {}.
        from_detector: labels that repeat the refusal detector, and so tell nothing beside it.
        counts: requests so far: asked, cached, sent, failed by type, tokens; empty for a judge that
            asks nobody.
    """

    counts: Mapping[str, int]

    from_detector: frozenset[str]

    @property
    def gold_recall(self) -> Mapping[str, float]: ...

    def rubric(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The fields of labels.RUBRIC for each (prompt, completion)."""
        ...

    def audit(
        self, pairs: Sequence[Pair], fields: Sequence[str], refusal: Sequence[float | None]
    ) -> list[Verdict]:
        """The labels `fields` (labels.SIX or labels.FIVE) for each (prompt, completion).

        `refusal`: the detector's probability for each completion, for judges that have no other way
        to tell.
        """
        ...
