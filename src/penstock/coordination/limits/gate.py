"""A limit in front of a queue: no job leaves while it is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordination.limits.answer import Answer
from penstock.coordination.limits.asking import Question
from penstock.queues.options import Admission

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import Limit

__all__ = ["LimitGate"]


class LimitGate:
    """Lets a queue's workers claim as many jobs as there are permits."""

    def __init__(self, limit: Limit, key: str) -> None:
        self._limit, self._key = limit, key
        self._granted: dict[str, Answer] = {}

    async def admit(self, queue: str, wanted: int) -> Admission:
        """Take up to `wanted` permits."""
        answer = await self._limit.ask(Question(self._key, wanted, fewest=1))
        self._granted[queue] = answer
        return Admission(answer.granted, answer.retry_after_s)

    async def give_back(self, queue: str, count: int) -> None:
        """Return permits of the last grant: the queue had fewer jobs."""
        answer = self._granted.pop(queue, None)
        if answer is not None and answer.permit is not None:
            permit, logged_ms = answer.permit
            used = max(0, answer.granted - count)
            await self._limit.settle(self._key, (permit, answer.granted, used, logged_ms))
