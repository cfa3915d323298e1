"""Membership of a queue: joining, heartbeats, and until when the member's claims are its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import NamedTuple

from penstock.errors import ServerError
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.scripts import BeatFlag, QueueScripts
from penstock.redis.client import Client
from penstock.redis.wire import Reply

__all__ = ["Liveness", "MemberState", "Membership", "QueueHeartbeats"]

logger = logging.getLogger(__name__)

# A member without jobs skips a heartbeat if the next one comes in time by this share of
# `queues.silence_s`, or by a second or half of the silence, whichever is less.
_SPARE, _SPARE_S = 0.3, 1.0
# Heartbeats that are due within this time are sent together.
_GATHER_S = 0.005
_TOGETHER = 200


class MemberState(Enum):
    """What a member may still do."""

    CLAIMING = auto()
    DRAINING = auto()
    """No job is begun any more; those that run may end."""
    CLOSING = auto()
    """Running jobs are cut, and calls that fail are given up instead of repeated."""
    LOST = auto()
    """Given up as dead: its jobs belong to others, and the server refuses every call. Final."""


class Membership:
    """One worker's membership of one queue, under a name that is never used again."""

    def __init__(
        self, client: Client, keys: QueueKeyring, worker: str, beats: QueueHeartbeats | None = None
    ) -> None:
        self.client, self.keys, self.worker = client, keys, worker
        self.scripts = QueueScripts.of(client)
        self.state = MemberState.CLAIMING
        self.loop = asyncio.get_running_loop()
        settings = client.settings.queues
        self.liveness = Liveness(settings.silence_s, settings.beat_s)
        # Callbacks against the direction of calls: heartbeats leave from a thread of their own, and
        # their replies are often the first to show these things.
        self.when_lost: list[Callable[[], object]] = []
        """Called once, when it turns out that the member was given up as dead."""
        self.when_untended: Callable[[], object] = _ignore
        """Called when no process seems to tend the queue."""
        self.when_foreign: Callable[[bool], object] = _ignore
        """Called when a key of the queue is of another type, and when that is over."""
        self._settings = settings
        self._beats = beats or QueueHeartbeats(cluster=client.keys.cluster)
        self.lost = False
        """Whether its state is LOST: read for every claim."""
        self.clock_ahead_ms = 0.0
        """The server's clock less the monotonic one of this process, by the last reply."""
        self._was_foreign = False

    @property
    def gives_up_calls(self) -> bool:
        """Whether a call that fails is not repeated."""
        return self.state in (MemberState.CLOSING, MemberState.LOST)

    @property
    def now_ms(self) -> int:
        """The server's time, extrapolated from its last reply."""
        return round(self.clock_ahead_ms + time.monotonic() * 1000)

    async def join(self) -> None:
        """Become a member. One round trip."""
        sent_at = time.monotonic()
        now_ms = await self.scripts.join_queue(keys=self.keys, worker=self.worker)
        self.clock_ahead_ms = now_ms - time.monotonic() * 1000
        self.liveness.confirm(sent_at)

    async def leave(self) -> None:
        """Stop being a member; jobs that are still claimed are for the others at once."""
        await self.scripts.leave_queue(keys=self.keys, worker=self.worker)

    async def beat(self, client: Client, *, has_jobs: bool) -> None:
        """Send a heartbeat. Runs in the heartbeat thread, on its connection.

        Without claimed jobs most are skipped: there is nothing to return.
        """
        silence_s = self._settings.silence_s
        left_s = self.liveness.alive_until - time.monotonic() - self._settings.beat_s
        if not has_jobs and left_s >= max(_SPARE * silence_s, min(_SPARE_S, silence_s / 2)):
            return

        async def send(paused_ms: int) -> bool:
            reply = await self._beats.send(client, self.keys, self.worker, paused_ms)
            if reply & BeatFlag.UNTENDED:
                self.loop.call_soon_threadsafe(self.when_untended)
            if reply & BeatFlag.FOREIGN or self._was_foreign:
                self._was_foreign = bool(reply & BeatFlag.FOREIGN)
                self.loop.call_soon_threadsafe(self.when_foreign, self._was_foreign)
            return bool(reply)

        if not await self.liveness.give(send):
            self.loop.call_soon_threadsafe(self.lose)

    def drain(self) -> None:
        """Let nothing more be begun."""
        if self.state is MemberState.CLAIMING:
            self.state = MemberState.DRAINING

    def close(self) -> None:
        """Let running jobs be cut, and failing calls be given up."""
        if not self.lost:
            self.state = MemberState.CLOSING

    def lose(self) -> None:
        """Note that the member was given up as dead."""
        if not self.lost:
            self.lost, self.state = True, MemberState.LOST
            self.liveness.lose()
            for notify in self.when_lost:
                notify()


class Liveness:
    """Until when a member counts as alive, by the clock of its process.

    The server gives a member up `silence_s` after its last heartbeat. That reaches the server after
    it was sent, so up to `alive_until`, counted from then, no other worker has the member's jobs.

    `give` runs in the heartbeat thread, everything else in the event loop of the worker.
    """

    def __init__(self, silence_s: float, beat_s: float) -> None:
        self.alive_until = 0.0
        """On the monotonic clock; afterwards nothing may start until a heartbeat is confirmed."""
        self.when_late: Callable[[], None] | None = None
        """Called when the member turns out to be alive after it was silent for too long. It may
        have to look for dead members then: starts are held back until `resume`."""
        self.stood_still = False
        """Whether the process itself has stood still for too long; reset by the code that acts on
        it."""
        self._until, self._held, self._late = 0.0, False, False
        self._silence_s, self._beat_s = silence_s, beat_s
        self._loop = asyncio.get_running_loop()
        self._lost = False
        self._waiters: list[asyncio.Future[None]] = []
        self._awake_at = time.monotonic()
        self._paused_s = self._paused_since_sent_s = 0.0

    @property
    def paused_ms(self) -> int:
        """The longest pause of this process, as far as it shows, since its last heartbeat."""
        paused_s = max(self._paused_s, self._paused_since_sent_s, time.monotonic() - self._awake_at)
        return round(paused_s * 1000)

    def confirm(self, sent_at: float) -> None:
        """Note a heartbeat, or the beginning of the membership, that the server has accepted."""
        was_late = 0 < self._until <= sent_at
        self._until = sent_at + self._silence_s
        if was_late and self.when_late is not None:
            self._late = True
            self._loop.call_soon_threadsafe(self.when_late)
        self._publish()

    def stand_still(self) -> None:
        """Assume that the process stood still: nothing starts until `resume`."""
        self.stood_still, self._late, self.alive_until = True, True, 0.0

    def resume(self) -> None:
        """Allow starts again, after having been late."""
        self._late = False
        self._publish()

    def hold(self) -> None:
        """Let nothing start until `release`."""
        self._held, self.alive_until = True, 0.0

    def release(self) -> None:
        self._held = False
        self._publish()

    def lose(self) -> None:
        """Note that the membership is over."""
        self._lost, self.alive_until = True, 0.0

    async def until_alive(self) -> None:
        """Return as soon as the member is certainly one; never if it was given up."""
        while time.monotonic() >= self.alive_until:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            if time.monotonic() < self.alive_until:  # confirmed by the thread in between
                self._wake()
            await waiter

    async def give(self, send: Callable[[int], Awaitable[bool]]) -> bool:
        """Send a heartbeat with `paused_ms`; whether the server accepted it.

        The wait for the reply is cut into short ones: one that ends late shows a pause.
        """
        paused_ms, sent_at = self.paused_ms, time.monotonic()
        self._paused_s, self._paused_since_sent_s = paused_ms / 1000, 0.0
        self._awake_at = sent_at
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_outcome(send(paused_ms)))
            while not call.done():
                await asyncio.wait((call,), timeout=self._beat_s)
                now = time.monotonic()
                self._paused_since_sent_s = max(self._paused_since_sent_s, now - self._awake_at)
                self._awake_at = now
        accepted = call.result()
        if isinstance(accepted, Exception):
            raise accepted
        self._paused_s = 0.0
        if accepted:
            self.stood_still |= paused_ms >= self._silence_s * 1000
            self.confirm(sent_at)
        return accepted

    def _publish(self) -> None:
        if not (self._lost or self._held or self._late):
            self.alive_until = self._until
            if self._waiters:
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Heartbeat(NamedTuple):
    keys: QueueKeyring
    worker: str
    paused_ms: int
    reply: asyncio.Future[int]


class QueueHeartbeats:
    """Sends the heartbeats of all members of a process, those that are due together as one command.

    To be used in the heartbeat thread. On a cluster queues do not share a hash slot, so each gets a
    command of its own; those for one node leave together, and a node that is away holds up no
    heartbeat to another.
    """

    def __init__(self, *, cluster: bool) -> None:
        self._cluster = cluster
        self._gathered: list[_Heartbeat] = []
        # Not in a task group: no member outlives all others whose heartbeats a command carries.
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, client: Client, keys: QueueKeyring, worker: str, paused_ms: int) -> int:
        """Send a heartbeat; the reply is that of the script `beat_queue`."""
        if self._cluster:
            beat = QueueScripts.of(client).beat_queue
            return await beat(keys=keys, worker=worker, paused_ms=paused_ms)
        loop = asyncio.get_running_loop()
        heartbeat = _Heartbeat(keys, worker, paused_ms, loop.create_future())
        self._gathered.append(heartbeat)
        if len(self._gathered) == 1:
            loop.call_later(_GATHER_S, self._send_gathered, client)
        return await heartbeat.reply

    def _send_gathered(self, client: Client) -> None:
        gathered, self._gathered = self._gathered, []
        for first in range(0, len(gathered), _TOGETHER):
            part = gathered[first : first + _TOGETHER]
            task = asyncio.create_task(self._send(client, part), name="queue heartbeats")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, client: Client, heartbeats: list[_Heartbeat]) -> None:
        replies: list[Reply]
        try:
            replies = await QueueScripts.of(client).beat_queues(
                keys=[one.keys for one in heartbeats],
                signs=[(one.worker, one.paused_ms) for one in heartbeats],
            )
        except ServerError as error:
            replies = [error] * len(heartbeats)
        for heartbeat, reply in zip(heartbeats, replies, strict=True):
            if heartbeat.reply.done():
                continue
            if isinstance(reply, ServerError):
                heartbeat.reply.set_exception(reply)
            else:
                heartbeat.reply.set_result(reply)


async def _outcome(call: Awaitable[bool]) -> bool | Exception:
    """What a call returned, or raised: a task group would wrap that."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001  raised by the caller
        return error


def _ignore(*_: object) -> None: ...
