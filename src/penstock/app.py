"""Penstock: the object a user holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from penstock.coordination.access import Coordination
from penstock.named import Named
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.delivery.depends import Overrides
    from penstock.delivery.retries import RetryPolicy
    from penstock.queues.admin import QueueAdmin
    from penstock.queues.job import Job
    from penstock.queues.options import Block, Gate, Overflow, SendWords, Side
    from penstock.queues.queue import Queue
    from penstock.queues.recurring import RecurringWords
    from penstock.queues.registry import QueueRegistry
    from penstock.queues.results import QueueAddResult, QueuePressure
    from penstock.queues.schedules import Schedules
    from penstock.queues.tasks import Task, TaskDecorator, TaskWords
    from penstock.redis.doctor import Diagnosis
    from penstock.redis.health import Health
    from penstock.repair.repairs import Repairs
    from penstock.runtime.heartbeat_thread import HeartbeatThread
    from penstock.runtime.service import Service
    from penstock.runtime.worker import Worker
    from penstock.topics.admin import TopicAdmin
    from penstock.topics.consumer import Consumer
    from penstock.topics.durability import Durability
    from penstock.topics.facts import Retention
    from penstock.topics.partitioners import Partitioner
    from penstock.topics.subscription import SubscriptionOptions
    from penstock.topics.topic import Topic

__all__ = ["Penstock"]

Handle = TypeVar("Handle", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class Penstock(Coordination):
    """One system on one server.

        app = Penstock()                       # the embedded server
        app = Penstock("redis://localhost")    # or yours

        async with app:
            print(await app.health())

    Settings come from `penstock.toml` and the environment; `url` wins over both. Whoever passes
    `settings` decides all of them.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self.settings)
        self.codec = Codec(self.settings.codec)
        self._topics: Named[Topic] = Named()
        self._workers: WeakSet[Worker] = WeakSet()
        self._registry: QueueRegistry | None = None
        self._schedules: Schedules | None = None
        self._overrides: Overrides | None = None

    def __repr__(self) -> str:
        return f"Penstock({str(self.redis.address)!r})"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; without an address, start the embedded server unless it runs."""
        await self.redis.open()

    async def close(self) -> None:
        """End every connection. May come twice, or before any open.

        Workers that still run here are cut first, so that they give their jobs back: a program
        that ends by Ctrl-C often leaves this block before it has stopped them.
        """
        try:
            for worker in list(self._workers):
                await worker.cut()
            await self.close_coordination()
            for topic in self._topics:
                await topic.close()
        finally:
            await self.redis.close()

    async def health(self) -> Health:
        """Probe the server with a real write; never raises, never hangs. Needs no open."""
        from penstock.redis.health import check_health  # noqa: PLC0415

        return await check_health(self.redis)

    async def doctor(self) -> Diagnosis:
        """Judge how the server is set up, and what grows there without a bound."""
        from penstock.redis.doctor import diagnose  # noqa: PLC0415
        from penstock.repair.growth import find_growth  # noqa: PLC0415

        diagnosis = await diagnose(self.redis)
        if diagnosis.connected:
            diagnosis.findings.extend(await find_growth(self.redis, self.codec))
        return diagnosis

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        type: Any = Any,  # noqa: A002  it is what the caller means
        partitioner: Partitioner | None = None,
        durability: Durability = "accepted",
        retention: Retention | None = None,
        dead_letter_retention: Retention | None = None,
        interop: bool = False,
    ) -> Topic:
        """Return a topic to send to and to subscribe to; it is created with its first use.

        The same one for the same name and options. Other options make another object for the same
        topic. A partitioner of your own counts as the same if it is the same object, or equal.

        - `partitions`: how many a new topic gets; `TopicMismatch` if it has another number.
        - `type`: of the payloads, unless a handler's annotation says so.
        - `durability`: when a send counts as done: "accepted", "synced" or `replicated(n)`.
        - `retention`, `dead_letter_retention`: how long messages and dead letters stay.
        - `interop`: write entries as the Java library does, field by field.
        """
        # Programs that have no topics do not pay for importing them.
        from penstock.topics.topic import Topic  # noqa: PLC0415

        options: dict[str, Any] = {
            "partitions": partitions,
            "type": type,
            "partitioner": partitioner,
            "durability": durability,
            "retention": retention,
            "dead_letter_retention": dead_letter_retention,
            "interop": interop,
        }
        return self._topics.get(
            name, options, lambda: Topic(self.redis, self.codec, name, **options)
        )

    @property
    def topics(self) -> TopicAdmin:
        """Look at topics and groups, and change them: what `penstock topic` and `group` do."""
        from penstock.topics.admin import TopicAdmin  # noqa: PLC0415

        return TopicAdmin(self.redis, self.codec)

    @property
    def queues(self) -> QueueAdmin:
        """Look at queues and their jobs, and change them: what `penstock queue` and `job` do."""
        from penstock.queues.admin import QueueAdmin  # noqa: PLC0415

        return QueueAdmin(self.redis, self.codec)

    @property
    def repairs(self) -> Repairs:
        """Find what other programs have left in the way, and remove it: what `repair` does."""
        from penstock.repair.repairs import Repairs  # noqa: PLC0415

        return Repairs(self.redis)

    def subscribe(
        self, topic: str, group: str, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[Handle], Handle]:
        """Register a handler for a topic; `worker()` runs it. As `Topic.subscribe`."""
        return self.topic(topic).subscribe(group, **options)

    @property
    def registry(self) -> QueueRegistry:
        """The queues and tasks that were named so far."""
        if self._registry is None:
            # Programs that have no queues do not pay for importing them.
            from penstock.queues.registry import QueueRegistry  # noqa: PLC0415

            self._registry = QueueRegistry(self.redis, self.codec, lambda: self.hints)
        return self._registry

    def queue(
        self,
        name: str,
        *,
        push: Side | None = None,
        type: Any = Any,  # noqa: A002  it is what the caller means
        status: bool = False,
        max_size: int | None = None,
        max_bytes: int = 0,
        overflow: Overflow | None = None,
        levels: tuple[int, int, int] | Literal["strict"] | None = None,
        limit: int | None = None,
        lane_limit: int | None = None,
        retry: RetryPolicy | None = None,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        status_fields: tuple[str, ...] = (),
        gate: Gate | None = None,
    ) -> Queue:
        """Return a queue to push raw jobs to and to handle them; the same one for the same name.

        - `push`: the end of the list where jobs are added; `QueueMismatch` if others say otherwise.
        - `type`: of the jobs, unless the handler's annotation says so.
        - `status`: keep a record of each job; `status_fields` of a JSON job are copied into it.
        - `max_size`, `max_bytes`: most jobs that wait in it, or in one of its lanes; 0 for any.
        - `overflow`: what a full queue does: "reject", "dlq", "drop_oldest" or `block(timeout_s)`.
        - `levels`: weights of high, normal and low priority; "strict" is the default.
        - `limit`, `lane_limit`: most jobs that run at once over all workers, or in a fair lane.
        - `retry`, `timeout_s`, `concurrency`: for its jobs, unless a task or handler says so.
        - `gate`: asked before jobs are taken.
        """
        from penstock.delivery.retries import RetryPolicy  # noqa: PLC0415
        from penstock.queues.options import QueueOptions  # noqa: PLC0415

        options = QueueOptions(
            push=push,
            type=type,
            status=status,
            max_size=max_size,
            max_bytes=max_bytes,
            overflow=overflow,
            levels=levels,
            limit=limit,
            lane_limit=lane_limit,
            retry=RetryPolicy() if retry is None else retry,
            timeout_s=timeout_s,
            concurrency=concurrency,
            status_fields=status_fields,
            gate=gate,
        )
        return self.registry.queue(name, options)

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, /, *, queue: str | Queue = "default", **options: Unpack[TaskWords]
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str | Queue = "default",
        **options: Unpack[TaskWords],
    ) -> Any:
        """Make a function's calls jobs of a queue: `@app.task`, or `@app.task(queue="mail", …)`.

        - `name`: of the task; by default the module's and the function's.
        - `retry`, `timeout` (seconds), `concurrency` (in one worker): by default the queue's.
        - `status`: keep a record of each job, for `status()` and `result()`.
        - `isolate`: run it in a child process; True, or `Isolation(memory_mb=…)`.
        - `priority`, `expires`: of its jobs, unless `with_options` says otherwise.
        - `unique`: True for one job at a time with the same arguments, a text for one at a time at
          all, or a function of the arguments that gives the key.
        """
        if function is not None:
            return self.registry.task(function, queue)
        return partial(self.registry.task, queue=queue, **options)

    def cron(
        self, expression: str, *, tz: str = "UTC", **words: Unpack[RecurringWords]
    ) -> TaskDecorator:
        """Let a function or a task recur: `@app.cron("*/5 * * * *")`; workers see to it.

        - `expression`: minute, hour, day of the month, month and day of the week, in `tz`.
        - `args`, `kwargs`: what it is called with.
        - `missed`: what becomes of ticks when no worker was there: "skip", "once" or "all".
        - `jitter_s`: each tick comes up to so much later.
        - `name`: of the task and its schedule; of the schedule alone, if it is a task already.
        - the others are those of `task`, for a function of which a task is made.

        Each tick makes one job, however many workers there are. ConfigError for what never comes.
        """
        from penstock.queues.cron import Cron  # noqa: PLC0415
        from penstock.queues.recurring import recurring_decorator  # noqa: PLC0415

        return recurring_decorator(self.registry, self.schedules, Cron(expression, tz), words)

    def every(
        self,
        period: float | timedelta,
        *,
        offset: float | timedelta = 0,
        **words: Unpack[RecurringWords],
    ) -> TaskDecorator:
        """Let a function or a task recur every so many seconds, counted from 1970; as `cron`."""
        from penstock.queues.cron import Every  # noqa: PLC0415
        from penstock.queues.recurring import recurring_decorator  # noqa: PLC0415

        return recurring_decorator(self.registry, self.schedules, Every(period, offset), words)

    @property
    def schedules(self) -> Schedules:
        """What recurs: list it, and pause, resume, trigger or remove it by name."""
        if self._schedules is None:
            from penstock.queues.schedules import Schedules  # noqa: PLC0415

            self._schedules = Schedules(self.redis)
        return self._schedules

    def send(
        self,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **options: Unpack[SendWords],
    ) -> Coroutine[Any, Any, Job[Any]]:
        """Queue a call of a task by its name, without its code; options as in `with_options`."""
        return self.registry.send(task, args, kwargs, queue=queue, **options)

    def add_to_queue_safe(
        self,
        queue_name: str,
        data: Any,
        max_size: int | None = None,
        overflow_policy: str | Block | None = None,
    ) -> Coroutine[Any, Any, QueueAddResult]:
        """Add a raw job; a full queue is told by the result. An unknown policy means "reject"."""
        return self.registry.add_to_queue_safe(queue_name, data, max_size, overflow_policy)

    def get_queue_pressure(
        self, queue_name: str, max_size: int | None = None, timeout: float = 5.0
    ) -> Coroutine[Any, Any, QueuePressure]:
        """How full a queue is. TimeoutError if the server does not say so in time."""
        return self.registry.get_queue_pressure(queue_name, max_size, timeout)

    @property
    def dependencies(self) -> Overrides:
        """What tests put in the place of what functions depend on: see `Depends`."""
        if self._overrides is None:
            from penstock.delivery.depends import Overrides  # noqa: PLC0415

            self._overrides = Overrides()
        return self._overrides

    def worker(
        self,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        services: Sequence[Service] = (),
    ) -> Worker:
        """A worker for this process; `await worker.run()` returns its exit code.

        It runs a consumer for each subscription and each queue, moves delayed messages, keeps the
        schedules and closes the batches of windows that are due. `queues` picks some of the
        queues, and leaves the subscriptions to others; `concurrency` is for each of them.
        `services` run beside, for as long as the worker does.
        """
        # Most programs that import penstock only send work.
        from penstock.runtime.heartbeat import Heartbeat  # noqa: PLC0415
        from penstock.runtime.heartbeat_thread import HeartbeatThread  # noqa: PLC0415
        from penstock.runtime.worker import Worker  # noqa: PLC0415

        heartbeat = Heartbeat(self.redis, lambda: worker.readiness())  # noqa: PLW0108
        heartbeats = HeartbeatThread(self.redis)
        work: list[Service] = []
        support: list[Service] = [heartbeat, *services]
        if queues is None:
            work += self._consumers(support, heartbeats)
        if queues is not None or self._registry is not None:
            from penstock.queues.staff import QueueStaff  # noqa: PLC0415

            staff = QueueStaff(
                self.registry,
                heartbeat.worker_id,
                heartbeats,
                queues=queues,
                concurrency=concurrency,
                overrides=self.dependencies,
            )
            work += staff.consumers
            support += staff.support
            heartbeat.load = staff.load
        if work:
            support.append(heartbeats)
        if self._schedules is not None and self._schedules.declared:
            support.append(self._schedules.scheduler())
        # Also without windows of its own: others may have gone with theirs still open.
        from penstock.coordination.windows.closer import WindowCloser  # noqa: PLC0415

        support.append(WindowCloser(self.redis, self.codec, self._windows.values()))
        worker = Worker(work=work, support=support, settings=self.settings.worker)
        self._workers.add(worker)
        return worker

    def _consumers(self, support: list[Service], heartbeats: HeartbeatThread) -> list[Consumer]:
        """The consumers of topics; what they need is added to `support`."""
        consumers: list[Consumer] = []
        if any(topic.subscriptions for topic in self._topics):
            from penstock.topics.delayed import Mover  # noqa: PLC0415

            mover = Mover(self.redis)
            for topic in self._topics:
                for consumer in topic.consumers():
                    consumer.when_known = partial(mover.watch, partitioner=topic.partitioner)
                    consumer.heartbeats = heartbeats
                    consumers.append(consumer)
            support.append(mover)
        return consumers
