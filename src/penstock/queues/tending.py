"""Looking after queues on behalf of all their workers: one process at a time for each queue."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import NotOpen, ServerError
from penstock.queues.raw_pushes import RawPushes
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import QueueKeyring
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.service import Service
from penstock.runtime.waiting import happens_within

__all__ = ["Member", "Tender"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

_CAN_CLAIM, _WOKEN, _SILENT, _FOREIGN, _PLAIN = 1, 2, 4, 8, 16
_ELSEWHERE = -1
# A lease lasts for this share of `queues.silence_s`, so that a dead tender has a successor before
# anybody counts as dead: idle workers learn with every other sign of life that there is none.
_LEASE_SHARE, _LONGEST_LEASE_S = 0.4, 2.0
_SHORTEST_S, _LONGEST_S = 0.001, 60.0
_FIRST_PAUSE_S = 0.02
# Queues of one call: more would stop the server for too long.
_TOGETHER = 100
# Silent workers are looked for so often, as a share of `queues.silence_s`; at least once per beat.
_REAP_SHARE = 0.1
_SWEEP_S = 30.0
_LEAVE_S = 0.5


class Member(Protocol):
    """A worker of a queue in this process."""

    @property
    def keys(self) -> QueueKeyring: ...

    def jobs_wait(self) -> None:
        """Jobs can be claimed, and it is not known that anybody was woken for them."""
        ...

    def troubled(self, error: ServerError) -> None:
        """The server could not be asked: other workers may have had the same trouble."""
        ...

    async def return_claims_of_the_dead(self) -> None:
        """Workers of the queue are silent, or were given up and their jobs are to be returned."""
        ...

    async def sweep_records(self) -> None:
        """It is time to forget jobs of the queue whose records have gone."""
        ...

    async def report_foreign_keys(self, *, found: bool) -> None:
        """Whether a key of the queue is of another type."""
        ...


@dataclass(slots=True, eq=False)
class _Queue:
    """A queue that has workers in this process."""

    keys: QueueKeyring
    members: list[Member] = field(default_factory=list[Member])
    is_ours: bool = False
    """Whether this process tends it."""
    next_at: float = 0.0
    """When to look at it again."""
    errand: asyncio.Task[None] | None = None
    sweep_at: float = 0.0
    was_foreign: bool = False
    was_troubled: bool = False
    raw_pushes: RawPushes | None = None

    def stop_hearing(self) -> None:
        """Leave pushes of other programs to whoever tends the queue."""
        if self.raw_pushes is not None:
            self.raw_pushes.stop()
            self.raw_pushes = None


class Tender(Service):
    """Looks after the queues that this process holds the leases of.

    The tender of a queue looks at it every `queues.poll_s`, and when the next job is due. It wakes
    a worker if jobs can be claimed of which no worker was told, returns the jobs of dead workers,
    and reports keys of another type. All others sleep: whatever the number of workers, an idle
    queue costs one look per `poll_s`, and the looks at all queues of a process are one command
    (on a cluster one for each queue).
    """

    restartable = True

    def __init__(self, client: Client, name: str) -> None:
        super().__init__("queue tender")
        self._client, self._name = client, name
        settings = client.settings.queues
        self._poll_s = settings.poll_s
        self._lease_s = min(_LONGEST_LEASE_S, _LEASE_SHARE * settings.silence_s)
        self._reap_every_s = min(_REAP_SHARE * settings.silence_s, settings.beat_s)
        self._queues: dict[str, _Queue] = {}
        self._changed = asyncio.Event()
        self._reap_at = 0.0
        """When to look for silent workers next."""
        self._errands: set[asyncio.Task[None]] = set()
        self._failures = 0

    def add(self, member: Member) -> None:
        """Look after a member's queue from now on, if no other process does."""
        queue = self._queues.setdefault(member.keys.queue, _Queue(member.keys))
        queue.members.append(member)
        self.look_soon(member.keys.queue)

    async def remove(self, member: Member) -> None:
        """Leave its queue to others, unless it has more members here."""
        queue = self._queues.get(member.keys.queue)
        if queue is None or member not in queue.members:
            return
        queue.members.remove(member)
        if not queue.members:
            del self._queues[member.keys.queue]
            await self._leave([queue])

    def look_soon(self, name: str) -> None:
        """No process seems to tend a queue."""
        if (queue := self._queues.get(name)) is not None:
            queue.next_at = 0.0
            self._changed.set()

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._changed.set()

    async def run(self) -> None:
        try:
            with suppress(NotOpen):  # the client was closed: others look after the queues
                while not self.stopping:
                    self._changed.clear()
                    if due := self._due():
                        await self._look(due)
                    pause_s = min(_LONGEST_S, max(_SHORTEST_S, self._next_at() - time.monotonic()))
                    await happens_within(self._changed, pause_s, SYSTEM_CLOCK)
        finally:
            for errand in self._errands:
                errand.cancel()
            await asyncio.gather(*self._errands, return_exceptions=True)
            await self._leave(self._queues.values())

    # ---- when to look at what

    def _due(self) -> list[_Queue]:
        """What is to be looked at now, with what is to be looked at soon: as one command."""
        now = time.monotonic()
        if self._next_at() > now:
            return []
        soon = now + self._poll_s / 2
        is_reaping = now >= self._reap_at
        return [
            one
            for one in self._queues.values()
            if one.next_at <= soon or (is_reaping and one.is_ours)
        ]

    def _next_at(self) -> float:
        next_at = min((one.next_at for one in self._queues.values()), default=math.inf)
        is_tender = any(one.is_ours for one in self._queues.values())
        return min(next_at, self._reap_at) if is_tender else next_at

    async def _look(self, queues: Sequence[_Queue]) -> None:
        now = time.monotonic()
        with_workers = now >= self._reap_at
        if with_workers:
            self._reap_at = now + self._reap_every_s
        size = 1 if self._client.keys.cluster else _TOGETHER
        parts = [queues[first : first + size] for first in range(0, len(queues), size)]
        looks = (self._look_at(part, with_workers=with_workers) for part in parts)
        failed = any(error is not None for error in await asyncio.gather(*looks))
        self._failures = self._failures + 1 if failed else 0

    async def _look_at(self, queues: Sequence[_Queue], *, with_workers: bool) -> ServerError | None:
        try:
            found = await self._client.scripts.tend_queues(
                keys=[one.keys for one in queues],
                tender=self._name,
                lease_ms=round(self._lease_s * 1000),
                with_workers=with_workers,
            )
        except ServerError as error:
            # The first is repeated soon: most often a connection was lost.
            pause_s = retry_delay_s(self._failures) if self._failures else _FIRST_PAUSE_S
            later = time.monotonic() + max(self._poll_s, pause_s)
            for queue in queues:
                queue.next_at, queue.was_troubled = later, True
                for member in queue.members:
                    member.troubled(error)
            quiet.warning(
                f"tender {type(error).__name__}", "queues cannot be looked after: %s", error
            )
            return error
        for queue, flags, wait_ms in zip(queues, found[::2], found[1::2], strict=True):
            self._learn(queue, flags, wait_ms)
        return None

    # ---- what was found

    def _learn(self, queue: _Queue, flags: int, wait_ms: int) -> None:
        now = time.monotonic()
        if queue.was_troubled:  # that it is over, every worker learns from a claim
            queue.was_troubled = False
            for member in queue.members:
                member.jobs_wait()
        queue.is_ours = flags != _ELSEWHERE
        if not queue.is_ours:
            queue.stop_hearing()
            queue.next_at = math.inf  # the next sign of life or claim tells if that has changed
            return
        wait_s = min(self._poll_s, wait_ms / 1000) if wait_ms else self._poll_s
        queue.next_at = now + min(wait_s, self._watch_raw_pushes(queue, flags))
        if flags & _CAN_CLAIM and not flags & _WOKEN:
            for member in queue.members:
                member.jobs_wait()
        if queue.errand is None or queue.errand.done():
            if flags & _SILENT:
                self._start_errand(
                    queue, (one.return_claims_of_the_dead() for one in queue.members[:1])
                )
            elif now >= queue.sweep_at:
                queue.sweep_at = now + _SWEEP_S
                self._start_errand(queue, (one.sweep_records() for one in queue.members[:1]))
            elif flags & _FOREIGN or queue.was_foreign:
                queue.was_foreign = found = bool(flags & _FOREIGN)
                self._start_errand(
                    queue, (one.report_foreign_keys(found=found) for one in queue.members)
                )

    def _watch_raw_pushes(self, queue: _Queue, flags: int) -> float:
        """Have other programs' pushes heard where there are any; seconds until the next look."""
        was_needed = bool(flags & _PLAIN and flags & _WOKEN)
        if queue.raw_pushes is None:
            if not was_needed:
                return self._poll_s
            when_pushed = partial(self.look_soon, queue.keys.queue)
            queue.raw_pushes = RawPushes(self._client, queue.keys, when_pushed, self._poll_s)
        elif queue.raw_pushes.is_useless:
            queue.stop_hearing()
            return self._poll_s
        return queue.raw_pushes.note(was_needed=was_needed, is_empty=not flags & _PLAIN)

    def _start_errand(self, queue: _Queue, errands: Iterable[Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            for errand in errands:
                await errand

        task = queue.errand = asyncio.create_task(run(), name=f"tend {queue.keys.queue}")
        self._errands.add(task)
        task.add_done_callback(self._errand_ended)

    def _errand_ended(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a queue cannot be looked after", exc_info=error)

    async def _leave(self, queues: Iterable[_Queue]) -> None:
        """Let others tend what this process did, at once."""
        ours = [one for one in queues if one.is_ours]
        for queue in ours:
            queue.is_ours = False
            queue.stop_hearing()
        with suppress(NotOpen, ServerError, TimeoutError):  # then the lease lapses
            async with asyncio.timeout(_LEAVE_S):
                for queue in ours:
                    await self._client.scripts.stop_tending(keys=queue.keys, tender=self._name)
