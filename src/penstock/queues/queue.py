"""A queue in the hands of a program."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, overload

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.looking import text
from penstock.delivery.retries import RetryPolicy
from penstock.errors import ConfigError, OutOfMemory, QueueFull, QueueMismatch
from penstock.queues.adding import Adder, Target
from penstock.queues.handlers import RawHandler, as_isolation
from penstock.queues.isolation import Isolation
from penstock.queues.items import Item
from penstock.queues.job import Job
from penstock.queues.options import (
    Overflow,
    QueueOptions,
    SendOptions,
    as_overflow,
    check_max_size,
    check_work,
)
from penstock.queues.performer import Performer
from penstock.queues.raw import RawJobs
from penstock.queues.results import QueueAddResult, QueuePressure
from penstock.queues.tasks import Task, name_of
from penstock.queues.waiting import Announcements, EndWatch
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import Priority, QueueKeyring
from penstock.redis.wire import Argument

__all__ = ["Queue"]

Handle = TypeVar("Handle", bound=Callable[..., Any])

_DECLARED_FOR_S: Final = 60.0
"""After so long a queue is registered anew: somebody may have deleted it."""
_UNDECLARED_FOR_S: Final = 1.0


class Queue:
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
        self.name = name
        self.client, self.codec = client, codec
        self.keyring = QueueKeyring.of(client.keys, name)
        self.options = options or QueueOptions()
        self.tasks: dict[str, Task[..., Any]] = {}
        self.raw_handler: RawHandler | None = None
        self.ends = EndWatch(client, self.keyring, announcements)
        self._side = ""
        self._limits_told = False
        self._declared_until = 0.0
        self._declaring = asyncio.Lock()
        self._ahead_ms: int | None = None
        self.adder = Adder(self)
        self._raw = RawJobs(self)
        self.plain_target = self.target(SendOptions())

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
        said = SendOptions(
            priority=priority,
            group=group,
            delay=delay,
            at=at,
            unique=unique,
            unique_for=unique_for,
            expires=expires,
            job_id=job_id,
        )
        target = self.target(said, max_size, overflow)
        job = await self._raw.made(data, said, await self._now_for(said))
        if job.needs_script:
            added = await self._raw.submit(job, target)
            return self._result(
                target,
                [added.length, added.moved, added.dropped],
                job_id=added.id,
                created=added.created,
                waits=said.wait() is not None,
            )
        answer = await self.adder.add_one(job.item, target)
        return self._result(target, answer[1:4], job_id=job.id)

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

        They go in chunks of 500, each stored as a whole or not. If some are not, `SendBatchFailed`
        tells of each job what became of it; QueueFull if none was stored for want of room.
        """
        said = SendOptions(priority=priority, group=group, delay=delay, at=at, expires=expires)
        target = self.target(said, max_size, overflow)
        now_ms = await self._now_for(said)
        jobs = [await self._raw.made(data, said, now_ms) for data in many]
        if any(job.needs_script for job in jobs):
            added = await self.adder.submit_many(list(map(self._raw.submission, jobs)), target)
            answer = [
                max(one.length for one in added),
                sum(one.moved for one in added),
                sum(one.dropped for one in added),
            ]
            return self._result(target, answer, waits=said.wait() is not None)
        items, ids = [job.item for job in jobs], [job.id for job in jobs]
        return self._result(target, (await self.adder.add_many(items, ids, target))[1:4])

    async def add_safe(self, data: Any, **options: Any) -> QueueAddResult:
        """As `push`, but a full queue is told by the result: `success` is False."""
        try:
            return await self.push(data, **options)
        except QueueFull as full:
            return QueueAddResult(success=False, queue_length=full.length, error=str(full))

    async def pressure(self, max_size: int | None = None) -> QueuePressure:
        """How full the plain list is; one round trip."""
        most = self.target(SendOptions(), max_size).max_size
        length: int = await self.client.call("LLEN", self.keyring.waiting)
        ratio = length / most if most else 0.0
        return QueuePressure(
            queue_name=self.name,
            current_length=length,
            max_size=most,
            fill_ratio=ratio,
            is_at_pressure_threshold=ratio >= self.client.settings.queues.pressure,
            is_full=bool(most) and length >= most,
            overflow_policy=self.plain_target.overflow,
        )

    def found_fields(self, item: Item, job_id: str, lane: str, max_attempts: int) -> list[Argument]:
        """Names and values for the record of a job that another program pushed."""
        return self._raw.found_fields(item, job_id, lane, max_attempts)

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
            if self.raw_handler is not None:
                raise ConfigError(f"queue {self.name!r} has a handler of raw jobs already")
            self.raw_handler = RawHandler.of(
                function,
                name_of(function),
                concurrency=concurrency,
                retry=retry,
                timeout_s=timeout_s,
                isolation=isolation,
            )
            return function

        return register if function is None else register(function)

    def performers(self) -> dict[str, Performer]:
        """What a worker needs of each task, by name."""
        return {name: task.performer() for name, task in self.tasks.items()}

    def raw_performer(self) -> Performer | None:
        """What a worker needs of the handler of raw jobs, if there is one."""
        if self.raw_handler is None:
            return None
        return self.raw_handler.performer(
            default_type=self.options.type,
            retry=self.options.retry,
            timeout_s=self.options.timeout_s,
            tracked=self.options.status,
        )

    @property
    def records(self) -> bool:
        """Whether some of its jobs have records."""
        return self.options.status or any(task.status for task in self.tasks.values())

    # ---- the queue on the server

    async def declared(self) -> str:
        """Register the queue, and return the side where jobs are pushed: "right" or "left".

        QueueMismatch if `push` says otherwise. Costs a round trip now and then.
        """
        if time.monotonic() < self._declared_until:
            return self._side
        async with self._declaring:
            if time.monotonic() >= self._declared_until:
                await self._declare()
        return self._side

    async def _declare(self) -> None:
        try:
            side, for_s = await self._note_use(), _DECLARED_FOR_S
        except OutOfMemory:
            # A worker that starts on a full server has to drain it.
            side = await self.client.call("HGET", self.keyring.state, "side")
            for_s = _UNDECLARED_FOR_S
        wanted = self.options.push
        held = text(side) if side else wanted or "right"
        if wanted is not None and held != wanted:
            raise QueueMismatch(self.name, held, wanted)
        self._side = held
        self._declared_until = time.monotonic() + for_s
        self._ahead_ms = None  # the clocks may have been set meanwhile

    async def _note_use(self) -> bytes:
        """Register the queue and its options; the side that holds."""
        options, first = self.options, not self._limits_told
        # Later on the limits are left alone: somebody may have changed them meanwhile.
        side, _ = await asyncio.gather(
            self.client.scripts.declare_queue(
                keys=self.keyring,
                side=options.push or "",
                levels=options.levels_text if first else "",
                limit=_text(options.limit) if first else "",
                lane_limit=_text(options.lane_limit) if first else "",
            ),
            self.client.call("SADD", self.client.keys.queues().registry, self.name),
        )
        self._limits_told = True
        return side

    def configure(self, options: QueueOptions) -> None:
        """Take over options that were given after the queue was first named."""
        self.options = options
        self._declared_until, self._limits_told = 0.0, False
        self._raw = RawJobs(self)
        self.plain_target = self.target(SendOptions())

    async def server_ms(self) -> int:
        """What the server's clock says, as far as ours can tell after one look at it."""
        if self._ahead_ms is None:
            seconds, micros = await self.client.call("TIME")
            server_ms = int(seconds) * 1000 + int(micros) // 1000
            self._ahead_ms = server_ms - SYSTEM_CLOCK.wall_ms()
        return SYSTEM_CLOCK.wall_ms() + self._ahead_ms

    async def _now_for(self, options: SendOptions) -> int:
        return await self.server_ms() if options.expires is not None else 0

    # ---- what options mean here

    def target(
        self, options: SendOptions, max_size: int | None = None, overflow: Overflow | None = None
    ) -> Target:
        """Where a job with these options goes."""
        settings = self.client.settings.queues
        check_max_size(max_size)
        most = self.options.max_size if max_size is None else max_size
        if overflow is not None:
            as_overflow(overflow)
        return Target(
            self.lane_of(options),
            overflow or self.options.overflow or settings.overflow_policy,
            settings.max_size if most is None else most,
        )

    def lane_of(self, options: SendOptions) -> str:
        """Name of the lane, encoded; empty for the plain list."""
        if options.group is not None:
            return self.keyring.lane(options.group)
        return options.priority or ""

    def held_key(self, options: SendOptions) -> str:
        """Name of the unique key that the job's end frees; empty if there is none."""
        if options.unique is None or options.unique_for is not None:
            return ""
        return self.keyring.unique(options.unique)

    def _result(
        self,
        target: Target,
        answer: list[int],
        *,
        job_id: str = "",
        created: bool = True,
        waits: bool = False,
    ) -> QueueAddResult:
        length, moved, dropped = answer
        return QueueAddResult(
            success=True,
            queue_length=length,
            moved_to_dlq_count=moved,
            dropped_count=dropped,
            warning=self._warning(target, length, moved, dropped, waits=waits),
            job_id=job_id,
            created=created,
        )

    def _warning(
        self, target: Target, length: int, moved: int, dropped: int, *, waits: bool
    ) -> str | None:
        if moved:
            return f"queue {self.name!r} was full: {moved} jobs were moved to its overflow"
        if dropped:
            return f"queue {self.name!r} was full: {dropped} jobs were dropped"
        most = target.max_size
        if most and length >= most * self.client.settings.queues.pressure:
            which = "jobs not yet due" if waits else "jobs"
            return f"queue {self.name!r} has {length} {which} of {most} that it may have"
        return None


def _text(count: int | None) -> str:
    return "" if count is None else str(count)
