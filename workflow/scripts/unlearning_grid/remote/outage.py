"""In which order requests are tried, and when a server counts as down.

A text can make a server fail each time that it is asked (HTTP 500 for good), and a server that is
down fails for each text. Only another request tells the two apart.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterable, Mapping

from unlearning_grid.remote.requests import Request

Waiting = tuple[str, Request]
"""(key, request)."""


class Pending:
    """The requests of a batch that are still to be tried. Threads share it.

    After a request that was given up the next ones are probes: few tries each, of requests from
    anywhere in the batch, because neighbours may have the same fault. A reply to anything ends
    that. A probe that failed is put aside and tried in full later; when `limit` of them failed
    without a reply in between, the server is `down`. Requests given up do not count: those that
    were open at the same time may all have the fault.
    """

    def __init__(
        self, requests: Mapping[str, Request], failures: Mapping[str, int], limit: int
    ) -> None:
        """Start with those that have failed least in earlier runs, or each would end like them."""
        ordered = sorted(requests.items(), key=lambda item: failures.get(item[0], 0))
        self.down = False
        self._limit = limit
        self._fresh, self._aside = _split(ordered, failures)
        self._doubt = False
        self._probes_failed = 0
        self._lock = threading.Lock()

    def take(self) -> tuple[str, Request, bool] | None:
        """(key, request, whether it is a probe) of the next one; None when nothing waits.

        Each that was taken comes back by `failed`, when it got no reply, or is done.
        """
        with self._lock:
            probe = self._doubt
            if not self._fresh and not self._aside:
                return None
            queue = self._fresh or self._aside
            at = random.randrange(len(self._fresh)) if probe and self._fresh else 0
            key, request = queue[at]
            del queue[at]
            return key, request, probe

    def replied(self) -> None:
        """Note that the server answers."""
        with self._lock:
            self._doubt, self._probes_failed = False, 0

    def failed(self, key: str, request: Request, probe: bool) -> bool:
        """Note that one got no reply; whether it is to be tried again, after all others."""
        with self._lock:
            self._doubt = True
            self._probes_failed += probe
            self.down = self.down or self._probes_failed >= self._limit
            again = probe and not self.down
            if again:
                self._aside.append((key, request))
            return again


def _split(
    ordered: Iterable[Waiting], failures: Mapping[str, int]
) -> tuple[deque[Waiting], deque[Waiting]]:
    fresh, known = deque[Waiting](), deque[Waiting]()
    for key, request in ordered:
        (known if failures.get(key) else fresh).append((key, request))
    return fresh, known
