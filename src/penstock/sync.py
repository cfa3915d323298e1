"""Penstock for code that does not await: Django views, scripts, notebooks, plain workers.

    from penstock.sync import Penstock

    app = Penstock()

    @app.task
    def welcome(user_id: int) -> None: ...

    if __name__ == "__main__":
        welcome.send(42)

`penstock worker shop:app` runs it as it runs an asynchronous application.

There is one implementation, the asynchronous one. It runs on a loop in a thread of its own, and
each method here waits for its sibling there. Any number of threads may share one object. A forked
child gets a loop and connections of its own at its first call; the parent's are left alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from penstock import app as asynchronous
from penstock.delivery.retries import RetryPolicy
from penstock.named import Named
from penstock.portal import Blocking, Portal
from penstock.queues.options import Gate, Overflow, SendWords, Side
from penstock.queues.tasks import TaskWords
from penstock.redis import client as asynchronous_client
from penstock.redis.codec import Codec
from penstock.settings import Settings
from penstock.sync_coordination import Coordination
from penstock.sync_queues import (
    Job,
    Queue,
    RecurringWords,
    Task,
    TaskDecorator,
    job_of,
    recurring,
)
from penstock.sync_topics import Topic, TopicAdmin
from penstock.topics.durability import Durability
from penstock.topics.facts import Retention
from penstock.topics.partitioners import Partitioner
from penstock.topics.subscription import SubscriptionOptions

if TYPE_CHECKING:
    from penstock.delivery.depends import Overrides
    from penstock.runtime.service import Service
    from penstock.sync_queue_admin import QueueAdmin, Schedules
    from penstock.sync_repairs import Repairs
    from penstock.sync_worker import Worker

__all__ = ["Client", "Job", "Penstock", "Queue", "Task", "Topic"]

Handle = TypeVar("Handle", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class Client:
    """`penstock.redis.Client`, blocking. Made by `Penstock`."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def reach(self) -> tuple[Portal, asynchronous_client.Client]:
        portal, app = self._app.reach()
        return portal, app.redis

    @property
    def server_version(self) -> tuple[int, ...]:
        """Version of the server that was connected to last."""
        return self.reach()[1].server_version

    call = Blocking(asynchronous_client.Client.call)
    pipeline = Blocking(asynchronous_client.Client.pipeline)


class Penstock(Coordination):
    """`penstock.Penstock`, blocking. Opens at its first use, or by `with`."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self)
        self.codec = Codec(self.settings.codec)
        self.twin = asynchronous.Penstock(settings=self.settings)
        self._lock = threading.Lock()
        self._working = threading.Lock()
        self._topics: Named[Topic] = Named()
        self._queues: Named[Queue] = Named()
        self._portal: Portal | None = None
        self._finalizer: weakref.finalize[..., Penstock] | None = None
        _all.add(self)

    def __repr__(self) -> str:
        return repr(self.twin)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect; without an address, start the embedded server unless it runs. May come twice."""
        self.reach()

    def close(self) -> None:
        """End every connection and the thread. May come twice; a later call opens anew."""
        with self._lock:
            portal, self._portal = self._portal, None
            if portal is not None and self._finalizer is not None:
                self._finalizer.detach()
                portal.close()

    def reach(self) -> tuple[Portal, asynchronous.Penstock]:
        """Return this process's loop and the open application on it."""
        portal = self._portal
        if portal is None:
            with self._lock:
                portal = self._portal
                if portal is None:
                    portal = Portal(self.settings)
                    portal.open()
                    self._finalizer = weakref.finalize(self, portal.close)
                    self._portal = portal
        return portal, portal.app

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
        """Return a topic to send and subscribe to, as `penstock.Penstock.topic` does."""
        options: dict[str, Any] = {
            "partitions": partitions,
            "type": type,
            "partitioner": partitioner,
            "durability": durability,
            "retention": retention,
            "dead_letter_retention": dead_letter_retention,
            "interop": interop,
        }
        return self._topics.get(name, options, lambda: Topic(self, name, options))

    def subscribe(
        self, topic: str, group: str, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[Handle], Handle]:
        """Register a handler for a topic; `worker()` runs it. As `Topic.subscribe`."""
        return self.twin.subscribe(topic, group, **options)

    @cached_property
    def topics(self) -> TopicAdmin:
        """Inspect and change topics and groups, as `penstock topic` and `penstock group` do."""
        return TopicAdmin(self)

    @cached_property
    def queues(self) -> QueueAdmin:
        """Inspect and change queues and jobs, as `penstock queue` and `penstock job` do."""
        from penstock.sync_queue_admin import QueueAdmin  # noqa: PLC0415

        return QueueAdmin(self)

    @cached_property
    def repairs(self) -> Repairs:
        """Find what other programs have left in the way, and remove it, as `penstock repair`."""
        from penstock.sync_repairs import Repairs  # noqa: PLC0415

        return Repairs(self)

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
        """Return a queue for raw jobs, as `penstock.Penstock.queue` does."""
        options: dict[str, Any] = {
            "push": push,
            "type": type,
            "status": status,
            "max_size": max_size,
            "max_bytes": max_bytes,
            "overflow": overflow,
            "levels": levels,
            "limit": limit,
            "lane_limit": lane_limit,
            "retry": retry,
            "timeout_s": timeout_s,
            "concurrency": concurrency,
            "status_fields": status_fields,
            "gate": gate,
        }
        return self._queues.get(name, options, lambda: Queue(self, name, options))

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
        """Make a function's calls jobs of a queue, as `penstock.Penstock.task` does."""
        place = queue.declared if isinstance(queue, Queue) else queue

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            return Task(self, self.twin.registry.task(function, place, **options))

        return make if function is None else make(function)

    def cron(
        self, expression: str, *, tz: str = "UTC", **words: Unpack[RecurringWords]
    ) -> TaskDecorator:
        """Run a function or a task by a cron expression, as `penstock.Penstock.cron` does."""
        return recurring(self, lambda app, told: app.cron(expression, tz=tz, **told), words)

    def every(
        self,
        period: float | timedelta,
        *,
        offset: float | timedelta = 0,
        **words: Unpack[RecurringWords],
    ) -> TaskDecorator:
        """Run a function or a task every so many seconds, as `penstock.Penstock.every` does."""
        return recurring(self, lambda app, told: app.every(period, offset=offset, **told), words)

    @cached_property
    def schedules(self) -> Schedules:
        """Recurring tasks: list them, and pause, resume, trigger or remove them by name."""
        from penstock.sync_queue_admin import Schedules  # noqa: PLC0415

        return Schedules(self)

    def send(
        self,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **options: Unpack[SendWords],
    ) -> Job[Any]:
        """Queue a call of a task by its name, as `penstock.Penstock.send` does."""
        portal, app = self.reach()
        if (declared := self.twin.registry.tasks.get(task)) is not None:
            app.registry.adopt(declared)
        return job_of(self, portal.run(app.send(task, args, kwargs, queue=queue, **options)))

    @property
    def dependencies(self) -> Overrides:
        """Replacements for dependencies in tests: see `Depends`."""
        return self.twin.dependencies

    def worker(
        self,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        services: Sequence[Service] = (),
    ) -> Worker:
        """Return a worker for this process, as `penstock.Penstock.worker`: `worker.run()` blocks.

        It runs what was declared before, on an event loop and connections of its own.
        """
        from penstock.sync_worker import Worker  # noqa: PLC0415

        made = self.twin.worker(queues=queues, concurrency=concurrency, services=services)
        return Worker(self.twin, made, self._working)

    add_to_queue_safe = Blocking(asynchronous.Penstock.add_to_queue_safe)
    get_queue_pressure = Blocking(asynchronous.Penstock.get_queue_pressure)
    health = Blocking(asynchronous.Penstock.health)
    doctor = Blocking(asynchronous.Penstock.doctor)

    def leave_to_parent(self) -> None:
        """After a fork: another thread may have held the lock, and the sockets are the parent's."""
        if self._portal is not None and self._finalizer is not None:
            _inherited.append(self._portal)
            self._finalizer.detach()
        self._lock, self._portal = threading.Lock(), None
        self._working = threading.Lock()


_all: weakref.WeakSet[Penstock] = weakref.WeakSet()
# What a forked child finds of its parent's loops and sockets. Letting go of them would close
# descriptors that the parent's selector still watches, so they are kept, untouched.
_inherited: list[Portal] = []


def _after_fork_in_child() -> None:
    for app in list(_all):
        app.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
