"""A worker's heartbeat and description on the server."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
import secrets
from collections.abc import Callable

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.redis.client import Client
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.runtime.duty import Duty
from penstock.runtime.keys import WorkersKeys
from penstock.runtime.service import Readiness

__all__ = ["Heartbeat", "WorkerAbout", "WorkerLoad", "WorkerScripts"]

logger = logging.getLogger(__name__)

FORGET_AFTER_MS = 24 * 3_600_000
"""How long the id of a worker that died stays on the list."""
_LEAVE_S = 0.5


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is doing for its queues."""

    queues: list[str] = []
    running: int = 0
    jobs: list[str] = []
    """Some of the jobs under way, as `queue/id`."""
    done: int = 0
    failed: int = 0
    per_s: float = 0.0
    """Jobs done per second since the beat before."""
    rss_kb: int = 0


_NO_LOAD = WorkerLoad()


class WorkerAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The description that a worker stores with its heartbeats."""

    host: str
    pid: int
    started_ms: int
    ready: bool
    reasons: list[str] = []
    load: WorkerLoad = _NO_LOAD
    details: dict[str, str] = {}
    """Facts about its services, by name: `documents.fences`."""


class WorkerScripts(ScriptCaller):
    """Scripts of workers, as typed calls."""

    lua = LuaFolder("penstock.runtime")

    async def beat_worker(
        self, *, workers: str, worker: str, worker_id: str, about: bytes, ttl_ms: int
    ) -> int:
        """Record a worker's heartbeat; returns the server's time in ms."""
        arguments = (worker_id, about, ttl_ms, FORGET_AFTER_MS)
        return await self.run("beat_worker", (workers, worker), arguments)

    async def remove_worker(self, *, workers: str, worker: str, worker_id: str) -> bool:
        """Remove a worker's record; False if there was none."""
        return bool(await self.run("remove_worker", (workers, worker), (worker_id,)))


class Heartbeat(Duty):
    """Beats every `worker.heartbeat_s`; a worker that ends in an orderly way removes its record.

    A server at `maxmemory` still takes the beats (the script is flagged `allow-oom`), except Redis
    before 7, which knows no such flag: there a full server makes every worker appear dead, and each
    worker not ready, until there is room again.
    """

    def __init__(
        self, client: Client, readiness: Callable[[], Readiness], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        settings = client.settings.worker
        super().__init__("heartbeat", self._beat, every_s=settings.heartbeat_s, clock=clock)
        # Some names of machines would have to be encoded where they stand in keys.
        host = re.sub(r"[^A-Za-z0-9_.-]", "-", platform.node()) or "localhost"
        self.worker_id = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self.load: Callable[[], WorkerLoad] | None = None
        """What the worker is doing, if it works for queues."""
        self.facts: Callable[[], dict[str, str]] = dict
        """Details of the worker's services."""
        self._client, self._readiness = client, readiness
        self._keys = WorkersKeys.of(client.keys)
        self._ttl_ms = round(settings.heartbeat_ttl_s * 1000)
        self._host, self._started_ms = host, clock.wall_ms()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._leave()

    async def _beat(self) -> None:
        readiness = self._readiness()
        about = WorkerAbout(
            host=self._host,
            pid=os.getpid(),
            started_ms=self._started_ms,
            ready=readiness.ready,
            reasons=[*readiness.reasons, *readiness.notes],
            load=self.load() if self.load is not None else _NO_LOAD,
            details=self.facts(),
        )
        await WorkerScripts.of(self._client).beat_worker(
            workers=self._keys.heartbeats,
            worker=self._keys.info(self.worker_id),
            worker_id=self.worker_id,
            about=msgspec.json.encode(about),
            ttl_ms=self._ttl_ms,
        )

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(_LEAVE_S):
                await WorkerScripts.of(self._client).remove_worker(
                    workers=self._keys.heartbeats,
                    worker=self._keys.info(self.worker_id),
                    worker_id=self.worker_id,
                )
        except (PenstockError, TimeoutError) as error:
            why = error if str(error) else f"no answer within {_LEAVE_S:g} s"
            logger.warning("the worker's record stays until it expires: %s", why)
