"""What was delivered before: taken over in the order of ids, found again, or due for a retry."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from penstock.quiet import RateLimitedLog
from penstock.topics.barrier import Barriers
from penstock.topics.claim import Left
from penstock.topics.crowd import Crowd
from penstock.topics.held import Held, Item, entry_id
from penstock.topics.message import Message
from penstock.topics.ownership import RENEWALS_PER_LEASE
from penstock.topics.parked import Parked
from penstock.topics.work import Work

__all__ = ["InHand", "Recovery"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_PAGE = 200
_MOST_QUEUED = 1_000
_FIRST_PAUSE_S, _LOOK_FOR_ROOM_S = 0.001, 0.05
# While all that is due is in hand already.
_LOOK_AGAIN_S = 0.5
# Retries that other processes noted (an earlier owner) are found at the latest after this long; of
# many consumers in a process each looks less often, so that looking stays cheap.
_LOOK_EVERY_S, _LOOK_EACH_S = 5.0, 0.1


class Runner(Protocol):
    """What knows which messages are in hand."""

    def left(self, held: Held) -> list[Item]: ...
    def parked(self, held: Held) -> list[Parked]: ...


class InHand:
    """Ids that are in our hands at one moment, be they parked on the server."""

    def __init__(self, ids: set[bytes], parked: list[Parked]) -> None:
        self._ids, self._parked = ids, parked
        self._parked_ids: set[bytes] | None = None

    def __len__(self) -> int:
        return len(self._ids) + sum(map(len, self._parked))

    def __contains__(self, id_: bytes) -> bool:
        if id_ in self._ids:
            return True
        if self._parked_ids is None:  # many, and seldom asked for
            self._parked_ids = {one for parked in self._parked for one in parked}
        return id_ in self._parked_ids


class Recovery:
    """Queues messages that the server counts as delivered but nobody handles."""

    def __init__(
        self,
        work: Work,
        runner: Runner,
        barriers: Barriers,
        ready: Callable[[Held], Awaitable[None]],
        reads_ended: Callable[[Held], Awaitable[None]],
        crowd: Crowd,
    ) -> None:
        self._work, self._runner, self._barriers, self._ready = work, runner, barriers, ready
        self._reads_ended, self._crowd = reads_ended, crowd
        self._in_order = work.subscription.keeps_retries_in_order

    async def feed(self, held: Held) -> None:
        """Queue what earlier owners left, then let new messages be read; until the end.

        Later, whenever the answer to a read was lost, look for what it may have delivered.
        """
        if not await self._barriers.passed_all_before(held):
            return
        await self._queue_pending(held, self._taken_over, held.put)
        while not held.closing:
            held.strayed.clear()
            held.readable = True
            await held.surely("read on", lambda: self._ready(held))
            await held.strayed.wait()
            if not held.closing:
                await self._queue_strays(held)

    async def retries(self, held: Held) -> None:
        """Queue failed messages again when they are due, until the partition closes."""
        while not held.closing:
            held.retry_at, most = None, _PAGE + len(held.returning)
            wait_s, lefts = await held.due(most)
            again: list[Item] = []
            for left in lefts:
                if left.id not in held.returning:
                    held.returning.add(left.id)
                    message = self._work.recovered(held, left)
                    again += [] if message is None else [message]
            if again:
                held.put(again)
            if len(lefts) == most or wait_s == 0:
                wait_s = _LOOK_FOR_ROOM_S if again else _LOOK_AGAIN_S
            await self._until_due(held, wait_s)

    async def _until_due(self, held: Held, wait_s: float | None) -> None:
        """Wait for the next retry, be it noted while the server was asked."""
        longest_s = self._crowd.interval_s(_LOOK_EVERY_S, _LOOK_EACH_S)
        at = time.monotonic() + min(longest_s if wait_s is None else wait_s, longest_s)
        held.retry_at = at if held.retry_at is None else min(at, held.retry_at)
        while not held.closing and (rest := held.retry_at - time.monotonic()) > 0:
            held.retries_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await held.retries_changed.wait()

    async def _queue_strays(self, held: Held) -> None:
        """Queue messages that were delivered and never arrived here.

        First every read that may still deliver is fenced off, else it could do so after this look;
        and what reads have brought is in hand. So the order stays, and nothing comes twice.
        """
        await held.refence()
        await held.surely("read on", lambda: self._reads_ended(held))
        known, before = self.in_hand(held), self._work.counts.strays
        await self._queue_pending(
            held, lambda _, left: self._stray(held, left, known), held.put_strays
        )
        if found := self._work.counts.strays - before:
            quiet.warning(
                f"{held} strays",
                "%s: %d messages were delivered but did not arrive; they are handled now",
                held,
                found,
            )

    async def _queue_pending(
        self,
        held: Held,
        make: Callable[[Held, Left], Item | None],
        put: Callable[[list[Item]], None],
    ) -> None:
        start = "-"
        while not held.closing:
            page = await held.pending(start, _PAGE)
            items = [item for left in page if (item := make(held, left)) is not None]
            if items:
                put(items)
            if not page:
                return
            start, pause_s = f"({page[-1].id.decode()}", _FIRST_PAUSE_S
            # As a rule it is a moment: most of it goes to a key that waits, and is parked.
            while held.is_full(_MOST_QUEUED) and await held.wait_open(pause_s):
                pause_s = min(pause_s * 2, _LOOK_FOR_ROOM_S)

    def _taken_over(self, held: Held, left: Left) -> Item | None:
        if left.id in held.returning or left.id in held.begun:
            return None  # it was due again, and the retry loop has brought it
        if left.wait_ms and not self._in_order:
            held.retry_in(left.id, left.wait_ms / 1000)  # the retry loop brings it back
            return None
        message = self._work.recovered(held, left)
        if message is not None:
            self._work.counts.recovered += 1
            held.inherited.add(left.id)
            if left.wait_ms:
                held.waits[left.id] = left.wait_ms / 1000
            if left.is_suspect:
                held.suspects.add(left.id)
                if left.attempts >= self._work.policy.max_attempts:
                    # If its process lives, it learns by its next beat that it has lost the
                    # partition, and takes the attempt back.
                    held.waits[left.id] = 2 * held.claim.ttl_s / RENEWALS_PER_LEASE
        return message

    def in_hand(self, held: Held) -> InHand:
        """Ids in our hands. Taken before the server is asked: what ends meanwhile is in it."""
        known = held.unsettled_ids() | held.returning | set(held.history) | held.retrying_ids()
        for chunk in (*held.queue, self._runner.left(held)):
            # What has no fields is parked.
            known.update(entry_id(item) for item in chunk if isinstance(item, Message) or item[1])
        return InHand(known, self._runner.parked(held))

    def _stray(self, held: Held, left: Left, known: InHand) -> Item | None:
        """Make a first delivery of a message whose first delivery did not arrive."""
        if left.id in known or left.wait_ms:
            return None
        if not left.fields:
            return self._work.recovered(held, left)  # notes that it was trimmed away
        self._work.counts.strays += 1
        return [left.id, left.fields]
