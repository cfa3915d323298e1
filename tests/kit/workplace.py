"""Programs that send and run jobs: as many as a test wants, each with its own connections."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from tests.kit.scripts import scripts_of

from penstock import Penstock
from penstock.queues.queue import Queue
from penstock.runtime.worker import Worker
from penstock.settings import CodecSettings, QueueSettings, Settings, WorkerSettings
from penstock.testing.eventually import eventually

QUICK = {"poll_s": 0.02, "beat_s": 0.1, "silence_s": 2.0}


class Workplace:
    """Opens applications on one server and runs their workers, which all end with the test."""

    def __init__(self, url: str, namespace: str = "") -> None:
        self._url, self._namespace = url, namespace
        self._apps: list[Penstock] = []
        self._running: dict[Worker, asyncio.Task[int]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for worker in list(self._running):
                await self.stop(worker)
        finally:
            for app in self._apps:
                await app.close()

    async def open(
        self,
        *,
        codec: CodecSettings | None = None,
        grace_s: float = 1.0,
        worker_poll_s: float = 0.2,
        **queues: Any,
    ) -> Penstock:
        """Another program, as far as the server can tell."""
        settings = Settings(
            url=self._url,
            namespace=self._namespace,
            queues=QueueSettings(**{**QUICK, **queues}),
            worker=WorkerSettings(grace_s=grace_s, poll_s=worker_poll_s),
            codec=codec or CodecSettings(),
        )
        app = Penstock(settings=settings)
        self._apps.append(app)
        await app.open()
        return app

    async def start(self, app: Penstock, **options: Any) -> Worker:
        """Run a worker of an application beside the test, until the test ends or stops it."""
        worker = self.begin(app, **options)
        await eventually(lambda: worker.readiness().ready)
        return worker

    def begin(self, app: Penstock, **options: Any) -> Worker:
        """As `start`, for a worker that may never get ready."""
        worker = app.worker(**options)
        self._running[worker] = asyncio.create_task(worker.run())
        return worker

    async def ended(self, worker: Worker, within_s: float = 60.0) -> int:
        """Wait for a worker that ends by itself; as `stop`."""
        await asyncio.wait([self._running[worker]], timeout=within_s)
        return await self.stop(worker)

    async def stop(self, worker: Worker) -> int:
        """Stop a worker in good order; its exit code. What it failed with is raised."""
        running = self._running.pop(worker)
        await worker.stop()
        code = await running
        for failure in worker.failures:
            raise failure
        return code


async def stored(queue: Queue, lane: str = "") -> list[bytes]:
    """What waits in a lane, as it stands there."""
    return await queue.client.call("LRANGE", queue.keyring.list_of(lane), 0, -1)


async def letters(queue: Queue) -> list[bytes]:
    """The dead letters, as they stand there."""
    return await queue.client.call("LRANGE", queue.keyring.dead_letters, 0, -1)


async def counters(queue: Queue) -> dict[str, int]:
    """What has happened in the queue so far."""
    flat = await queue.client.call("HGETALL", queue.keyring.counters)
    return {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2], strict=True)}


async def record(queue: Queue, job_id: str) -> dict[str, str]:
    """The fields of a job's record."""
    flat = await queue.client.call("HGETALL", queue.keyring.record(job_id))
    return {
        name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)
    }


async def in_hand(queue: Queue) -> int:
    """How many jobs workers have in hand, dead ones included."""
    names = await queue.client.call("ZRANGE", queue.keyring.workers, 0, -1)
    names += await queue.client.call("ZRANGE", queue.keyring.dead_workers, 0, -1)
    held = [await queue.client.call("HLEN", queue.keyring.claims + name.decode()) for name in names]
    return sum(held)


async def claim_as(queue: Queue, worker: str, most: int) -> list[bytes]:
    """Take jobs as a worker that then falls silent: it is dead after `silence_s`."""
    scripts = scripts_of(queue.client)
    await scripts.join_queue(keys=queue.keyring, worker=worker)
    reply = await scripts.claim_jobs(keys=queue.keyring, worker=worker, first=1, most=most, done=())
    assert reply is not None
    return [item for items in reply.lanes[1::2] for item in items]
