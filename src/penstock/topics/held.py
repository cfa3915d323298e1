"""One partition that a consumer owns: every word to the server about it carries its epoch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from penstock.errors import ServerError, TopicMissing
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import PartitionKeys
from penstock.redis.wire import Argument, Reply
from penstock.runtime.backoff import retry_delay_s
from penstock.topics.message import Fields, Message, Source
from penstock.topics.retries import Failure

__all__ = ["CONSUMER", "Counts", "Held", "Item", "Left"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

T = TypeVar("T")

CONSUMER = "penstock"
"""The name under which all messages are pending: the lease says whose they are, so no names of
dead consumers pile up in the group."""

Item = list[Any] | Message
"""An entry as it was read; or a message whose next attempt has to be counted before it begins."""

STALE = -1
_MOST_AT_ONCE = 1_000


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


class Left(msgspec.Struct, frozen=True):
    """A pending message as an earlier owner left it."""

    id: bytes
    attempts: int
    wait_ms: int
    failures: tuple[Failure, ...]
    fields: Fields


class Held:
    """A partition owned under one epoch, from `acquire` to `release` or to its loss."""

    def __init__(
        self,
        client: Client,
        source: Source,
        *,
        owner: str,
        epoch: int,
        ttl_s: float,
        counts: Counts,
    ) -> None:
        self.source, self.epoch, self.owner = source, epoch, owner
        self.keys: PartitionKeys = client.keys.partition(source.topic, source.partition)
        self.stream = self.keys.stream
        self.fence = self.keys.fence(source.group, epoch)
        self.queue: deque[list[Item]] = deque()
        """Chunks that were read and not yet handled."""
        self.buffered = 0
        """Messages in `queue` and in the hands of the runner."""
        self.history: dict[bytes, tuple[Failure, ...]] = {}
        """Messages that failed or were taken over, and how attempts at them failed: first, last."""
        self.returning: set[bytes] = set()
        """Messages that are queued again since their retry is due."""
        self.waits: dict[bytes, float] = {}
        """Seconds that messages taken over still have to wait for their next attempt."""
        self.retry_at: float | None = None
        """When, by the monotonic clock, the next failed message may be due."""
        self.retries_changed = asyncio.Event()
        self.unsettled: set[bytes] = set()
        """Done, but the server does not know yet."""
        self.readable = False
        """Whether new messages may be read: all that earlier owners left has been queued."""
        self.strayed = asyncio.Event()
        """Set when messages may be pending that never arrived here."""
        self.closing = False
        self.lost = False
        self.arrived = asyncio.Event()
        self.freed: Callable[[], object] | None = None
        """Called once messages have left, by whoever waits for room."""
        self.deadline = 0.0
        """Until then, by the monotonic clock, nobody else can own the partition."""
        self.when_lost: Callable[[], object] | None = None
        """Called once when the partition passes to somebody else."""
        self._scripts, self._counts = client.scripts, counts
        self._ttl_s = ttl_s
        self.finished: list[bytes] = []
        """Ids to be acknowledged; whoever appends calls `wake`, so that it is done soon."""
        self._finished_after_failure: list[bytes] = []
        self._released = False
        self._settling = asyncio.Lock()
        self._wake = asyncio.Event()
        self.wake = self._wake.set
        self._renewed = asyncio.Event()
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Held {self.source.topic}/{self.source.partition} epoch {self.epoch}>"

    # ---- reading

    def put(self, chunk: list[Item]) -> None:
        """Queue what was read."""
        self.queue.append(chunk)
        self.buffered += len(chunk)
        self.arrived.set()

    async def next_chunk(self) -> list[Item] | None:
        """Return the next chunk, or None when nothing more is to be begun."""
        while not self.queue:
            if self.closing or self.lost:
                return None
            self.arrived.clear()
            await self.arrived.wait()
        return None if self.closing or self.lost else self.queue.popleft()

    def drop(self, count: int) -> None:
        """Note that messages have left the runner's hands."""
        self.buffered -= count
        if self.freed is not None:
            self.freed()

    def close(self) -> None:
        """Begin nothing more; what is under way may end."""
        self.closing = True
        self._closed.set()
        self.arrived.set()
        self.retries_changed.set()
        self._renewed.set()

    def lose(self) -> None:
        """Note that the partition has passed to somebody else."""
        if not self.lost:
            self.lost = True
            self._counts.leases_lost += 1
            logger.warning("%r: lost to another consumer", self)
            if self.when_lost is not None:
                self.when_lost()
        self.close()
        self._wake.set()

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
                    await self._closed.wait()
        return not self.closing

    def retry_in(self, seconds: float) -> None:
        """Note that a failed message is due again after a while."""
        at = time.monotonic() + seconds
        if self.retry_at is None or at < self.retry_at:
            self.retry_at = at
            self.retries_changed.set()

    # ---- the lease

    def held_since(self, sent_at: float) -> None:
        """Note that the server granted or renewed the lease after `sent_at`."""
        self.deadline = sent_at + self._ttl_s
        self._renewed.set()

    async def renew(self) -> None:
        """Hold the partition for longer, or find out that it is lost."""
        if self._released or self.lost:
            return
        sent_at = time.monotonic()
        if await self._scripts.renew(
            lease=self.keys.lease(self.source.group),
            epochs=self.keys.epochs,
            fence=self.fence,
            group=self.source.group,
            owner=self.owner,
            epoch=self.epoch,
            ttl_ms=round(self._ttl_s * 1000),
        ):
            self.held_since(sent_at)
        else:
            self.lose()

    async def release(self, unbegun: Sequence[bytes]) -> None:
        """Give the partition up. No attempt is charged for what was fetched but not begun."""
        self._released = True  # a renewal that came after it would revive the lease
        await self._scripts.release(
            lease=self.keys.lease(self.source.group),
            epochs=self.keys.epochs,
            fence=self.fence,
            stream=self.stream,
            group=self.source.group,
            owner=self.owner,
            epoch=self.epoch,
            consumer=CONSUMER,
            unbegun=unbegun,
        )

    # ---- what becomes of messages

    def done(self, id_: bytes, *, failed_before: bool = False) -> None:
        """Acknowledge soon; many go together."""
        if failed_before:
            self._finished_after_failure.append(id_)
        else:
            self.finished.append(id_)
        self._wake.set()

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
        ids = failed + fine
        self.unsettled.update(ids)
        await self.surely(
            "settle",
            lambda: self._scripts.settle(
                epochs=self.keys.epochs,
                stream=self.stream,
                commit=self.keys.commit,
                retry=self.keys.retry(self.source.group),
                failures=self.keys.failures(self.source.group),
                group=self.source.group,
                epoch=self.epoch,
                failed_before=len(failed),
                ids=ids,
            ),
        )
        self.unsettled.difference_update(ids)
        if not self.lost:
            self._counts.handled += len(ids)

    async def begin(self, messages: Sequence[Message]) -> list[Message]:
        """Count an attempt at each before it is made; those that may be begun."""
        attempts: list[Argument] = []
        for message in messages:
            attempts += (message.id, message.attempt)
        begun = await self.surely(
            "begin",
            lambda: self._scripts.begin(
                epochs=self.keys.epochs,
                stream=self.stream,
                retry=self.keys.retry(self.source.group),
                group=self.source.group,
                epoch=self.epoch,
                consumer=CONSUMER,
                attempts=attempts,
            ),
        )
        allowed: set[bytes] = set(begun or ())
        return [message for message in messages if message.id in allowed]

    async def retry_later(
        self, message: Message, wait_s: float, failures: tuple[Failure, ...]
    ) -> None:
        """Let the message pend until its next attempt is due."""
        failed: list[Argument] = [
            message.id,
            round(wait_s * 1000),
            msgspec.json.encode(failures),
        ]
        await self.surely(
            "retry",
            lambda: self._scripts.retry_later(
                epochs=self.keys.epochs,
                retry=self.keys.retry(self.source.group),
                failures=self.keys.failures(self.source.group),
                group=self.source.group,
                epoch=self.epoch,
                failed=failed,
            ),
        )
        if not self.lost:
            self._counts.retried += 1

    # ---- what earlier owners left

    async def pending(self, start: str, count: int) -> list[Left]:
        """One page of what is pending, in the order of ids."""
        reply = await self.surely(
            "pending",
            lambda: self._scripts.pending_page(
                epochs=self.keys.epochs,
                stream=self.stream,
                retry=self.keys.retry(self.source.group),
                failures=self.keys.failures(self.source.group),
                group=self.source.group,
                epoch=self.epoch,
                start=start,
                count=count,
            ),
        )
        return [_left(row) for row in reply or ()]

    async def due(self, count: int) -> tuple[float | None, list[Left]]:
        """Failed messages whose time has come, and seconds until the next (None: none waits)."""
        reply = await self.surely(
            "due",
            lambda: self._scripts.due_retries(
                epochs=self.keys.epochs,
                stream=self.stream,
                retry=self.keys.retry(self.source.group),
                failures=self.keys.failures(self.source.group),
                group=self.source.group,
                epoch=self.epoch,
                count=count,
            ),
        )
        if reply is None:
            return None, []
        wait_ms, *rows = reply
        return (None if wait_ms < 0 else wait_ms / 1000), [_left(row) for row in rows]

    async def surely(self, what: str, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Ask until the server has answered: each of these may be repeated. None if lost."""
        failures = 0
        while not self.lost:
            try:
                reply = await ask()
            except ServerError as error:
                if not error.transient:
                    raise
                failures += 1
                quiet.warning(f"{self} {what}", "%r: cannot %s yet: %s", self, what, error)
                await asyncio.sleep(retry_delay_s(failures))
            except TopicMissing:
                self.lose()
            else:
                if reply != STALE:
                    return reply
                self._counts.refused += 1
                self.lose()
        return None


def _left(row: Reply) -> Left:
    id_, attempts, wait_ms, failures, fields = row
    return Left(id_, attempts, wait_ms, read_failures(failures), fields)


def read_failures(stored: bytes) -> tuple[Failure, ...]:
    """How earlier attempts failed; what cannot be read says nothing."""
    try:
        return msgspec.json.decode(stored, type=tuple[Failure, ...]) if stored else ()
    except msgspec.DecodeError:
        return ()
