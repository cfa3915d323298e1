"""One partition that this consumer owns under an epoch, from its acquisition to its release.

Its state, its queue of messages and its acknowledgements are written here alone. Every call to the
server compares the epoch first: once another consumer owns the partition nothing is written, and
the partition is LOST.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from penstock.delivery.failures import Failure, read_failures
from penstock.delivery.queries import is_wrong_type
from penstock.errors import LeaseLost, Rejected, ServerError, TopicMissing
from penstock.redis.client import Client
from penstock.redis.wire import Argument, Reply
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog
from penstock.topics.consumer.attempts import Attempts, RetrySchedule
from penstock.topics.consumer.fetch_budget import FetchBudget, PartitionBudget
from penstock.topics.message import Fields, Message, Source
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.storage.message_id import id_numbers
from penstock.topics.storage.scripts import STALE, PartitionOwner, TopicScripts

__all__ = [
    "ConsumerCounts",
    "Item",
    "OwnedPartition",
    "PartitionState",
    "PendingMessage",
    "entry_id",
]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

P = ParamSpec("P")
T = TypeVar("T")

Item = list[Any] | Message
"""An entry as it was read; or a message whose next attempt has to be counted before it begins."""

_MOST_ACKS = 1_000
_MOST_UNCHARGED = 500
_MOST_PARKED = 250
_NO_GROUP = "NOGROUP"


@dataclass(slots=True)
class ConsumerCounts:
    """What a consumer has done since it was made."""

    handled: int = 0
    retried: int = 0
    dead: int = 0
    recovered: int = 0
    """Messages taken over from an owner that is gone."""
    refused: int = 0
    """Stale calls: the partition had passed to another owner."""
    leases_lost: int = 0
    vanished: int = 0
    """Messages that were trimmed while they were pending."""
    strays: int = 0
    """Messages whose delivery was lost on its way, found again and handled."""


class PendingMessage(msgspec.Struct, frozen=True):
    """A pending message as an earlier owner left it."""

    id: bytes
    attempts: int
    wait_ms: int
    """Until its retry is due, 1 if it is; 0 if it did not fail."""
    failures: tuple[Failure, ...]
    fields: Fields
    """None, if it is not in the stream any more."""
    pending: bool = True
    """Whether it is pending; a message that was acknowledged may still have a retry noted."""

    @property
    def is_suspect(self) -> bool:
        """Whether an attempt was begun, or may have been, and has no recorded outcome."""
        return self.attempts > (self.failures[-1].attempt if self.failures else 0)


class PartitionState(IntEnum):
    """States in the order in which a partition passes through them; only READING comes again."""

    OPENING = 0
    """Messages of earlier owners are being queued; new ones are not read yet."""
    READING = 1
    CHECKING = 2
    """The reply to a read was lost: nothing is read until its messages are found."""
    CLOSING = 3
    """Nothing more is begun; what is under way may end."""
    RELEASED = 4
    LOST = 5
    """Another consumer owns the partition, or it is gone."""


class OwnedPartition:
    """A partition owned under one epoch.

    `attempts`, `retries` and `budget` are objects of their own, changed by their methods.
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        counts: ConsumerCounts,
        budget: FetchBudget,
        *,
        owner: str,
        epoch: int,
        acquired_at: float,
        counts_starts: bool = False,
    ) -> None:
        topics = client.settings.topics
        self.source, self.epoch, self.ttl_s = source, epoch, topics.lease_ttl_s
        keys = PartitionKeys.of(client.keys, source.topic, source.partition)
        self._owner = PartitionOwner.of(keys, source.group, owner, epoch)
        self.stream, self.retry_key = self._owner.stream, self._owner.retry
        self.fence = self._owner.fence
        """The stream beside the partition's own that every read names."""
        self.attempts, self.retries = Attempts(), RetrySchedule()
        self.budget = PartitionBudget(budget)
        self.state = PartitionState.OPENING
        self.closing = self.lost = False
        """Derived from `state`: plain attributes, as they are read for each message."""
        self.closed = asyncio.Event()
        """Set when nothing more is to be begun."""
        self.deadline = acquired_at + self.ttl_s
        """Until then, by the monotonic clock, no other consumer can own the partition."""
        self.trouble: str | None = None
        """Which call the server has not answered yet, and why."""
        self.group_missing = False
        """Whether the server has lost the group: it has to be registered again."""
        self._not_attempts = 1 if counts_starts else 0
        """Deliveries that are no attempts. Where starts are counted, the delivery is not."""
        self._scripts, self._counts = TopicScripts.of(client), counts
        self._ttl_ms, self._most_bytes = round(self.ttl_s * 1000), topics.fetch_bytes
        self._fence_number = epoch
        self._queue: deque[list[Item]] = deque()
        """Chunks that were read and not yet handled."""
        self._to_ack: list[bytes] = []
        self._to_ack_failed: list[bytes] = []
        """Done after a failure: their retries and failures have to be removed as well."""
        self._unacknowledged: set[bytes] = set()
        """Done and sent; the server has not confirmed it."""
        self._loop = asyncio.get_running_loop()
        self._acking = asyncio.Lock()
        self._ack_wanted, self._arrived = asyncio.Event(), asyncio.Event()
        self._renewed, self._stray_check = asyncio.Event(), asyncio.Event()
        self._given_up = False
        self._lost = asyncio.Event()

    def __repr__(self) -> str:
        return (
            f"<OwnedPartition {self.source.topic}/{self.source.partition} epoch {self.epoch} "
            f"{self.state.name}>"
        )

    def __str__(self) -> str:
        source = self.source
        return f"partition {source.partition} of {source.topic} for {source.group}"

    # ---- states

    @property
    def readable(self) -> bool:
        """Whether new messages may be read."""
        return self.state is PartitionState.READING

    def start_reading(self) -> None:
        """All that was delivered before is queued: new messages may be read."""
        if not self.closing:
            self._stray_check.clear()
            self.state = PartitionState.READING

    def suspect_strays(self) -> None:
        """Read no further before messages that were delivered and did not arrive are found."""
        if self.readable:
            self.state = PartitionState.CHECKING
            self._stray_check.set()

    async def until_strays_suspected(self) -> None:
        await self._stray_check.wait()

    def close(self) -> None:
        """Begin nothing more; what is under way may end."""
        if not self.closing:
            self._enter(PartitionState.CLOSING)

    def give_up(self) -> None:
        """Keep nothing more: its share of the budget is free again."""
        self._given_up = True
        self.budget.drop(self.budget.buffered)

    def lose(self) -> None:
        """Another consumer owns the partition, or it is gone."""
        if self.state < PartitionState.RELEASED:  # a renewal after the release is stale as well
            self._counts.leases_lost += 1
            logger.warning("%s: lost, it has another owner or is gone", self)
            self.lost = True
            self._enter(PartitionState.LOST)
            self._ack_wanted.set()
            self._lost.set()

    def lose_group(self) -> None:
        """The server has lost the group: it is registered again, the partition acquired again."""
        self.group_missing = True
        self.lose()

    async def until_lost(self) -> None:
        await self._lost.wait()

    def _enter(self, state: PartitionState) -> None:
        self.state, self.closing = state, True
        self.closed.set()
        self._arrived.set()
        self.retries.wake()
        self._renewed.set()

    async def wait_open(self, seconds: float) -> bool:
        """Wait; False if the partition closes meanwhile."""
        if not self.closing and seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.closed.wait()
        return not self.closing

    # ---- messages to be handled

    def put(self, chunk: list[Item], size: int | None = None) -> None:
        """Queue messages of `size` bytes that were read."""
        if self._given_up:
            return  # the reply came too late: the next owner finds them pending
        self.budget.read(len(chunk), _size_of(chunk) if size is None else size)
        self._queue.append(chunk)
        self._arrived.set()

    def put_strays(self, strays: list[Item]) -> None:
        """Queue messages that come late: before those in the queue that were sent after them."""
        first = id_numbers(entry_id(self._queue[0][0])) if self._queue else (0, 0)
        early = [one for one in strays if id_numbers(entry_id(one)) < first]
        if early:
            self.put(early)
            self._queue.rotate(1)
        if len(early) < len(strays):
            self.put(strays[len(early) :])

    def take_back(self, items: Sequence[Item]) -> None:
        """Count messages that are in memory again and that no read brought."""
        self.budget.take(len(items), _size_of(items))

    async def next_chunk(self) -> list[Item] | None:
        """Return the next chunk, or None when nothing more is to be begun."""
        while not self._queue:
            if self.closing:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return None if self.closing else self._queue.popleft()

    def queued(self) -> Iterator[Item]:
        """Messages that were read and not taken by `next_chunk`."""
        return (item for chunk in self._queue for item in chunk)

    # ---- the lease

    async def until_certain(self) -> bool:
        """Whether the partition is still ours; waits for the renewal if the lease may be over."""
        while time.monotonic() >= self.deadline and not self.closing:
            self._renewed.clear()
            await self._renewed.wait()
        return not self.closing

    async def renew(self) -> None:
        """Extend the lease, or find out that it is lost."""
        await self._renew(self._scripts, lambda change: change())

    async def renew_from_thread(self, client: Client) -> None:
        """As `renew`, in the heartbeat thread and by its client."""
        await self._renew(TopicScripts.of(client), self._loop.call_soon_threadsafe)

    async def _renew(
        self, scripts: TopicScripts, in_loop: Callable[[Callable[[], None]], object]
    ) -> None:
        if self.state >= PartitionState.RELEASED:
            return
        sent_at = time.monotonic()
        if await scripts.renew_partition(self._owner, ttl_ms=self._ttl_ms):
            self.deadline = sent_at + self.ttl_s  # at once: a blocked loop reads it later
            in_loop(self._renewed.set)
        else:
            in_loop(self.lose)

    async def refence(self) -> None:
        """Let no read that was sent until now deliver anything, on any connection.

        The server's side of a connection may outlive ours: a read that waits there, or is still on
        its way, would take messages that never arrive.
        """
        number = self._fence_number + 1
        refence = self._scripts.refence_partition
        if await self._fenced("fence reads off", refence, number=number, ttl_ms=self._ttl_ms):
            self._fence_number, self.fence = number, f"{self._owner.fences}{number}"

    async def release(self, unbegun: Sequence[bytes]) -> None:
        """Give the partition up. Messages that were not begun are not charged an attempt."""
        self._enter(PartitionState.RELEASED)
        await self._scripts.release_partition(self._owner, unbegun=unbegun)

    # ---- acknowledgements

    def ack(self, id_: bytes) -> None:
        """Acknowledge a message soon, together with others."""
        if not self._to_ack:  # else it has been requested
            self._ack_wanted.set()
        self._to_ack.append(id_)

    def ack_all(self, ids: Iterable[bytes]) -> None:
        """Acknowledge messages soon."""
        self._to_ack.extend(ids)
        self._ack_wanted.set()

    def ack_failed(self, id_: bytes) -> None:
        """Acknowledge a message that failed before; its retry and failures are removed as well."""
        self._to_ack_failed.append(id_)
        self._ack_wanted.set()

    def unacknowledged_ids(self) -> set[bytes]:
        """Messages that are done, of which the server may not know."""
        return self._unacknowledged.union(self._to_ack, self._to_ack_failed)

    async def ack_until_lost(self) -> None:
        """Send acknowledgements until cancelled or lost."""
        while not self.lost:
            await self._ack_wanted.wait()
            self._ack_wanted.clear()
            await self.flush_acks()

    async def flush_acks(self) -> None:
        """Return when the server knows what is done by now, or the partition is lost."""
        async with self._acking:
            while (self._to_ack or self._to_ack_failed) and not self.lost:
                failed = self._to_ack_failed[:_MOST_ACKS]
                fine = self._to_ack[: _MOST_ACKS - len(failed)]
                del self._to_ack_failed[: len(failed)], self._to_ack[: len(fine)]
                try:
                    await self._send_acks(failed, fine)
                except BaseException:
                    # Repeating it is harmless, forgetting it would handle messages twice.
                    self._to_ack_failed[:0], self._to_ack[:0] = failed, fine
                    self._ack_wanted.set()
                    raise

    async def _send_acks(self, failed: list[bytes], fine: list[bytes]) -> None:
        ids = [*failed, *fine]
        self._unacknowledged.update(ids)
        send = self._scripts.ack_messages
        await self._fenced("acknowledge", send, failed_before=len(failed), ids=ids)
        if not self.lost:
            self._unacknowledged.difference_update(ids)
            if self.attempts.begun:
                self.attempts.acknowledged(ids)
            self._counts.handled += len(ids)

    # ---- attempts

    async def begin(self, messages: Sequence[Message]) -> list[Message]:
        """Count attempts before they are made; returns the messages that may be handled.

        Those that are not pending any more are left out. `message.attempt` is the number that is
        expected, and afterwards the one that was counted.
        """
        known: list[Argument] = []
        for message in messages:
            known += (message.entry_id, message.attempt - 1)
        numbers: list[int] | None = await self._fenced(
            "begin", self._scripts.begin_messages, not_attempts=self._not_attempts, known=known
        )
        if numbers is None:
            return []
        may_begin: list[Message] = []
        for message, number in zip(messages, numbers, strict=True):
            if number:
                message.attempt = number
                may_begin.append(message)
        self.attempts.counted(
            [message.entry_id for message in messages], [one.entry_id for one in may_begin]
        )
        return may_begin

    async def uncharge(self, ids: Sequence[bytes]) -> None:
        """Take back attempts at a partition that was lost while this process lives.

        A call whose outcome is unknown is not repeated: it would take back too much.
        """
        for start in range(0, len(ids), _MOST_UNCHARGED):
            some, failures = ids[start : start + _MOST_UNCHARGED], 0
            while True:
                try:
                    await self._scripts.uncharge_messages(self._owner, ids=some)
                    break
                except Rejected as error:
                    if not error.transient:
                        raise
                    failures += 1
                    await asyncio.sleep(retry_delay_s(failures))

    async def retry_later(
        self, message: Message, wait_s: float, failures: tuple[Failure, ...]
    ) -> None:
        """Let a failed message pend until its next attempt is due."""
        failed = (message.entry_id, round(wait_s * 1000), msgspec.json.encode(failures))
        await self._fenced("retry", self._scripts.retry_later, failed=failed)
        if not self.lost:
            self._counts.retried += 1

    async def park(self, ids: Sequence[bytes]) -> None:
        """Let messages that were fetched and not begun wait on the server, uncharged."""
        for start in range(0, len(ids), _MOST_PARKED):
            some = ids[start : start + _MOST_PARKED]
            await self._fenced("park", self._scripts.park_messages, ids=some)

    async def unpark(self, ids: Sequence[bytes]) -> list[list[Any]] | None:
        """Fetch parked messages again, without those that were trimmed; None if it is lost."""
        return await self._fenced("unpark", self._scripts.unpark_messages, ids=ids)

    # ---- what is pending on the server

    async def pending(self, start: str, count: int) -> list[PendingMessage]:
        """One page of what is pending, in the order of ids; shorter where messages are large."""
        read, most_bytes = self._scripts.pending_page, self._most_bytes
        rows: list[Reply] | None = await self._fenced(
            "read pending messages", read, start=start, count=count, most_bytes=most_bytes
        )
        return [self._pending_message(row) for row in rows or ()]

    async def due(self, count: int) -> tuple[float | None, list[PendingMessage]]:
        """Failed messages that are due, and seconds until the next (None: no retry waits).

        0 seconds: more are due, and were left out because messages are large. What is due by our
        own clock is included, whatever the server's clock is.
        """
        ids = self.retries.take_due()
        read, most_bytes = self._scripts.due_retries, self._most_bytes
        reply = await self._fenced(
            "read retries", read, count=count, ids=ids, most_bytes=most_bytes
        )
        wait_ms, *rows = (-1,) if reply is None else reply
        messages = [self._pending_message(row) for row in rows]
        if wait_ms == 0:  # not all of them came
            returned = {message.id for message in messages}
            self.retries.put_back(id_ for id_ in ids if id_ not in returned)
            return 0.0, messages
        waits_s = [] if wait_ms < 0 else [wait_ms / 1000]
        if (own_s := self.retries.next_s()) is not None:
            waits_s.append(own_s)
        return min(waits_s, default=None), messages

    def _pending_message(self, row: Reply) -> PendingMessage:
        id_, deliveries, wait_ms, failures, fields = row
        attempts = max(0, deliveries - self._not_attempts)
        return PendingMessage(
            id_, attempts, wait_ms, read_failures(failures), fields, deliveries > 0
        )

    # ---- calls

    async def until_answered(self, what: str, call: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat a call until the server has answered it; None if the partition is lost."""
        failures = 0
        while not self.lost:
            try:
                reply = await call()
            except ServerError as error:
                if str(error).startswith(_NO_GROUP):
                    self.lose_group()
                    return None
                if not error.transient and not is_wrong_type(error):
                    raise
                failures += 1
                self.trouble = f"cannot {what}: {error}"
                quiet.warning(f"{self} {what}", "%s: cannot %s yet: %s", self, what, error)
                await asyncio.sleep(retry_delay_s(failures))
            except LeaseLost:
                self._counts.refused += 1
                self.lose()
                return None  # also after the release, which is no loss
            except TopicMissing:
                self.lose()
                return None
            else:
                if failures:
                    self.trouble = None
                return reply
        return None

    async def _fenced(
        self,
        what: str,
        script: Callable[Concatenate[PartitionOwner, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """Call a script that compares the epoch until it is answered; None if it is lost."""

        async def call() -> T:
            reply = await script(self._owner, *args, **kwargs)
            if reply == STALE or reply is False:
                source = self.source
                raise LeaseLost(source.topic, source.group, source.partition, self.epoch)
            return reply

        return await self.until_answered(what, call)


def entry_id(item: Item) -> bytes:
    """The id of a message in its stream."""
    return item.entry_id if isinstance(item, Message) else item[0]


def _size_of(items: Sequence[Item]) -> int:
    return sum(
        sum(map(len, item.fields if isinstance(item, Message) else item[1])) for item in items
    )
