"""The signs of life that a worker gives to its queues, from a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

from penstock.errors import ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import QueueKeyring
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.service import Service
from penstock.settings import Settings

__all__ = ["Lifeline"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)


class Lifeline(Service):
    """Beats every `queues.beat_s` for each queue that the worker is a member of.

    The thread has an event loop and a connection of its own, so a handler that computes for minutes
    without awaiting anything does not make its worker look dead. (One that holds the interpreter's
    lock for that long does: run it with `isolate`.)
    """

    def __init__(self, client: Client) -> None:
        super().__init__("lifeline")
        self._client = client
        self._every_s = client.settings.queues.beat_s
        self._members: dict[tuple[str, str], tuple[QueueKeyring, Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._end: Callable[[], object] | None = None
        self._trouble: str | None = None

    def trouble(self) -> str | None:
        return self._trouble

    def hold(self, worker: str, keys: QueueKeyring, when_dead: Callable[[], None]) -> None:
        """Beat for a member; `when_dead` is called in the event loop if it was given up."""
        with self._lock:
            self._members[keys.queue, worker] = (keys, when_dead)

    def drop(self, worker: str, keys: QueueKeyring) -> None:
        with self._lock:
            self._members.pop((keys.queue, worker), None)

    async def run(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        failure: list[BaseException] = []

        def live() -> None:
            try:
                asyncio.run(self._beat_for_ever(loop))
            except BaseException as error:  # noqa: BLE001  it is raised in the service's own task
                failure.append(error)
            finally:
                loop.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=live, name="penstock lifeline", daemon=True)
        thread.start()
        try:
            stopped = asyncio.create_task(self.stop_asked.wait())
            over = asyncio.create_task(ended.wait())
            await asyncio.wait((stopped, over), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            over.cancel()
        finally:
            if self._end is not None:
                self._end()
            await ended.wait()
            thread.join()
        if failure:
            raise failure[0]

    async def _beat_for_ever(self, loop: asyncio.AbstractEventLoop) -> None:
        own = asyncio.get_running_loop()
        enough = asyncio.Event()
        self._end = lambda: own.call_soon_threadsafe(enough.set)
        if self.stopping:
            return
        client, failures = Client(self._settings()), 0
        try:
            while not enough.is_set():
                try:
                    await client.open()  # nothing to do from the second time on
                    await self._beat(client, loop)
                    failures, self._trouble = 0, None
                except ServerError as error:
                    failures += 1
                    self._trouble = f"lifeline: {error}"
                    quiet.warning(type(error).__name__, "lifeline: %s; trying again", error)
                wait_s = min(retry_delay_s(failures), self._every_s) if failures else self._every_s
                try:
                    async with asyncio.timeout(wait_s):
                        await enough.wait()
                except TimeoutError:
                    pass
        finally:
            await client.close()

    async def _beat(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            members = list(self._members.items())
        alive = await asyncio.gather(
            *(
                client.scripts.beat_queue(keys=keys, worker=worker)
                for (_, worker), (keys, _) in members
            ),
            return_exceptions=True,
        )
        failed = None
        for ((_, worker), (keys, when_dead)), answer in zip(members, alive, strict=True):
            if isinstance(answer, BaseException):
                failed = answer
            elif not answer:
                self.drop(worker, keys)
                loop.call_soon_threadsafe(when_dead)
        if failed is not None:
            raise failed

    def _settings(self) -> Settings:
        """Those of the worker; its embedded server is only visited, not attached to."""
        settings = self._client.settings
        if self._client.embedded is None:
            return settings
        return replace(settings, url=f"unix://{quote(self._client.embedded.endpoint.path)}")
