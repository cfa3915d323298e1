"""The consumers of a worker process, one for each of its queues."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from penstock.delivery.depends import Overrides, Resolver
from penstock.errors import ConfigError
from penstock.queues.registry import QueueRegistry
from penstock.queues.worker.arrival_watcher import ArrivalWakeups
from penstock.queues.worker.consumer import QueueConsumer, places_of
from penstock.queues.worker.membership import QueueHeartbeats
from penstock.queues.worker.tender import Tender
from penstock.runtime.heartbeat import WorkerLoad
from penstock.runtime.heartbeat_thread import HeartbeatThread
from penstock.runtime.service import Service

__all__ = ["QueueConsumers"]


class QueueConsumers:
    """A consumer for each queue that has tasks or a handler, and what keeps them alive."""

    def __init__(
        self,
        registry: QueueRegistry,
        worker_id: str,
        heartbeats: HeartbeatThread,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        overrides: Overrides,
    ) -> None:
        if unknown := set(queues or ()) - registry.queues.keys():
            raise ConfigError(
                f"no queue {min(unknown)!r} in this application; it has "
                + (", ".join(sorted(registry.queues)) or "none")
            )
        served = [
            queue
            for name, queue in registry.queues.items()
            if queue.has_handlers and (queues is None or name in queues)
        ]
        # Enough for all jobs at once: a provider that hangs holds up its own job alone.
        self._providers = ThreadPoolExecutor(
            1 + sum(places_of(queue, concurrency) for queue in served),
            thread_name_prefix="penstock provider",
        )
        self._resolver = Resolver(overrides, executor=self._providers)
        self.consumers: list[QueueConsumer] = []
        self.support: list[Service] = []
        if served:
            client = served[0].client
            tender, wakeups = Tender(client, worker_id), ArrivalWakeups(client)
            beats = QueueHeartbeats(cluster=client.keys.cluster)
            self.consumers = [
                QueueConsumer(
                    queue,
                    worker_id=worker_id,
                    heartbeats=heartbeats,
                    beats=beats,
                    tender=tender,
                    wakeups=wakeups,
                    resolver=self._resolver,
                    concurrency=concurrency,
                )
                for queue in served
            ]
            self.support = [_Cleaner(self._resolver, self._providers), tender, wakeups]
        self._last_look = (time.monotonic(), 0)

    def load(self) -> WorkerLoad:
        """What the worker is doing, for its heartbeat."""
        done = sum(consumer.counts.done for consumer in self.consumers)
        (then, before), now = self._last_look, time.monotonic()
        self._last_look = (now, done)
        running = [job for consumer in self.consumers for job in consumer.jobs]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return WorkerLoad(
            queues=[consumer.queue.name for consumer in self.consumers],
            running=len(running),
            jobs=[f"{job.queue}/{job.item.id or job.claim}" for job in running[:20]],
            done=done,
            failed=sum(consumer.counts.failed for consumer in self.consumers),
            per_s=round((done - before) / (now - then), 1) if now > then else 0.0,
            rss_kb=_resident_kb() or (peak if sys.platform != "darwin" else peak // 1024),
        )


class _Cleaner(Service):
    """Cleans up what jobs shared, after the last of them."""

    def __init__(self, resolver: Resolver, providers: ThreadPoolExecutor) -> None:
        super().__init__("dependencies")
        self._resolver, self._providers = resolver, providers

    def trouble(self) -> str | None:
        return self._resolver.trouble()

    async def run(self) -> None:
        try:
            await self.stop_asked.wait()
        finally:
            await self._resolver.close()
            self._providers.shutdown(wait=False, cancel_futures=True)


def _resident_kb() -> int:
    """Memory in use now; 0 where that is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
            pages = int(statm.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize() // 1024
