"""Heartbeats from a thread, which a blocked event loop of the process does not stop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.runtime.service import Service
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["Beat", "HeartbeatThread"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# So many beats come together, the next ones at another time: a thread that computes for long would
# keep the event loop of the process from its work.
_TOGETHER: Final = 16
_SPREAD: Final = 0.618
"""Multiples of the golden section divide an interval evenly, however many there are."""


@dataclass(frozen=True, eq=False, slots=True)
class Beat:
    """One heartbeat: `send` is called at least every `every_s`."""

    name: str
    every_s: float
    send: Callable[[Client], Awaitable[None]]
    """Runs in the thread. It may read what the event loop writes, and calls back into the loop
    with `call_soon_threadsafe` only."""


class HeartbeatThread(Service):
    """Sends the heartbeats of a worker's queues and topics, all from one thread.

    The thread has an event loop and a connection of its own, so a handler that computes for minutes
    without awaiting anything does not make its process appear dead. (One that holds the GIL for
    that long does: run it in a process of its own, as `isolate` does for jobs.)
    """

    def __init__(self, client: Client) -> None:
        super().__init__("heartbeat thread")
        self._client = client
        self._lock = threading.Lock()
        self._beats: dict[Beat, asyncio.Task[None] | None] = {}
        self._troubles: dict[Beat, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the thread, while it takes orders."""
        self._group: asyncio.TaskGroup | None = None
        self._end: asyncio.Event | None = None
        self._over = False
        self._phase = random.uniform(0, 3_600)  # noqa: S311  so that not all processes beat at once
        self._numbers = itertools.count()

    def trouble(self) -> str | None:
        return next(iter(self._troubles.copy().values()), None)

    def add(self, beat: Beat) -> None:
        """Send this heartbeat from now on, the first one at once."""
        with self._lock:
            self._beats[beat] = None
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._start_beat, beat)

    def remove(self, beat: Beat) -> None:
        """Stop it. One that is on its way may still arrive."""
        with self._lock:
            task = self._beats.pop(beat, None)
            if self._loop is not None and task is not None:
                self._loop.call_soon_threadsafe(task.cancel)

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._ask_thread_to_end()

    async def run(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        failure: list[BaseException] = []

        def live() -> None:
            try:
                asyncio.run(self._beat_until_stopped())
            except BaseException as error:  # noqa: BLE001  it is raised in the service's own task
                failure.append(error)
            finally:
                loop.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=live, name="penstock heartbeats", daemon=True)
        thread.start()
        try:
            await ended.wait()
        finally:
            self._ask_thread_to_end()
            await ended.wait()
            thread.join()
        if failure:
            raise failure[0]

    # ---- in the thread

    async def _beat_until_stopped(self) -> None:
        own, end = asyncio.get_running_loop(), asyncio.Event()
        client, opening = Client(self._client.settings, visits=True), asyncio.Lock()
        self._connect = lambda: _opened(client, opening)
        try:
            # A beat that fails with anything but the server is a defect: it ends the worker.
            async with asyncio.TaskGroup() as group:
                with self._lock:
                    self._loop, self._end, self._group = own, end, group
                    for beat in self._beats:
                        own.call_soon(self._start_beat, beat)
                    over = self._over
                try:
                    if not over:
                        await end.wait()
                finally:
                    with self._lock:
                        self._loop = None
                        tasks = list(self._beats.values())
                    for task in tasks:  # those of removed beats are about to end
                        if task is not None:
                            task.cancel()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            await client.close()

    def _start_beat(self, beat: Beat) -> None:
        with self._lock:
            if beat in self._beats and self._loop is not None and self._group is not None:
                self._beats[beat] = self._group.create_task(
                    self._repeat(beat, next(self._numbers)), name=f"beat {beat.name}"
                )

    async def _repeat(self, beat: Beat, number: int) -> None:
        failures = 0
        try:
            while True:
                try:
                    await beat.send(await self._connect())
                    failures = 0
                    self._troubles.pop(beat, None)
                except ServerError as error:
                    failures += 1
                    self._troubles[beat] = f"no sign of life for {beat.name}: {error}"
                    quiet.warning(
                        f"{beat.name} {type(error).__name__}",
                        "no sign of life for %s: %s; trying again",
                        beat.name,
                        error,
                    )
                wait_s = self._until_next(beat.every_s, number)
                await asyncio.sleep(min(retry_delay_s(failures), wait_s) if failures else wait_s)
        finally:
            self._troubles.pop(beat, None)

    def _until_next(self, every_s: float, number: int) -> float:
        """Seconds until the next beat: a few beats that come as often come together."""
        phase_s = self._phase + number // _TOGETHER * _SPREAD * every_s
        return every_s - (asyncio.get_running_loop().time() + phase_s) % every_s

    # ---- small parts

    def _ask_thread_to_end(self) -> None:
        with self._lock:
            self._over = True
            if self._loop is not None and self._end is not None:
                self._loop.call_soon_threadsafe(self._end.set)


async def _opened(client: Client, opening: asyncio.Lock) -> Client:
    """The client of the thread; the server may be away when it begins."""
    async with opening:
        await client.open()
    return client
