"""`Penstock`: the application object, by which programs use topics, queues and the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from penstock.coordination.access import Coordination
from penstock.named_objects import NamedObjects
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.delivery.depends import Overrides
    from penstock.delivery.retries import RetryPolicy
    from penstock.inspector.doctor import Diagnosis
    from penstock.inspector.repairs import Repairs
    from penstock.queues.admin.queue_admin import QueueAdmin
    from penstock.queues.job import Job
    from penstock.queues.options import Gate, Overflow, SendKeywords, Side, WaitForRoom
    from penstock.queues.producer.results import QueueAddResult, QueuePressure
    from penstock.queues.queue import Queue
    from penstock.queues.registry import QueueRegistry
    from penstock.queues.schedules.recurring import RecurringOptions
    from penstock.queues.schedules.schedules import Schedules
    from penstock.queues.task import Task, TaskDecorator, TaskOptions
    from penstock.redis.health import Health
    from penstock.runtime.heartbeat_thread import HeartbeatThread
    from penstock.runtime.service import Service
    from penstock.runtime.worker import Worker
    from penstock.topics.admin.topic_admin import TopicAdmin
    from penstock.topics.consumer.consumer import Consumer
    from penstock.topics.partitioners import Partitioner
    from penstock.topics.producer.durability import Durability
    from penstock.topics.storage.metadata import Retention
    from penstock.topics.subscription import SubscriptionOptions
    from penstock.topics.topic import Topic

__all__ = ["Penstock"]

Handle = TypeVar("Handle", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class Penstock(Coordination):
    """An application on one server.

        app = Penstock()                       # the embedded server
        app = Penstock("redis://localhost")    # or yours

        async with app:
            print(await app.health())

    Settings come from `penstock.toml` and the environment; `url` wins over both. With
    `settings`, neither is read.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self.settings)
        self.codec = Codec(self.settings.codec)
        self._topics: NamedObjects[Topic] = NamedObjects()
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
        """Close every connection. May be called twice, or before `open`.

        Workers of this process that still run are cancelled first, so that they return their jobs:
        a program that ends by Ctrl-C often leaves this block without stopping them.
        """
        try:
            for worker in list(self._workers):
                await worker.cut()
            await self.close_coordination()
            for topic in self._topics:
                await topic.close()
        finally:
            await self.redis.close()
            if self._registry is not None:
                await self._registry.close()

    async def health(self) -> Health:
        """Probe the server with a real write; never raises or hangs, and works before `open`."""
        from penstock.redis.health import check_health  # noqa: PLC0415

        return await check_health(self.redis)

    async def doctor(self) -> Diagnosis:
        """Check the configuration of the server, and find what grows there without a bound."""
        from penstock.inspector.doctor import diagnose  # noqa: PLC0415
        from penstock.inspector.growth import find_growth  # noqa: PLC0415

        diagnosis = await diagnose(self.redis)
        if diagnosis.connected:
            diagnosis.findings.extend(await find_growth(self.redis, self.codec))
        return diagnosis

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        type: Any = Any,  # noqa: A002
        partitioner: Partitioner | None = None,
        durability: Durability = "accepted",
        retention: Retention | None = None,
        dead_letter_retention: Retention | None = None,
        interop: bool = False,
    ) -> Topic:
        """Return a topic to send to and to subscribe to; it is created at its first use.

        Returns the same object for the same name and equal options (a partitioner of your own is
        compared by `==`), another object of the same topic for other options.

        - `partitions`: number for a new topic; `TopicMismatch` if it exists with another.
        - `type`: of the payloads; the annotation of a handler wins.
        - `durability`: when a send is done: "accepted", "synced" or `replicated(n)`.
        - `retention`, `dead_letter_retention`: how long messages and dead letters stay.
        - `interop`: write entries in the format of the Java library, field by field.
        """
        # Programs without topics do not import them.
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
        """Inspect and change topics and groups, as `penstock topic` and `penstock group` do."""
        from penstock.topics.admin.topic_admin import TopicAdmin  # noqa: PLC0415

        return TopicAdmin(self.redis, self.codec)

    @property
    def queues(self) -> QueueAdmin:
        """Inspect and change queues and jobs, as `penstock queue` and `penstock job` do."""
        from penstock.queues.admin.queue_admin import QueueAdmin  # noqa: PLC0415

        return QueueAdmin(self.redis, self.codec)

    @property
    def repairs(self) -> Repairs:
        """Find and remove registry entries and keys that are unusable, as `penstock repair`."""
        from penstock.inspector.repairs import Repairs  # noqa: PLC0415

        return Repairs(self.redis)

    def subscribe(
        self, topic: str, group: str, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[Handle], Handle]:
        """Register a handler for a topic; `worker()` runs it. As `Topic.subscribe`."""
        return self.topic(topic).subscribe(group, **options)

    @property
    def registry(self) -> QueueRegistry:
        """Queues and tasks of this application."""
        if self._registry is None:
            # Programs without queues do not import them.
            from penstock.queues.registry import QueueRegistry  # noqa: PLC0415

            self._registry = QueueRegistry(self.redis, self.codec, lambda: self.wakeups)
        return self._registry

    def queue(
        self,
        name: str,
        *,
        push: Side | None = None,
        type: Any = Any,  # noqa: A002
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
        """Return a queue for raw jobs: to push to it, and to handle its jobs.

        - `push`: the end of the list where jobs are added; `QueueMismatch` if it is the other.
        - `type`: of the jobs; the annotation of the handler wins.
        - `status`: keep a record of each job; `status_fields` of a JSON job are copied into it.
        - `max_size`: maximum of jobs waiting in the queue or in a lane; `max_bytes`: of their bytes
          in all lanes together; 0 for no limit.
        - `overflow`: what a full queue does: "reject", "dlq", "drop_oldest" or `block(timeout_s)`.
        - `levels`: weights of high, normal and low priority; "strict" is the default.
        - `limit`, `lane_limit`: maximum of running jobs over all workers, or of a fair lane.
        - `retry`, `timeout_s`, `concurrency`: for its jobs; those of a task or handler win.
        - `gate`: is asked before jobs are claimed.
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
        self, /, *, queue: str | Queue = "default", **options: Unpack[TaskOptions]
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str | Queue = "default",
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Make a function's calls jobs of a queue: `@app.task`, or `@app.task(queue="mail", …)`.

        - `name`: of the task (default: module and function).
        - `retry`, `timeout_s`, `concurrency` (per worker): by default those of the queue.
        - `status`: keep a record of each job, for `status()` and `result()`.
        - `isolate`: run it in a child process; True, or `Isolation(memory_mb=…)`.
        - `priority`, `expires`: of its jobs; those of `with_options` win.
        - `unique`: True for one job at a time with the same arguments, a text for one job of the
          task at a time, or a function of the arguments that returns the key.
        """
        if function is not None:
            return self.registry.task(function, queue)
        return partial(self.registry.task, queue=queue, **options)

    def cron(
        self, expression: str, *, tz: str = "UTC", **options: Unpack[RecurringOptions]
    ) -> TaskDecorator:
        """Run a function or a task on a schedule: `@app.cron("*/5 * * * *")`.

        - `expression`: minute, hour, day of the month, month and day of the week, in `tz`.
        - `args`, `kwargs`: arguments of the call.
        - `missed`: what to do with ticks while no worker ran: "skip", "once" or "all".
        - `jitter_s`: delay each tick by up to this much.
        - `name`: of the schedule, and of the task if a function is decorated.
        - further options of a function are those of `task`.

        Each tick makes one job, however many workers run. ConfigError if it never occurs.
        """
        from penstock.queues.schedules.cron import Cron  # noqa: PLC0415
        from penstock.queues.schedules.recurring import recurring_decorator  # noqa: PLC0415

        return recurring_decorator(self.registry, self.schedules, Cron(expression, tz), options)

    def every(
        self,
        period: float | timedelta,
        *,
        offset: float | timedelta = 0,
        **options: Unpack[RecurringOptions],
    ) -> TaskDecorator:
        """Run a function or a task every `period` seconds, counted from 1970; as `cron`."""
        from penstock.queues.schedules.cron import Every  # noqa: PLC0415
        from penstock.queues.schedules.recurring import recurring_decorator  # noqa: PLC0415

        return recurring_decorator(self.registry, self.schedules, Every(period, offset), options)

    @property
    def schedules(self) -> Schedules:
        """Schedules: list them, and pause, resume, trigger or remove them by name."""
        if self._schedules is None:
            from penstock.queues.schedules.schedules import Schedules  # noqa: PLC0415

            self._schedules = Schedules(self.redis)
        return self._schedules

    def send(
        self,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **options: Unpack[SendKeywords],
    ) -> Coroutine[Any, Any, Job[Any]]:
        """Queue a call of a task by name, without its code; options as in `with_options`."""
        return self.registry.send(task, args, kwargs, queue=queue, **options)

    def add_to_queue_safe(
        self,
        queue_name: str,
        data: Any,
        max_size: int | None = None,
        overflow_policy: str | WaitForRoom | None = None,
    ) -> Coroutine[Any, Any, QueueAddResult]:
        """Add a raw job; the result has whether the queue was full. Unknown policies reject."""
        return self.registry.add_to_queue_safe(queue_name, data, max_size, overflow_policy)

    def get_queue_pressure(
        self, queue_name: str, max_size: int | None = None, timeout: float = 5.0
    ) -> Coroutine[Any, Any, QueuePressure]:
        """Fill level of a queue, or TimeoutError. Named as the call that it replaces."""
        return self.registry.get_queue_pressure(queue_name, max_size, timeout)

    @property
    def dependencies(self) -> Overrides:
        """Replacements for dependencies in tests: see `Depends`."""
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

        It runs a consumer for each subscription and queue, moves delayed messages, runs the
        schedules and closes due batches of windows. With `queues`, only these queues and no
        subscriptions; `concurrency` is per queue. `services` run as long as the worker does.
        """
        # Most programs that import penstock only send work.
        from penstock.runtime.heartbeat import Heartbeat  # noqa: PLC0415
        from penstock.runtime.heartbeat_thread import HeartbeatThread  # noqa: PLC0415
        from penstock.runtime.worker import Worker  # noqa: PLC0415

        heartbeat = Heartbeat(self.redis, lambda: worker.readiness())  # noqa: PLW0108
        heartbeat.facts = lambda: worker.details()  # noqa: PLW0108
        heartbeats = HeartbeatThread(self.redis)
        work: list[Service] = []
        support: list[Service] = [heartbeat, *services]
        if queues is None:
            work += self._consumers(support, heartbeats)
        if queues is not None or self._registry is not None:
            from penstock.queues.worker.workers import QueueConsumers  # noqa: PLC0415

            consumers = QueueConsumers(
                self.registry,
                heartbeat.worker_id,
                heartbeats,
                queues=queues,
                concurrency=concurrency,
                overrides=self.dependencies,
            )
            work += consumers.consumers
            support += consumers.support
            heartbeat.load = consumers.load
        if work:
            support.append(heartbeats)
        if self._schedules is not None and self._schedules.declared:
            support.append(self._schedules.scheduler())
        # Also without windows of its own: those of a program that has exited may be open.
        from penstock.coordination.windows.closer import WindowCloser  # noqa: PLC0415

        support.append(WindowCloser(self.redis, self.codec, self._windows.values()))
        worker = Worker(work=work, support=support, settings=self.settings.worker)
        self._workers.add(worker)
        return worker

    def _consumers(self, support: list[Service], heartbeats: HeartbeatThread) -> list[Consumer]:
        """Consumers of the topics; the mover that they need is added to `support`."""
        consumers: list[Consumer] = []
        if any(topic.subscriptions for topic in self._topics):
            from penstock.topics.delayed.mover import Mover  # noqa: PLC0415

            mover = Mover(self.redis)
            for topic in self._topics:
                for consumer in topic.consumers():
                    consumer.when_known = partial(mover.watch, partitioner=topic.partitioner)
                    consumer.heartbeats = heartbeats
                    consumers.append(consumer)
            support.append(mover)
        return consumers
