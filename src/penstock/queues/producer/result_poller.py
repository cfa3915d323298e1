"""Waiting for jobs to end: one subscription and one poller for all callers of a queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from penstock.errors import NotOpen, ServerError
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.scripts import AwaitStatus, QueueScripts
from penstock.redis.client import Client
from penstock.redis.wire import Reply

__all__ = ["Announcements", "ResultPoller"]

RECHECK_S: Final = 0.25
"""Interval at which awaited jobs are read although nothing was announced: an announcement may be
lost with its connection, and a worker of an earlier version makes none."""
RECHECKS_A_SECOND: Final = 200
"""Jobs that are read so per second: with more of them, each is read less often."""
SHORTEST_S: Final = 0.002
LONGEST_S: Final = 0.05
"""Bounds of the interval at which all awaited jobs are read while there is no subscription."""
_GROWTH: Final = 1.5
_EACH_S: Final = 20e-6
# Reading this many jobs costs the server less than a millisecond.
_AT_ONCE: Final = 100
# An announcement that takes longer than this was not made.
_ANNOUNCED_WITHIN_S: Final = 0.1
_UNANNOUNCED_S: Final = 5.0

Ending = tuple[bytes | None, bytes | None, bytes | None]
"""State, result and error as stored in a record; the state is None if there is no record."""


class Announcements(Protocol):
    """Messages on channels of the server."""

    @property
    def is_connected(self) -> bool:
        """Whether messages arrive at present."""
        ...

    def listen(self, channel: str, hear: Callable[[bytes | None], None]) -> None:
        """Call `hear` with each message, and with None for each new connection."""
        ...


class ResultPoller:
    """Waits for the ends of jobs of one queue, for all callers in this process.

    An awaited job is marked in its record, and the script that ends it publishes its id on the
    queue's channel. So jobs that are not awaited cost nothing, and callers get the result at once,
    however many jobs they await.
    """

    def __init__(
        self,
        client: Client,
        keys: QueueKeyring,
        announcements: Callable[[], Announcements] | None = None,
    ) -> None:
        self._scripts, self._keys, self._announcements = (
            QueueScripts.of(client),
            keys,
            announcements,
        )
        self._channel = f"{keys.indexes}ended"
        self._awaited: dict[str, set[asyncio.Future[Ending]]] = {}
        """By id as spelled in keys; those read last come last."""
        self._due: dict[str, None] = {}
        """Ids to read now: new ones, and those that may have ended."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """That task, and earlier ones that are ending."""
        self._subscribed = False
        self._rechecked: set[str] = set()
        """Ids read although nothing was announced."""
        self._unannounced: set[str] = set()
        """Ids whose ends were found so a moment ago."""
        self._recheck_until = 0.0
        """Until then a worker of an earlier version may end jobs, so they are read often."""
        self._pause_s = SHORTEST_S

    async def end_of(self, job_id: str) -> Ending:
        """Wait for the end of a job, and return it; returns at once if there is no record."""
        name = self._keys.record_name(job_id)
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(name, set()).add(future)
        self._due[name] = None
        self._pause_s = SHORTEST_S
        if self._task is None or self._task.done():
            self._news = asyncio.Event()
            # It serves all callers, so it belongs to none of them; `close` awaits it.
            self._task = asyncio.create_task(self._run(), name="penstock: awaited jobs")
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)
        self._news.set()
        try:
            return await future
        finally:
            self._forget(name, future)

    async def close(self) -> None:
        """Stop polling; callers that still wait get NotOpen."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for waiting in list(self._awaited.values()):
            _fail(waiting, NotOpen("the client is not open: it was closed meanwhile"))

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
        """Note which jobs have ended; the others are awaited by other processes."""
        if message is None:
            self._subscribed = True
            self._due.update(dict.fromkeys(self._awaited))
        else:
            ended = message.decode(errors="replace").split(" ")
            self._rechecked.difference_update(ended)
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
                await self._read_due()
                hears = announcements is not None and announcements.is_connected
                await self._rest(hears=hears and self._subscribed)
        except Exception as error:  # noqa: BLE001  it is raised in the callers
            for waiting in list(self._awaited.values()):
                _fail(waiting, error)

    async def _read_due(self) -> None:
        failed: list[str] = []
        while self._due:
            names = [name for name, _ in zip(self._due, range(_AT_ONCE), strict=False)]
            for name in names:
                del self._due[name]
            try:
                replies = await self._scripts.await_jobs(keys=self._keys, names=names)
            except ServerError as error:
                replies = list[Reply]([error] * len(names))
            for name, reply in zip(names, replies, strict=True):
                if isinstance(reply, ServerError) and reply.transient:
                    failed.append(name)  # it only reads, so it can be repeated
                elif reply == AwaitStatus.ASK_AGAIN:
                    self._due[name] = None
                else:
                    self._take(name, reply)
        self._due.update(dict.fromkeys(name for name in failed if name in self._awaited))

    async def _rest(self, *, hears: bool) -> None:
        """Wait for news; after a while make some jobs due all the same."""
        count = len(self._awaited)
        rechecks = count <= _AT_ONCE and time.monotonic() < self._recheck_until
        hears = hears and not self._due and not rechecks
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
                self._rechecked.add(name)

    def _take(self, name: str, reply: Reply) -> None:
        if name in self._rechecked:
            self._rechecked.discard(name)
            if reply != AwaitStatus.PENDING:
                self._unannounced.add(name)
                loop = asyncio.get_running_loop()
                loop.call_later(_ANNOUNCED_WITHIN_S, self._doubt_announcements, name)
        if isinstance(reply, ServerError):
            _fail(self._awaited.get(name, ()), reply)
        elif reply != AwaitStatus.PENDING:
            self._pause_s = SHORTEST_S
            for future in self._awaited.get(name, ()):
                if not future.done():
                    future.set_result((reply[0], reply[1], reply[2]))

    def _doubt_announcements(self, name: str) -> None:
        if name in self._unannounced:
            self._unannounced.discard(name)
            self._recheck_until = time.monotonic() + _UNANNOUNCED_S


def _fail(waiting: set[asyncio.Future[Ending]] | tuple[()], error: Exception) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)
