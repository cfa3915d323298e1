"""What keeps jobs in the queue while they could only fail."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import EmbedderFailed, ServerError, StoreAway, StoreFull
from penstock.queues.options import Admission

if TYPE_CHECKING:
    from penstock.pipelines.documents.workshop import Workshop

__all__ = ["HoldingBack"]

_FIRST_S, _LONGEST_S = 1.0, 15.0
_EMBEDDER_S, _LONGEST_PARKED_S = 5.0, 300.0


class HoldingBack:
    """The gate of the queue: closed while a store is away or full.

    A job that has met such a store is tried again by the table; the others would only use up their
    attempts. When the store answers again one job goes ahead, and all others when it succeeds. An
    embedder that asks to be left alone holds back the documents of its RAG only.
    """

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._closed_until = 0.0
        self._wait_s = 0.0
        self._parked_until: dict[str, float] = {}

    @property
    def is_open(self) -> bool:
        return not self._wait_s

    async def failed(self, rag_id: str, error: Exception) -> None:
        """Heed what a job failed of."""
        now = time.monotonic()
        if isinstance(error, StoreAway | StoreFull) and now >= self._closed_until:
            self._wait_s = min(max(self._wait_s * 2, _FIRST_S), _LONGEST_S)
            self._closed_until = now + self._wait_s
        if isinstance(error, EmbedderFailed) and now >= self._parked_until.get(rag_id, 0.0):
            for_s = min(error.retry_after or _EMBEDDER_S, _LONGEST_PARKED_S)
            self._parked_until[rag_id] = now + for_s
            queue = self._workshop.queue.name
            with suppress(ServerError):  # then its documents fail one by one
                await self._workshop.app.queues.park(queue, rag_id, for_s, who="embedder")

    def succeeded(self) -> None:
        """Let all through: the stores do what they are asked to."""
        self._wait_s = self._closed_until = 0.0

    async def admit(self, queue: str, wanted: int) -> Admission:  # noqa: ARG002  there is one
        """As `Gate.admit`."""
        if not self._wait_s:
            return Admission(wanted)
        left_s = self._closed_until - time.monotonic()
        if left_s <= 0 and await self._workshop.is_fit():
            self._closed_until = time.monotonic() + self._wait_s
            return Admission(1, self._wait_s)
        return Admission(0, max(left_s, _FIRST_S))

    async def give_back(self, queue: str, count: int) -> None:  # noqa: ARG002  there is one
        """As `Gate.give_back`: the one that was let ahead was not there."""
        if count:
            self._closed_until = min(self._closed_until, time.monotonic())
