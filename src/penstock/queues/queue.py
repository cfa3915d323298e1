"""The queue object of an application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from penstock.delivery.retries import RetryPolicy
from penstock.errors import ConfigError, QueueFull, TooMany
from penstock.queues.declared_queue import DeclaredQueue, LaneTarget
from penstock.queues.isolation.pool import Isolation
from penstock.queues.job import Job
from penstock.queues.options import Overflow, QueueOptions, SendOptions, check_work
from penstock.queues.producer.enqueuer import Enqueuer
from penstock.queues.producer.raw_jobs import RawJobs
from penstock.queues.producer.result_poller import Announcements
from penstock.queues.producer.results import QueueAddResult, QueuePressure
from penstock.queues.raw_handler import RawHandler, as_isolation
from penstock.queues.signature import task_name_of
from penstock.queues.storage.keys import Priority
from penstock.queues.worker.performer import Performer
from penstock.redis.client import Client
from penstock.redis.codec import Codec

__all__ = ["Queue"]

Handle = TypeVar("Handle", bound=Callable[..., Any])


class Queue(DeclaredQueue):
    """Jobs for competing workers. Made by `app.queue(name, …)`.

        detections = app.queue("detection_queue", max_size=1000, overflow="dlq")
        result = await detections.push({"camera_id": "front_door", "file_path": "…"})

        @detections.handler(concurrency=4)
        async def detect(job: dict) -> None: ...

    The jobs that wait are a Redis list under the queue's name: any program may push to it.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        name: str,
        options: QueueOptions | None = None,
        *,
        announcements: Callable[[], Announcements] | None = None,
    ) -> None:
        super().__init__(client, codec, name, options, announcements=announcements)
        self.enqueuer = Enqueuer(self)
        self.raw_jobs = RawJobs(self, self.enqueuer)
        self._raw_handler: RawHandler | None = None
        self._performers: dict[str, Callable[[], Performer]] = {}

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # ---- adding jobs

    async def push(
        self,
        data: Any,
        *,
        priority: Priority | None = None,
        group: str | None = None,
        delay: float | timedelta | None = None,
        at: datetime | float | None = None,
        unique: str | None = None,
        unique_for: float | timedelta | None = None,
        expires: float | timedelta | datetime | None = None,
        job_id: str | None = None,
        max_size: int | None = None,
        overflow: Overflow | None = None,
    ) -> QueueAddResult:
        """Add one job: text and bytes as they are, anything else as JSON. One round trip.

        - `priority`, `group`, `delay`, `at`, `unique`, `unique_for`, `expires`, `job_id`: see
          `SendOptions`. A job with a unique key that is taken is not added: `created` is False,
          and `job_id` names the holder.
        - `max_size`, `overflow`: instead of the queue's own.

        QueueFull if there is no room and the policy takes no more.
        """
        options = SendOptions(
            priority=priority,
            group=group,
            delay=delay,
            at=at,
            unique=unique,
            unique_for=unique_for,
            expires=expires,
            job_id=job_id,
        )
        target = self.target(options, max_size, overflow)
        job = await self.raw_jobs.encode(data, options, await self._now_for(options))
        if job.needs_submit:
            submitted = await self.raw_jobs.submit(job, target)
            return self._result(
                target,
                submitted.length,
                submitted.moved,
                submitted.dropped,
                job_id=submitted.id,
                created=submitted.created,
                delayed=options.wait() is not None,
            )
        reply = await self.enqueuer.push(target, job.item)
        return self._result(target, reply.length, reply.moved, reply.dropped, job_id=job.id)

    async def push_many(
        self,
        many: Iterable[Any],
        *,
        priority: Priority | None = None,
        group: str | None = None,
        delay: float | timedelta | None = None,
        at: datetime | float | None = None,
        expires: float | timedelta | datetime | None = None,
        max_size: int | None = None,
        overflow: Overflow | None = None,
    ) -> QueueAddResult:
        """Add many jobs. All are checked and encoded before the first is sent.

        They are sent in chunks of 500, each stored completely or not at all. If some are not
        stored, `SendBatchFailed` has the outcome of each job; QueueFull if the queue had no room
        for any.
        """
        options = SendOptions(priority=priority, group=group, delay=delay, at=at, expires=expires)
        target = self.target(options, max_size, overflow)
        now_ms = await self._now_for(options)
        jobs = [await self.raw_jobs.encode(data, options, now_ms) for data in many]
        if any(job.needs_submit for job in jobs):
            submissions = [self.raw_jobs.submission(job) for job in jobs]
            submitted = await self.enqueuer.submit_many(submissions, target)
            return self._result(
                target,
                max(one.length for one in submitted),
                sum(one.moved for one in submitted),
                sum(one.dropped for one in submitted),
                delayed=options.wait() is not None,
            )
        items, ids = [job.item for job in jobs], [job.id for job in jobs]
        reply = await self.enqueuer.push_many(items, ids, target)
        return self._result(target, reply.length, reply.moved, reply.dropped)

    async def add_safe(self, data: Any, **options: Any) -> QueueAddResult:
        """As `push`, but for want of room the result's `success` is False."""
        try:
            return await self.push(data, **options)
        except QueueFull as full:
            return QueueAddResult(success=False, queue_length=full.length, error=str(full))
        except TooMany as many:
            return QueueAddResult(success=False, queue_length=0, error=str(many))

    async def pressure(self, max_size: int | None = None) -> QueuePressure:
        """How full the plain list is; one round trip."""
        limit = self.target(SendOptions(), max_size).max_size
        length: int = await self.client.call("LLEN", self.keyring.waiting)
        ratio = length / limit if limit else 0.0
        return QueuePressure(
            queue_name=self.name,
            current_length=length,
            max_size=limit,
            fill_ratio=ratio,
            is_at_pressure_threshold=ratio >= self.client.settings.queues.pressure,
            is_full=bool(limit) and length >= limit,
            overflow_policy=self.plain_target.overflow,
        )

    def job(self, job_id: str) -> Job[Any]:
        """Return a handle on a job that was added before."""
        return Job(self, job_id, False)

    # ---- performing jobs

    @overload
    def handler(self, function: Handle, /) -> Handle: ...
    @overload
    def handler(
        self,
        /,
        *,
        concurrency: int | None = None,
        retry: RetryPolicy | None = None,
        timeout_s: float | None = None,
        isolate: bool | Isolation = False,
    ) -> Callable[[Handle], Handle]: ...
    def handler(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        concurrency: int | None = None,
        retry: RetryPolicy | None = None,
        timeout_s: float | None = None,
        isolate: bool | Isolation = False,
    ) -> Any:
        """Register the function that performs the raw jobs of the queue; `app.worker()` runs it.

        It takes the payload, and perhaps a parameter annotated as `JobContext`.
        """
        check_work("handler", retry or RetryPolicy(), timeout_s, concurrency)
        isolation = as_isolation(isolate)

        def register(function: Handle) -> Handle:
            if self._raw_handler is not None:
                raise ConfigError(f"queue {self.name!r} has a handler of raw jobs already")
            self._raw_handler = RawHandler.of(
                function,
                task_name_of(function),
                concurrency=concurrency,
                retry=retry,
                timeout_s=timeout_s,
                isolation=isolation,
            )
            return function

        return register if function is None else register(function)

    def add_task(self, name: str, performer: Callable[[], Performer]) -> None:
        """Register a task; `performer` makes what a worker needs to run it."""
        self._performers[name] = performer

    @property
    def has_handlers(self) -> bool:
        """Whether a worker of this program has something to run here."""
        return bool(self._performers) or self._raw_handler is not None

    def performers(self) -> dict[str, Performer]:
        """Performers of the tasks, by name."""
        return {name: performer() for name, performer in self._performers.items()}

    def raw_performer(self) -> Performer | None:
        """Performer of raw jobs, if there is a handler."""
        if self._raw_handler is None:
            return None
        return self._raw_handler.performer(
            default_type=self.options.type,
            retry=self.options.retry,
            timeout_s=self.options.timeout_s,
            tracked=self.options.status,
        )

    # ---- lifetime

    def configure(self, options: QueueOptions) -> None:
        """Replace the default options by those given after the queue was first named."""
        super().configure(options)
        self.raw_jobs = RawJobs(self, self.enqueuer)

    async def close(self) -> None:
        """Wait for sends in flight, which fail once the client is closed, and stop polling."""
        await self.enqueuer.close()
        await self.results.close()

    async def _now_for(self, options: SendOptions) -> int:
        return await self.server_ms() if options.expires is not None else 0

    def _result(
        self,
        target: LaneTarget,
        length: int,
        moved: int,
        dropped: int,
        *,
        job_id: str = "",
        created: bool = True,
        delayed: bool = False,
    ) -> QueueAddResult:
        return QueueAddResult(
            success=True,
            queue_length=length,
            moved_to_dlq_count=moved,
            dropped_count=dropped,
            warning=self._warning(target, length, moved, dropped, delayed=delayed),
            job_id=job_id,
            created=created,
        )

    def _warning(
        self, target: LaneTarget, length: int, moved: int, dropped: int, *, delayed: bool
    ) -> str | None:
        if moved:
            return f"queue {self.name!r} was full: {moved} jobs were moved to its overflow"
        if dropped:
            return f"queue {self.name!r} was full: {dropped} jobs were dropped"
        limit = target.max_size
        if limit and length >= limit * self.client.settings.queues.pressure:
            which = "delayed jobs" if delayed else "jobs"
            return f"queue {self.name!r} has {length} {which} of {limit} allowed"
        return None
