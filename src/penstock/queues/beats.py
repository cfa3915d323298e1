"""Signs of life of a process to its queues: those that are due together go as one command."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from penstock.errors import ServerError
from penstock.redis.keys import QueueKeyring
from penstock.redis.scripts import Scripts
from penstock.redis.wire import Reply

__all__ = ["QueueBeats"]

# Signs that come within this time go together.
_GATHER_S = 0.005
_TOGETHER = 200


class _Sign(NamedTuple):
    keys: QueueKeyring
    worker: str
    paused_ms: int
    answer: asyncio.Future[int]


class QueueBeats:
    """Gathers the signs of life of all workers of a process. To be used in the heartbeat thread.

    On a cluster queues do not share a slot, so each gets a command of its own; those for one node
    leave together, and a node that is away holds up no sign to another.
    """

    def __init__(self, *, cluster: bool) -> None:
        self._cluster = cluster
        self._gathered: list[_Sign] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def give(self, scripts: Scripts, keys: QueueKeyring, worker: str, paused_ms: int) -> int:
        """Give a sign of life: as the script `beat_queue`."""
        if self._cluster:
            return await scripts.beat_queue(keys=keys, worker=worker, paused_ms=paused_ms)
        loop = asyncio.get_running_loop()
        sign = _Sign(keys, worker, paused_ms, loop.create_future())
        self._gathered.append(sign)
        if len(self._gathered) == 1:
            loop.call_later(_GATHER_S, self._send_soon, scripts)
        return await sign.answer

    def _send_soon(self, scripts: Scripts) -> None:
        signs, self._gathered = self._gathered, []
        for first in range(0, len(signs), _TOGETHER):
            task = asyncio.create_task(
                self._send(scripts, signs[first : first + _TOGETHER]), name="queue beats"
            )
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, scripts: Scripts, signs: list[_Sign]) -> None:
        replies: list[Reply]
        try:
            replies = await scripts.beat_queues(
                keys=[sign.keys for sign in signs],
                signs=[(sign.worker, sign.paused_ms) for sign in signs],
            )
        except ServerError as error:
            replies = [error] * len(signs)
        for sign, reply in zip(signs, replies, strict=True):
            if sign.answer.done():
                continue
            if isinstance(reply, ServerError):
                sign.answer.set_exception(reply)
            else:
                sign.answer.set_result(reply)
