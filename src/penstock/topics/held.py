"""One partition that a consumer owns: every word to the server about it carries its epoch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

from penstock.delivery.failures import Failure
from penstock.delivery.looking import is_wrong_type
from penstock.errors import LeaseLost, Rejected, ServerError, TopicMissing
from penstock.quiet import RateLimitedLog
from penstock.redis.scripts import Scripts
from penstock.runtime.backoff import retry_delay_s
from penstock.topics.claim import Claim, Left
from penstock.topics.looking import id_numbers
from penstock.topics.message import Fields, Message
from penstock.topics.room import Room

__all__ = ["Counts", "Held", "Item", "entry_id"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

T = TypeVar("T")

Item = list[Any] | Message
"""An entry as it was read; or a message whose next attempt has to be counted before it begins."""

_MOST_AT_ONCE = 1_000
_MOST_UNCHARGED = 500
_MOST_PARKED_AT_ONCE = 250
_NO_GROUP = "NOGROUP"
# Of messages up to this size, in bytes, the room need not know at once that they have left.
_SMALL = 1024


@dataclass(slots=True)
class Counts:
    """What a consumer has done since it was made."""

    handled: int = 0
    retried: int = 0
    dead: int = 0
    recovered: int = 0
    """Messages taken over from an owner that is gone."""
    refused: int = 0
    """Acknowledgements and the like that came too late: the partition had passed on."""
    leases_lost: int = 0
    vanished: int = 0
    """Messages that were trimmed away while they were pending."""
    strays: int = 0
    """Messages whose delivery was lost on its way here, found again and handled."""


class Held:
    """A partition owned under one epoch, from `acquire` to `release` or to its loss."""

    def __init__(self, claim: Claim, counts: Counts, room: Room) -> None:
        self.source = claim.source
        self.claim = claim
        self.stream = claim.keys.stream
        self.queue: deque[list[Item]] = deque()
        """Chunks that were read and not yet handled."""
        self.buffered = self._bytes = self._dropped = 0
        """Messages in `queue` and in the hands of the runner, and what they take up; and those that
        have left, of which the room does not know yet."""
        self._dropped_together = 1
        self.history: dict[bytes, tuple[Failure, ...]] = {}
        """Messages that failed or were taken over, and how attempts at them failed: first, last."""
        self.inherited: set[bytes] = set()
        """Messages that were taken over and not yet begun here."""
        self.suspects: set[bytes] = set()
        """Messages that were taken over from a process that may have died of them."""
        self.begun: set[bytes] = set()
        """Messages of which an attempt was counted here and has come to no end on the server."""
        self.returning: set[bytes] = set()
        """Messages that are queued again since their retry is due."""
        self.waits: dict[bytes, float] = {}
        """Seconds that messages taken over still have to wait for their next attempt."""
        self.retry_at: float | None = None
        """When, by the monotonic clock, the next failed message may be due."""
        self.retries_changed = asyncio.Event()
        self._retry_times: list[tuple[float, bytes]] = []
        self.unsettled: set[bytes] = set()
        """Done, but the server does not know yet."""
        self.readable = self.sized = False
        """Whether new messages may be read: all that earlier owners left has been queued. And
        whether some have been read, so that their size is known."""
        self.strayed = asyncio.Event()
        """Set when messages may be pending that never arrived here."""
        self.trouble: str | None = None
        """What the server has not answered yet, and why."""
        self.closing = self.lost = self._released = False
        self.arrived = asyncio.Event()
        self.deadline = 0.0
        """Until then, by the monotonic clock, nobody else can own the partition."""
        self.when_lost: Callable[[], object] | None = None
        """Called once when the partition passes to somebody else."""
        self.when_group_gone: Callable[[], object] | None = None
        """Called when the server turns out not to know the group any more."""
        self._counts, self._room = counts, room
        self.finished: list[bytes] = []
        """Ids to be acknowledged; whoever appends calls `wake`, so that it is done soon."""
        self._finished_after_failure: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._settling = asyncio.Lock()
        self._wake = asyncio.Event()
        self.wake = self._wake.set
        self._renewed = asyncio.Event()
        self.closed = asyncio.Event()  # when nothing more is to be begun

    def __repr__(self) -> str:
        return f"<Held {self.source.topic}/{self.source.partition} epoch {self.epoch}>"

    def __str__(self) -> str:
        source = self.source
        return f"partition {source.partition} of {source.topic} for {source.group}"

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    @property
    def fence(self) -> str:
        return self.claim.fence

    # ---- reading

    def put(self, chunk: list[Item], size: int | None = None) -> None:
        """Queue what was read: `size` bytes."""
        if size is None:
            size = _size_of(chunk)
        self.sized = True
        self._dropped_together = self._room.together if size <= _SMALL * len(chunk) else 1
        self.queue.append(chunk)
        self._take(len(chunk), size)
        self.arrived.set()

    def put_strays(self, strays: list[Item]) -> None:
        """Queue messages that come late: before those in the queue that were sent after them."""
        first = id_numbers(entry_id(self.queue[0][0])) if self.queue else (0, 0)
        early = [one for one in strays if id_numbers(entry_id(one)) < first]
        if early:
            self.put(early)
            self.queue.rotate(1)
        if len(early) < len(strays):
            self.put(strays[len(early) :])

    def suspect_strays(self) -> None:
        """Read no further before it is known whether messages were delivered and did not arrive."""
        self.readable = False
        self.strayed.set()

    async def next_chunk(self) -> list[Item] | None:
        """Return the next chunk, or None when nothing more is to be begun."""
        while not self.queue:
            if self.closing or self.lost:
                return None
            self.arrived.clear()
            await self.arrived.wait()
        return None if self.closing or self.lost else self.queue.popleft()

    def is_full(self, most: int) -> bool:
        """Whether there are more than `most` messages, or so many bytes that others have to wait.

        A partition that has nothing in hand is never full.
        """
        return self.buffered > most or (self.buffered > 0 and not self._room.has_bytes)

    def fitting(self, size: int) -> int:
        """How many messages of late fit into so many bytes, at least one."""
        return self._room.sizes.fitting(size)

    def take(self, items: Sequence[Item]) -> None:
        """Note that messages have come into the runner's hands that no read brought."""
        self._take(len(items), _size_of(items))

    def _take(self, count: int, size: int) -> None:
        self.buffered += count
        self._bytes += size
        self._room.take(count, size)

    def drop(self, count: int) -> None:
        """Note that messages have left the runner's hands; of many the room hears together."""
        self.buffered -= count
        self._dropped += count
        if self._dropped >= self._dropped_together or self._room.waiting or not self.buffered:
            self.give_back()

    def give_back(self) -> None:
        """Let the room know of all that has left the runner's hands."""
        count, self._dropped = self._dropped, 0
        if count:
            size = self._bytes * count // (self.buffered + count)
            self._bytes -= size
            self._room.give_back(count, size)

    def close(self) -> None:
        """Begin nothing more; what is under way may end."""
        self.closing = True
        self.closed.set()
        self.arrived.set()
        self.retries_changed.set()
        self._renewed.set()

    def lose(self) -> None:
        """Note that the partition has passed to somebody else."""
        if not self.lost:
            self.lost = True
            self._counts.leases_lost += 1
            logger.warning("%s: lost, it has another owner or is gone", self)
            if self.when_lost is not None:
                self.when_lost()
        self.close()
        self._wake.set()

    def group_gone(self) -> None:
        """The server has lost the group: it is registered again, and the partition taken anew."""
        if self.when_group_gone is not None:
            self.when_group_gone()
        self.lose()

    async def until_certain(self) -> bool:
        """Whether the partition is still ours; waits for the renewal if the lease may be over."""
        while time.monotonic() >= self.deadline and not self.closing:
            self._renewed.clear()
            await self._renewed.wait()
        return not self.closing

    async def wait_open(self, seconds: float) -> bool:
        """Wait; False if the partition is to be given up meanwhile."""
        if not self.closing and seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.closed.wait()
        return not self.closing

    def retry_in(self, id_: bytes, seconds: float) -> None:
        """Note that a failed message is due again after a while."""
        at = time.monotonic() + seconds
        heappush(self._retry_times, (at, id_))
        if self.retry_at is None or at < self.retry_at:
            self.retry_at = at
            self.retries_changed.set()

    # ---- the lease

    def held_since(self, sent_at: float) -> None:
        """Note that the server granted or renewed the lease after `sent_at`."""
        self.deadline = sent_at + self.claim.ttl_s
        self._renewed.set()

    async def renew(self) -> None:
        """Hold the partition for longer, or find out that it is lost."""
        if self._released or self.lost:
            return
        sent_at = time.monotonic()
        try:
            await self.claim.renew()
        except LeaseLost:
            self.lose()
        else:
            self.held_since(sent_at)

    async def keep(self, scripts: Scripts) -> None:
        """As `renew`, in the heartbeat thread and on its connection."""
        if self._released or self.lost:
            return
        sent_at = time.monotonic()
        try:
            await self.claim.renew(scripts)
        except LeaseLost:
            self._loop.call_soon_threadsafe(self._found_lost)
        else:
            self.deadline = sent_at + self.claim.ttl_s  # at once: a blocked loop reads it later
            self._loop.call_soon_threadsafe(self._renewed.set)

    def _found_lost(self) -> None:
        if not self._released:  # a renewal that comes after the release is refused, too
            self.lose()

    async def refence(self) -> None:
        """Let no read that was sent until now deliver anything."""
        await self.surely("fence reads off", self.claim.refence)

    async def release(self, unbegun: Sequence[bytes]) -> None:
        """Give the partition up. No attempt is charged for what was fetched but not begun."""
        self._released = True
        await self.claim.release(unbegun)

    # ---- what becomes of messages

    def done(self, id_: bytes, *, failed_before: bool = False) -> None:
        """Acknowledge soon; many go together."""
        if failed_before:
            self._finished_after_failure.append(id_)
        else:
            self.finished.append(id_)
        self._wake.set()

    def retrying_ids(self) -> set[bytes]:
        """Failed messages that wait for their time, as far as this owner knows of them."""
        return {id_ for _, id_ in self._retry_times}

    def unsettled_ids(self) -> set[bytes]:
        return self.unsettled.union(self.finished, self._finished_after_failure)

    async def settle_for_ever(self) -> None:
        """Tell the server what is done, until cancelled or lost."""
        while not self.lost:
            await self._wake.wait()
            self._wake.clear()
            await self.settle()

    async def settle(self) -> None:
        """Tell the server what is done by now; returns when it knows, or the partition is lost."""
        async with self._settling:
            while (self.finished or self._finished_after_failure) and not self.lost:
                failed = self._finished_after_failure[:_MOST_AT_ONCE]
                fine = self.finished[: _MOST_AT_ONCE - len(failed)]
                del self._finished_after_failure[: len(failed)], self.finished[: len(fine)]
                try:
                    await self._settle_now(failed, fine)
                except BaseException:
                    # Repeating it is harmless, forgetting it would handle messages twice.
                    self._finished_after_failure[:0], self.finished[:0] = failed, fine
                    raise

    async def _settle_now(self, failed: list[bytes], fine: list[bytes]) -> None:
        self.unsettled.update(failed, fine)
        await self.surely("settle", lambda: self.claim.settle(failed, fine))
        if not self.lost:
            self.unsettled.difference_update(failed, fine)
            if self.begun:
                self.begun.difference_update(failed, fine)
            self._counts.handled += len(failed) + len(fine)

    async def begin(self, messages: Sequence[Message]) -> list[Message]:
        """Count attempts before they are made; those that may be made, with their numbers."""
        numbers = await self.surely("begin", lambda: self.claim.begin(messages))
        if numbers is None:
            return []
        for message, number in zip(messages, numbers, strict=True):
            message.attempt = number or message.attempt
            self.suspects.discard(message.entry_id)
            self.returning.discard(message.entry_id)
        may_begin = [one for one, number in zip(messages, numbers, strict=True) if number]
        self.begun.update(message.entry_id for message in may_begin)
        return may_begin

    async def uncharge(self, ids: Sequence[bytes]) -> None:
        """Take back attempts at a partition that was lost, which did not die with a process.

        A call whose outcome is unknown is not repeated: it would take back too much.
        """
        for place in range(0, len(ids), _MOST_UNCHARGED):
            some, failures = ids[place : place + _MOST_UNCHARGED], 0
            while True:
                try:
                    await self.claim.uncharge(some)
                    break
                except Rejected as error:
                    if not error.transient:
                        raise
                    failures += 1
                    await asyncio.sleep(retry_delay_s(failures))

    async def retry_later(
        self, message: Message, wait_s: float, failures: tuple[Failure, ...]
    ) -> None:
        """Let the message pend until its next attempt is due."""
        await self.surely("retry", lambda: self.claim.retry_later(message, wait_s, failures))
        if not self.lost:
            self._counts.retried += 1

    async def park(self, ids: Sequence[bytes]) -> None:
        """Let messages that were fetched, and not begun, wait on the server, not charged."""
        for place in range(0, len(ids), _MOST_PARKED_AT_ONCE):
            some = ids[place : place + _MOST_PARKED_AT_ONCE]
            await self.surely("park", partial(self.claim.park, some))

    async def unpark(self, ids: Sequence[bytes]) -> list[list[Any]] | None:
        """Fetch parked messages again, without those that were trimmed; None if it is lost."""
        return await self.surely("unpark", lambda: self.claim.unpark(ids))

    async def pending(self, start: str, count: int) -> list[Left]:
        """One page of what is pending, in the order of ids."""
        return await self.surely("look", lambda: self.claim.pending(start, count)) or []

    async def due(self, count: int) -> tuple[float | None, list[Left]]:
        """Failed messages whose time has come, and seconds until the next (None: none waits)."""
        ids: list[bytes] = []
        while self._retry_times and self._retry_times[0][0] <= time.monotonic():
            ids.append(heappop(self._retry_times)[1])
        wait_s, lefts = await self.surely("look", lambda: self.claim.due(count, ids)) or (None, [])
        if wait_s == 0:  # not all of them came
            came = {left.id for left in lefts}
            for id_ in ids:
                if id_ not in came:
                    heappush(self._retry_times, (time.monotonic(), id_))
            return wait_s, lefts
        if self._retry_times:
            own_s = max(0.0, self._retry_times[0][0] - time.monotonic())
            wait_s = own_s if wait_s is None else min(wait_s, own_s)
        return wait_s, lefts

    async def surely(self, what: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until the server has answered: `ask` is repeated. None if the partition is lost."""
        failures = 0
        while not self.lost:
            try:
                answer = await ask()
            except ServerError as error:
                if str(error).startswith(_NO_GROUP):
                    self.group_gone()
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
            except TopicMissing:
                self.lose()
            else:
                if failures:
                    self.trouble = None
                return answer
        return None


def _fields(item: Item) -> Fields:
    return item.fields if isinstance(item, Message) else item[1]


def _size_of(items: Sequence[Item]) -> int:
    return sum(sum(map(len, _fields(item))) for item in items)


def entry_id(item: Item) -> bytes:
    """The id of a message in its stream."""
    return item.entry_id if isinstance(item, Message) else item[0]
