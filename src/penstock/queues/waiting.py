"""Waiting for jobs to end: one subscription for all that are awaited in a queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.redis.keys import QueueKeyring
from penstock.redis.wire import Reply

__all__ = ["Announcements", "EndWatch"]

RECHECK_S: Final = 0.25
"""How often awaited jobs are looked at although nothing was announced: a message may be lost with
its connection, and a worker of an earlier version announces nothing."""
RECHECKS_A_SECOND: Final = 200
"""Jobs looked at so: of many each has its turn more rarely."""
SHORTEST_S: Final = 0.002
LONGEST_S: Final = 0.05
"""How often all awaited jobs are looked at while there is no subscription."""
_GROWTH: Final = 1.5
_EACH_S: Final = 20e-6
# Looks at so many jobs cost the server less than a millisecond.
_AT_ONCE: Final = 100
_TOO_LARGE: Final = 1
# An announcement that takes longer than this to come has not been made.
_ANNOUNCED_WITHIN_S: Final = 0.1
_UNANNOUNCED_S: Final = 5.0

Ending = tuple[bytes | None, bytes | None, bytes | None]
"""State, result and error, as they stand in a record; the first is None if there is no record."""


class Announcements(Protocol):
    """Messages on channels of the server."""

    @property
    def is_connected(self) -> bool:
        """Whether messages come at present."""
        ...

    def listen(self, channel: str, hear: Callable[[bytes | None], None]) -> None:
        """Call `hear` with each message, and with None for each new connection."""
        ...


class EndWatch:
    """Waits for the ends of jobs of one queue, for all who do in this process.

    That somebody waits is noted in the job's record, and the script that ends the job announces it
    on the queue's channel. So jobs that nobody waits for cost nothing, and those who wait hear of
    the end at once, however many they are.
    """

    def __init__(
        self,
        client: Client,
        keys: QueueKeyring,
        announcements: Callable[[], Announcements] | None = None,
    ) -> None:
        self._client, self._keys, self._announcements = client, keys, announcements
        self._channel = f"{keys.indexes}ended"
        self._awaited: dict[str, set[asyncio.Future[Ending]]] = {}
        """By their ids as records are named; those that were looked at last come last."""
        self._due: dict[str, None] = {}
        """Those to look at now: new ones, and those that may have ended."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._subscribed = False
        self._looked_at: set[str] = set()
        """Those looked at although nothing was announced."""
        self._unannounced: set[str] = set()
        """Those whose ends were found so a moment ago."""
        self._look_until = 0.0
        """Up to then a worker of an earlier version may end jobs, so a few are looked at often."""
        self._pause_s = SHORTEST_S

    async def end_of(self, job_id: str) -> Ending:
        """Return how a job ended, when it has; at once if there is no record."""
        name = self._keys.record_name(job_id)
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(name, set()).add(future)
        self._due[name] = None
        self._pause_s = SHORTEST_S
        if self._task is None or self._task.done():
            self._news = asyncio.Event()
            self._task = asyncio.create_task(self._run(), name="penstock: awaited jobs")
        self._news.set()
        try:
            return await future
        finally:
            self._forget(name, future)

    def _forget(self, name: str, future: asyncio.Future[Ending]) -> None:
        waiting = self._awaited.get(name)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._awaited[name]
                self._due.pop(name, None)
        if not self._awaited and self._task is not None:
            self._task.cancel()
            self._task = None

    def _hear(self, message: bytes | None) -> None:
        """Learn which jobs have ended; those that nobody awaits here are for other processes."""
        if message is None:
            self._subscribed = True
            self._due.update(dict.fromkeys(self._awaited))
        else:
            ended = message.decode(errors="replace").split(" ")
            self._looked_at.difference_update(ended)
            self._unannounced.difference_update(ended)
            self._due.update(dict.fromkeys(name for name in ended if name in self._awaited))
        if self._due:
            self._news.set()

    async def _run(self) -> None:
        try:
            announcements = self._announcements() if self._announcements is not None else None
            if announcements is not None:
                announcements.listen(self._channel, self._hear)
            while self._awaited:
                self._news.clear()
                await self._look()
                hears = announcements is not None and announcements.is_connected
                await self._rest(hears=hears and self._subscribed)
        except Exception as error:  # noqa: BLE001  who waits is told, instead of waiting on
            for waiting in list(self._awaited.values()):
                _fail(waiting, error)

    async def _look(self) -> None:
        failed: list[str] = []
        while self._due:
            names = [name for name, _ in zip(self._due, range(_AT_ONCE), strict=False)]
            for name in names:
                del self._due[name]
            try:
                replies = await self._client.scripts.await_jobs(keys=self._keys, names=names)
            except ServerError as error:
                replies = list[Reply]([error] * len(names))
            for name, reply in zip(names, replies, strict=True):
                if isinstance(reply, ServerError) and reply.transient:
                    failed.append(name)  # nothing was asked but to look, so it is asked again
                elif reply == _TOO_LARGE:
                    self._due[name] = None
                else:
                    self._learn(name, reply)
        self._due.update(dict.fromkeys(name for name in failed if name in self._awaited))

    async def _rest(self, *, hears: bool) -> None:
        """Wait for news; after a while look at some jobs all the same, without hearing at all."""
        count = len(self._awaited)
        looks = count <= _AT_ONCE and time.monotonic() < self._look_until
        hears = hears and not self._due and not looks
        some = min(count, _AT_ONCE) if hears else count
        wait_s = max(RECHECK_S, some / RECHECKS_A_SECOND) if hears else self._pause_s
        self._pause_s = min(self._pause_s * _GROWTH, LONGEST_S)
        try:
            async with asyncio.timeout(max(wait_s, some * _EACH_S)):
                await self._news.wait()
        except TimeoutError:
            for name, _ in zip(list(self._awaited), range(some), strict=False):
                self._awaited[name] = self._awaited.pop(name)
                self._due[name] = None
                self._looked_at.add(name)

    def _learn(self, name: str, reply: Reply) -> None:
        if name in self._looked_at:
            self._looked_at.discard(name)
            if reply != 0:
                self._unannounced.add(name)
                loop = asyncio.get_running_loop()
                loop.call_later(_ANNOUNCED_WITHIN_S, self._doubt_announcements, name)
        if isinstance(reply, ServerError):
            _fail(self._awaited.get(name, ()), reply)
        elif reply != 0:
            self._pause_s = SHORTEST_S
            for future in self._awaited.get(name, ()):
                if not future.done():
                    future.set_result((reply[0], reply[1], reply[2]))

    def _doubt_announcements(self, name: str) -> None:
        if name in self._unannounced:
            self._unannounced.discard(name)
            self._look_until = time.monotonic() + _UNANNOUNCED_S


def _fail(waiting: set[asyncio.Future[Ending]] | tuple[()], error: Exception) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)
