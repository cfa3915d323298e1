"""What the owner of a partition knows about attempts at its messages. Memory only, no calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from heapq import heappop, heappush

from penstock.delivery.failures import Failure

__all__ = ["Attempts", "RetrySchedule"]


class Attempts:
    """Failed, recovered and counted attempts of one partition, by the entry ids of messages."""

    def __init__(self) -> None:
        self._failures: dict[bytes, tuple[Failure, ...]] = {}
        """Messages that failed or were recovered: their first and their last failure."""
        self._inherited: set[bytes] = set()
        """Recovered from an earlier owner and not begun here."""
        self.suspects: set[bytes] = set()
        """Recovered from a process that may have died of them. Read-only for others."""
        self.begun: set[bytes] = set()
        """Counted here, with no outcome on the server yet. Read-only for others."""
        self._returning: set[bytes] = set()
        """Queued again since their retry is due."""
        self._waits: dict[bytes, float] = {}
        """Seconds that recovered messages still wait for their next attempt."""

    # ---- outcomes

    def counted(self, ids: Iterable[bytes], begun: Iterable[bytes]) -> None:
        """Attempts at `ids` were requested; those at `begun` are counted on the server."""
        self.suspects.difference_update(ids)
        self._returning.difference_update(ids)
        self.begun.update(begun)

    def acknowledged(self, ids: Iterable[bytes]) -> None:
        """The server knows that these are done."""
        self.begun.difference_update(ids)

    def failed(self, id_: bytes, failure: Failure) -> tuple[Failure, ...]:
        """Record a failure; returns the first and the last one of the message."""
        failures = self._failures[id_] = (*self._failures.get(id_, ())[:1], failure)
        self.begun.discard(id_)
        return failures

    def cut_short(self, ids: Iterable[bytes]) -> None:
        """Handlers were cancelled: these attempts stay charged."""
        for id_ in ids:
            self._failures.setdefault(id_, ())

    def forget_failures(self, id_: bytes) -> bool:
        """Drop the failures of a message that is done; whether it had been recorded."""
        return self._failures.pop(id_, None) is not None

    def buried(self, id_: bytes) -> None:
        """The message is a dead letter."""
        self._returning.discard(id_)
        self._failures.pop(id_, None)

    def failures_of(self, id_: bytes) -> tuple[Failure, ...]:
        return self._failures.get(id_, ())

    # ---- recovery

    def recovered(self, id_: bytes, failures: tuple[Failure, ...]) -> None:
        """An earlier owner left this message, with these failures."""
        self._failures[id_] = failures

    def inherited(self, id_: bytes, *, wait_s: float, suspect: bool) -> None:
        """The message was taken over, and waits for its next attempt."""
        self._inherited.add(id_)
        if wait_s:
            self._waits[id_] = wait_s
        if suspect:
            self.suspects.add(id_)

    def take_inherited(self, id_: bytes) -> bool:
        """Whether the message was taken over and is begun here for the first time."""
        if id_ not in self._inherited:
            return False
        self._inherited.discard(id_)
        return True

    def has_wait(self, id_: bytes) -> bool:
        return id_ in self._waits

    def take_wait(self, id_: bytes) -> float | None:
        """Seconds until a message that was taken over may be attempted; None if it need not."""
        return self._waits.pop(id_, None)

    def set_aside(self, id_: bytes, attempt: int) -> bool:
        """Forget a message that is parked on the server; whether it was attempted before."""
        failures = self._failures.pop(id_, None)
        if attempt > 1 or failures or id_ in self.suspects or id_ in self._waits:
            return True
        self._inherited.discard(id_)
        return False

    # ---- retries

    @property
    def returning_count(self) -> int:
        return len(self._returning)

    def returns(self, id_: bytes) -> bool:
        """Record that a retry is due and queued; False if it was queued already."""
        if id_ in self._returning:
            return False
        self._returning.add(id_)
        return True

    # ---- for comparison with the server

    def is_under_way(self, id_: bytes) -> bool:
        """Whether the retry loop has brought the message back."""
        return id_ in self._returning or id_ in self.begun

    def is_recorded(self, id_: bytes) -> bool:
        """Whether the message failed, was recovered, or was cut short."""
        return id_ in self._failures

    def recorded_ids(self) -> set[bytes]:
        """Messages that are known because they failed, were recovered or are due again."""
        return self._returning | self._failures.keys()


class RetrySchedule:
    """When the failed messages of a partition are due again, by the monotonic clock."""

    def __init__(self) -> None:
        self._times: list[tuple[float, bytes]] = []
        self._next_at: float | None = None
        """When the retry loop has to ask the server again."""
        self._changed = asyncio.Event()

    def add(self, id_: bytes, seconds: float) -> None:
        """A failed message is due again after `seconds`."""
        at = time.monotonic() + seconds
        heappush(self._times, (at, id_))
        if self._next_at is None or at < self._next_at:
            self._next_at = at
            self._changed.set()

    def ids(self) -> set[bytes]:
        return {id_ for _, id_ in self._times}

    def take_due(self) -> list[bytes]:
        """Messages that are due by our clock; what is added from now on wakes `wait`."""
        self._next_at = None
        ids: list[bytes] = []
        while self._times and self._times[0][0] <= time.monotonic():
            ids.append(heappop(self._times)[1])
        return ids

    def put_back(self, ids: Iterable[bytes]) -> None:
        """These are due, and the server did not return them."""
        for id_ in ids:
            heappush(self._times, (time.monotonic(), id_))

    def next_s(self) -> float | None:
        """Seconds until the next message is due; None without any."""
        return max(0.0, self._times[0][0] - time.monotonic()) if self._times else None

    async def wait(self, longest_s: float, closed: asyncio.Event) -> None:
        """Wait for the next retry, also for one that is added meanwhile, or for `closed`."""
        at = time.monotonic() + longest_s
        self._next_at = at if self._next_at is None else min(at, self._next_at)
        while not closed.is_set() and (rest := self._next_at - time.monotonic()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._changed.wait()

    def wake(self) -> None:
        """Let `wait` return if the partition has closed."""
        self._changed.set()
