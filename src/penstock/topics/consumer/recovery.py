"""Messages delivered before: of earlier owners, due for a retry, or in a reply that was lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.throttled_log import RateLimitedLog
from penstock.topics.consumer.assignment import RENEWALS_PER_LEASE
from penstock.topics.consumer.fetch_budget import active_consumers
from penstock.topics.consumer.growth_barrier import GrowthBarriers
from penstock.topics.consumer.message_processor import MessageProcessor
from penstock.topics.consumer.owned_partition import (
    Item,
    OwnedPartition,
    PendingMessage,
    entry_id,
)
from penstock.topics.consumer.parking import ParkedIds
from penstock.topics.consumer.reader import Reader
from penstock.topics.message import Message

__all__ = ["Recovery", "Runner", "StrayAudit", "TrackedIds"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_PAGE = 200
_MOST_QUEUED = 1_000
_FIRST_PAUSE_S, _FULL_PAUSE_S = 0.001, 0.05
# While all that is due is in memory already.
_DUE_AGAIN_S = 0.5
# Retries that other processes noted (an earlier owner) are found at the latest after this long; of
# many consumers in a process each asks less often, so that asking stays cheap.
_DUE_EVERY_S, _DUE_EACH_S = 5.0, 0.1
_AUDIT_PAGE = 1_000
_AUDIT_EACH_S = 0.1


class Runner(Protocol):
    """What runs handlers in one of the orders."""

    async def run(self, owned: OwnedPartition) -> None: ...
    def left(self, owned: OwnedPartition) -> list[Item]: ...
    def parked(self, owned: OwnedPartition) -> list[ParkedIds]: ...
    def running(self, owned: OwnedPartition) -> list[bytes]: ...
    def forget(self, owned: OwnedPartition) -> None: ...


class TrackedIds:
    """Ids of all messages that this consumer has at one moment, in memory or parked."""

    def __init__(self, ids: set[bytes], parked: list[ParkedIds]) -> None:
        self._ids, self._parked = ids, parked
        self._parked_ids: set[bytes] | None = None

    def __len__(self) -> int:
        return len(self._ids) + sum(map(len, self._parked))

    def __contains__(self, id_: bytes) -> bool:
        if id_ in self._ids:
            return True
        if self._parked_ids is None:  # many, and seldom needed
            self._parked_ids = {one for parked in self._parked for one in parked}
        return id_ in self._parked_ids


class Recovery:
    """Queues messages that were delivered before."""

    def __init__(
        self, client: Client, processor: MessageProcessor, runner: Runner, barriers: GrowthBarriers
    ) -> None:
        self._processor, self._runner, self._barriers = processor, runner, barriers
        self._consumers = active_consumers(client)
        self._in_order = processor.subscription.keeps_retries_in_order

    async def feed(self, owned: OwnedPartition, reader: Reader) -> None:
        """Queue what earlier owners left, then let new messages be read; until the end.

        Later, whenever the reply to a read was lost, find what it may have delivered.
        """
        if not await self._barriers.passed_all_before(owned):
            return
        await self._queue_pending(owned, self._taken_over, owned.put)
        while not owned.closing:
            owned.start_reading()
            await owned.until_answered("read on", reader.read_again)
            await owned.until_strays_suspected()
            if not owned.closing:
                await self._queue_strays(owned, reader)

    async def retries(self, owned: OwnedPartition) -> None:
        """Queue failed messages again when they are due, until the partition closes."""
        while not owned.closing:
            most = _PAGE + owned.attempts.returning_count
            wait_s, due = await owned.due(most)
            again: list[Item] = []
            for one in due:
                if owned.attempts.returns(one.id):
                    message = self._processor.recovered(owned, one)
                    again += [] if message is None else [message]
            if again:
                owned.put(again)
            if len(due) == most or wait_s == 0:
                wait_s = _FULL_PAUSE_S if again else _DUE_AGAIN_S
            longest_s = self._consumers.interval_s(_DUE_EVERY_S, _DUE_EACH_S)
            await owned.retries.wait(
                longest_s if wait_s is None else min(wait_s, longest_s), owned.closed
            )

    async def _queue_strays(self, owned: OwnedPartition, reader: Reader) -> None:
        """Queue messages that were delivered and never arrived here.

        First every read that may still deliver is fenced off, else it could do so after the
        comparison; and what reads have brought is queued. So the order stays, and nothing comes
        twice.
        """
        await owned.refence()
        await owned.until_answered("read on", lambda: reader.exclude(owned))
        known, before = self.tracked(owned), self._processor.counts.strays
        await self._queue_pending(
            owned, lambda _, one: self._stray(owned, one, known), owned.put_strays
        )
        if count := self._processor.counts.strays - before:
            quiet.warning(
                f"{owned} strays",
                "%s: %d messages were delivered but did not arrive; they are handled now",
                owned,
                count,
            )

    async def _queue_pending(
        self,
        owned: OwnedPartition,
        make: Callable[[OwnedPartition, PendingMessage], Item | None],
        put: Callable[[list[Item]], None],
    ) -> None:
        start = "-"
        while not owned.closing:
            page = await owned.pending(start, _PAGE)
            items = [item for one in page if (item := make(owned, one)) is not None]
            if items:
                put(items)
            if not page:
                return
            start, pause_s = f"({page[-1].id.decode()}", _FIRST_PAUSE_S
            # As a rule it is a moment: most of it goes to a key that waits, and is parked.
            while owned.budget.is_full(_MOST_QUEUED) and await owned.wait_open(pause_s):
                pause_s = min(pause_s * 2, _FULL_PAUSE_S)

    def _taken_over(self, owned: OwnedPartition, pending: PendingMessage) -> Item | None:
        id_ = pending.id
        if owned.attempts.is_under_way(id_):
            return None  # it was due again, and the retry loop has brought it
        if pending.wait_ms and not self._in_order:
            owned.retries.add(id_, pending.wait_ms / 1000)  # the retry loop brings it back
            return None
        message = self._processor.recovered(owned, pending)
        if message is not None:
            self._processor.counts.recovered += 1
            wait_s = pending.wait_ms / 1000
            if pending.is_suspect and pending.attempts >= self._processor.policy.max_attempts:
                # If its process lives, it learns by its next beat that it has lost the partition,
                # and takes the attempt back.
                wait_s = 2 * owned.ttl_s / RENEWALS_PER_LEASE
            owned.attempts.inherited(id_, wait_s=wait_s, suspect=pending.is_suspect)
        return message

    def _stray(
        self, owned: OwnedPartition, pending: PendingMessage, known: TrackedIds
    ) -> Item | None:
        """Make a first delivery of a message whose first delivery did not arrive."""
        if pending.id in known or pending.wait_ms:
            return None
        if not pending.fields:
            return self._processor.recovered(owned, pending)  # records that it was trimmed
        self._processor.counts.strays += 1
        return [pending.id, pending.fields]

    def tracked(self, owned: OwnedPartition) -> TrackedIds:
        """Ids that are here. Taken before the server is asked: what ends meanwhile is included."""
        ids = owned.unacknowledged_ids() | owned.attempts.recorded_ids() | owned.retries.ids()
        for items in (owned.queued(), self._runner.left(owned)):
            # What has no fields is parked.
            ids.update(entry_id(item) for item in items if isinstance(item, Message) or item[1])
        return TrackedIds(ids, self._runner.parked(owned))


class StrayAudit:
    """Finds messages that were delivered to this consumer and are not here.

    After lost reads they are found at once. This is for every other cause, such as a program that
    reads under our name: without it they would stay pending until the partition has a new owner.

    A message that stays pending becomes the oldest pending one of its partition sooner or later, or
    stands behind one that waits for a retry. So one summary for each partition is enough as long as
    the oldest one changes. If it does not, it has to be here, and no more may be pending than what
    is here.
    """

    def __init__(
        self, client: Client, partitions: Iterable[OwnedPartition], recovery: Recovery
    ) -> None:
        self._client, self._partitions, self._recovery = client, partitions, recovery
        self._every_s = client.settings.topics.audit_s
        self._consumers = active_consumers(client)
        self._oldest: dict[OwnedPartition, bytes] = {}

    async def run(self) -> None:
        """Audit every `topics.audit_s` seconds until cancelled; less often, if there are many."""
        share = random.random()  # noqa: S311  of the first interval: so that consumers take turns
        while True:
            await asyncio.sleep(share * self._consumers.interval_s(self._every_s, _AUDIT_EACH_S))
            share = 1.0
            try:
                await self._audit()
            except ServerError as error:
                quiet.warning("audit", "cannot compare pending messages with those here: %s", error)

    async def _audit(self) -> None:
        partitions = [owned for owned in self._partitions if owned.readable]
        replies = await self._client.pipeline(
            [("XPENDING", owned.stream, owned.source.group) for owned in partitions]
        )
        before, self._oldest = self._oldest, {}
        for owned, reply in zip(partitions, replies, strict=True):
            if not isinstance(reply, ServerError) and reply[0]:
                pending, oldest = reply[:2]
                self._oldest[owned] = oldest
                if before.get(owned) == oldest and await self._has_strays(owned, oldest, pending):
                    owned.suspect_strays()

    async def _has_strays(self, owned: OwnedPartition, oldest: bytes, pending: int) -> bool:
        known = self._recovery.tracked(owned)
        if oldest in known and pending <= len(known):
            return False
        start, retries = "-", owned.retry_key
        # What was delivered less long ago may still be on its way here.
        head = ("XPENDING", owned.stream, owned.source.group, "IDLE", round(self._every_s * 1000))
        while owned.readable:
            rows = await self._client.call(*head, start, "+", _AUDIT_PAGE)
            unknown = [row[0] for row in rows if row[0] not in known]
            if unknown and None in await self._client.call("ZMSCORE", retries, *unknown):
                return owned.readable
            if len(rows) < _AUDIT_PAGE:
                return False
            start = f"({rows[-1][0].decode()}"
        return False
