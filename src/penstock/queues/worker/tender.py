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
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.lanes import FIXED
from penstock.queues.storage.scripts import TENDED_ELSEWHERE, QueueScripts, TendFlag, TendReply
from penstock.queues.worker.arrival_watcher import RawPushes
from penstock.redis.client import Client
from penstock.runtime.service import Service
from penstock.runtime.service_tasks import ServiceTasks
from penstock.runtime.waiting import happens_within, retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["TendedMember", "Tender"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A lease lasts for this share of `queues.silence_s`, so that a dead tender has a successor before
# any worker counts as dead: idle workers learn by their heartbeats that it has gone.
_LEASE_SHARE, _LONGEST_LEASE_S = 0.4, 2.0
_SHORTEST_S, _LONGEST_S = 0.001, 60.0
_FIRST_PAUSE_S = 0.02
# Queues of one call: more would stop the server for too long.
_TOGETHER = 100
# Silent workers are looked for no more often than this, as a share of `queues.silence_s`.
_REAP_SHARE = 0.1
_SWEEP_S = 30.0
_LEAVE_S = 0.5
# Queues that are left within this time are left together.
_GATHER_S = 0.005


class TendedMember(Protocol):
    """A worker of a queue in this process."""

    @property
    def keys(self) -> QueueKeyring: ...

    def jobs_wait(self) -> None:
        """Jobs can be claimed, and perhaps no worker was woken for them."""
        ...

    def troubled(self, error: ServerError) -> None:
        """The server was not reached: other workers may have had the same trouble."""
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
    members: list[TendedMember] = field(default_factory=list[TendedMember])
    is_ours: bool = False
    """Whether this process tends it."""
    is_empty: bool = False
    """Whether none of the keys existed in which jobs wait."""
    is_looked_at: bool = False
    """Whether a look is under way."""
    must_look: bool = False
    """Whether to look at it as soon as none is, whatever the one under way finds."""
    next_at: float = 0.0
    """When to look for jobs again."""
    renew_at: float = 0.0
    """When to renew the lease, and to look for silent workers."""
    errand: asyncio.Task[None] | None = None
    sweep_at: float = 0.0
    was_foreign: bool = False
    failures: int = 0
    """How often in a row it could not be read."""
    raw_pushes: RawPushes | None = None
    listening: asyncio.Task[None] | None = None
    places: tuple[str, ...] = ()
    """Keys of which one exists if a job waits, is due or will be."""

    def __post_init__(self) -> None:
        keys = self.keys
        self.places = (*map(keys.list_of, FIXED), keys.ring, keys.delayed, keys.parked)

    @property
    def due_at(self) -> float:
        """When to begin a look at it."""
        if self.is_looked_at:
            return math.inf
        if self.must_look:
            return 0.0
        return min(self.next_at, self.renew_at) if self.is_ours else self.next_at

    def stop_hearing(self) -> None:
        """Leave pushes of other programs to the tender of the queue."""
        if self.listening is not None:
            self.listening.cancel()
        self.raw_pushes = self.listening = None


class Tender(Service):
    """Looks after the queues that this process holds the leases of.

    The tender of a queue looks at it every `queues.poll_s`, and when the next job is due. It wakes
    a worker if jobs can be claimed for which none was woken, returns the jobs of dead workers,
    and reports keys of another type. All others sleep: whatever the number of workers, an idle
    queue costs one look per `poll_s`, and the looks at all queues of a process are one command
    (on a cluster one for each queue). While a queue is empty, that command only asks whether its
    keys exist; twice per lease a script looks at all there is.
    """

    restartable = True

    def __init__(self, client: Client, name: str) -> None:
        super().__init__("queue tender")
        self._client, self._name = client, name
        settings = client.settings.queues
        self._poll_s = settings.poll_s
        lease_s = min(_LONGEST_LEASE_S, _LEASE_SHARE * settings.silence_s)
        self._lease_s = max(lease_s, 2 * self._poll_s)
        self._reap_every_s = min(_REAP_SHARE * settings.silence_s, settings.beat_s)
        self._queues: dict[str, _Queue] = {}
        self._changed = asyncio.Event()
        self._left: list[_Queue] = []
        """Queues without members, about to be left to others together."""
        self._tasks = ServiceTasks()

    def add(self, member: TendedMember) -> None:
        """Look after a member's queue from now on, if no other process does."""
        queue = self._queues.setdefault(member.keys.queue, _Queue(member.keys))
        queue.members.append(member)
        self.look_soon(member.keys.queue)

    async def remove(self, member: TendedMember) -> None:
        """Leave its queue to others, unless it has more members here."""
        queue = self._queues.get(member.keys.queue)
        if queue is None or member not in queue.members:
            return
        queue.members.remove(member)
        if not queue.members:
            del self._queues[member.keys.queue]
            self._left.append(queue)
            await asyncio.sleep(_GATHER_S)
            left, self._left = self._left, []
            await self._leave(left)

    def look_soon(self, name: str) -> None:
        """Look at a queue now: there may be something to be done."""
        if (queue := self._queues.get(name)) is not None:
            queue.must_look = True
            self._changed.set()

    def take_over(self) -> None:
        """No process tends one of the queues; most often that goes for others, too."""
        for queue in self._queues.values():
            queue.must_look |= not queue.is_ours
        self._changed.set()

    def note_foreign(self, name: str, found: bool) -> None:
        """The tender of a queue has found keys of another type, or finds none any more."""
        queue = self._queues.get(name)
        if queue is not None and not queue.is_ours:
            self._report_foreign(queue, found=found)

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._changed.set()

    async def run(self) -> None:
        try:
            async with self._tasks.open():
                await self._look_in_time()
        finally:
            await self._leave(self._queues.values())

    # ---- when to look at what

    async def _look_in_time(self) -> None:
        while not self.stopping:
            self._changed.clear()
            self._look()
            next_at = min((one.due_at for one in self._queues.values()), default=math.inf)
            pause_s = min(_LONGEST_S, max(_SHORTEST_S, next_at - time.monotonic()))
            await happens_within(self._changed, pause_s, SYSTEM_CLOCK)

    def _look(self) -> None:
        """Look at what is due, with what is due soon: as one command."""
        now = time.monotonic()
        soon = now + self._poll_s / 2
        due = [one for one in self._queues.values() if one.due_at <= soon]
        if not any(one.due_at <= now for one in due):
            return
        with_workers = any(one.renew_at <= soon for one in due)
        # Leases are renewed together, so that the next time they are due together.
        renewed = soon + self._lease_s / 4 if with_workers else soon
        glances, looks = list[_Queue](), list[_Queue]()
        for queue in self._queues.values():
            if queue.is_ours and queue.renew_at <= renewed and not queue.is_looked_at:
                looks.append(queue)
            elif queue.due_at <= soon:
                is_quiet = queue.is_ours and queue.is_empty and not queue.must_look
                (glances if is_quiet else looks).append(queue)
        for some in self._together(glances):
            self._start_look(self._glance_at(some), some)
        for some in self._together(looks):
            self._start_look(self._look_at(some, with_workers=with_workers), some)

    def _together(self, queues: Sequence[_Queue]) -> list[Sequence[_Queue]]:
        """What one command may look at."""
        size = 1 if self._client.keys.cluster else _TOGETHER
        return [queues[first : first + size] for first in range(0, len(queues), size)]

    def _start_look(self, look: Coroutine[Any, Any, None], queues: Sequence[_Queue]) -> None:
        def ended(_: object) -> None:
            for queue in queues:
                queue.is_looked_at = False
            self._changed.set()

        if (task := self._tasks.start(look, "tend queues")) is not None:
            for queue in queues:
                queue.is_looked_at, queue.must_look = True, False
            task.add_done_callback(ended)

    async def _glance_at(self, queues: Sequence[_Queue]) -> None:
        """See whether queues are still empty, and look at them if any is not."""
        with suppress(NotOpen, ServerError):  # the look reports what is wrong
            places = (key for queue in queues for key in queue.places)
            if await self._client.call("EXISTS", *places) == 0:
                for queue in queues:
                    queue.next_at = time.monotonic() + self._watch_raw_pushes(queue, TendFlag.EMPTY)
                return
        await self._look_at(queues, with_workers=False)

    async def _look_at(self, queues: Sequence[_Queue], *, with_workers: bool) -> None:
        try:
            replies = await QueueScripts.of(self._client).tend_queues(
                keys=[one.keys for one in queues],
                tender=self._name,
                lease_ms=round(self._lease_s * 1000),
                with_workers=with_workers,
            )
        except NotOpen:
            self.ask_to_stop()  # the client was closed: others look after the queues
        except ServerError as error:
            quiet.warning(
                f"tender {type(error).__name__}", "queues cannot be looked after: %s", error
            )
            for queue in queues:
                self._failed(queue, error)
        else:
            for queue, reply in zip(queues, replies, strict=True):
                if queue.members:
                    self._learn(queue, reply)

    def _failed(self, queue: _Queue, error: ServerError) -> None:
        # The first is repeated soon: most often a connection was lost.
        pause_s = retry_delay_s(queue.failures) if queue.failures else _FIRST_PAUSE_S
        queue.next_at = queue.renew_at = time.monotonic() + max(self._poll_s, pause_s)
        queue.failures += 1
        queue.is_empty = False
        for member in queue.members:
            member.troubled(error)

    # ---- what was found

    def _learn(self, queue: _Queue, reply: TendReply) -> None:
        (flags, wait_ms, silent_in_ms), now = reply, time.monotonic()
        if queue.failures:  # that it is over, every worker learns from a claim
            queue.failures = 0
            for member in queue.members:
                member.jobs_wait()
        queue.is_ours = flags != TENDED_ELSEWHERE
        if not queue.is_ours:
            queue.stop_hearing()
            queue.next_at = math.inf  # the next heartbeat or claim shows if that has changed
            return
        queue.is_empty = bool(flags & TendFlag.EMPTY)
        wait_s = min(self._poll_s, wait_ms / 1000) if wait_ms else self._poll_s
        queue.next_at = now + min(wait_s, self._watch_raw_pushes(queue, flags))
        if silent_in_ms >= 0:
            silent_in_s = max(self._reap_every_s, silent_in_ms / 1000)
            queue.renew_at = now + min(self._lease_s / 2, silent_in_s)
        elif queue.renew_at <= now:  # a key of another type is in the way
            queue.renew_at = now + self._reap_every_s
        if flags & TendFlag.CAN_CLAIM and not flags & TendFlag.WOKEN:
            for member in queue.members:
                member.jobs_wait()
        self._attend(queue, flags, now)

    def _attend(self, queue: _Queue, flags: int, now: float) -> None:
        """Have a member do what takes more than a look."""
        if queue.errand is None or queue.errand.done():
            if flags & TendFlag.SILENT:
                self._start_errand(
                    queue, (one.return_claims_of_the_dead() for one in queue.members[:1])
                )
            elif now >= queue.sweep_at:
                queue.sweep_at = now + _SWEEP_S
                self._start_errand(queue, (one.sweep_records() for one in queue.members[:1]))
            else:
                self._report_foreign(queue, found=bool(flags & TendFlag.FOREIGN))

    def _report_foreign(self, queue: _Queue, *, found: bool) -> None:
        if (found or queue.was_foreign) and (queue.errand is None or queue.errand.done()):
            queue.was_foreign = found
            self._start_errand(
                queue, (one.report_foreign_keys(found=found) for one in queue.members)
            )

    def _watch_raw_pushes(self, queue: _Queue, flags: int) -> float:
        """Have other programs' pushes heard where there are any; seconds until the next look."""
        was_needed = bool(flags & TendFlag.PLAIN and flags & TendFlag.WOKEN)
        if queue.raw_pushes is None:
            if not was_needed:
                return self._poll_s
            when_pushed = partial(self.look_soon, queue.keys.queue)
            raw_pushes = RawPushes(self._client, queue.keys, when_pushed, self._poll_s)
            listening = self._tasks.start(raw_pushes.listen(), f"raw pushes {queue.keys.waiting}")
            queue.raw_pushes, queue.listening = raw_pushes, listening
        elif queue.raw_pushes.is_useless:
            queue.stop_hearing()
            return self._poll_s
        return queue.raw_pushes.note(was_needed=was_needed, is_empty=not flags & TendFlag.PLAIN)

    def _start_errand(self, queue: _Queue, errands: Iterable[Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            try:
                for errand in errands:
                    await errand
            except Exception:
                logger.exception("queue %s cannot be looked after", queue.keys.queue)

        queue.errand = self._tasks.start(run(), f"tend {queue.keys.queue}")

    async def _leave(self, queues: Iterable[_Queue]) -> None:
        """Let others tend what this process did, at once."""
        tended = [one for one in queues if one.is_ours or one.is_looked_at]
        for queue in tended:
            queue.is_ours = False
            queue.stop_hearing()
        with suppress(NotOpen, ServerError, TimeoutError):  # then the leases lapse
            async with asyncio.timeout(_LEAVE_S):
                for some in self._together(tended):
                    await QueueScripts.of(self._client).stop_tending(
                        keys=[one.keys for one in some], tender=self._name
                    )
