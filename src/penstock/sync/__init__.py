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
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from penstock import app as asynchronous
from penstock.queues.options import SendKeywords
from penstock.queues.task import TaskOptions
from penstock.redis import client as asynchronous_client
from penstock.redis.codec import Codec
from penstock.settings import Settings
from penstock.sync.coordination import Coordination
from penstock.sync.portal import Blocking, Portal
from penstock.sync.queues import (
    Job,
    Queue,
    RecurringOptions,
    Task,
    TaskDecorator,
    job_of,
    recurring,
)
from penstock.sync.sibling import Named
from penstock.sync.topics import Topic, TopicAdmin
from penstock.topics.subscription import SubscriptionOptions

if TYPE_CHECKING:
    from penstock.delivery.depends import Overrides
    from penstock.runtime.service import Service
    from penstock.sync.queue_admin import QueueAdmin, Schedules
    from penstock.sync.repairs import Repairs
    from penstock.sync.worker import Worker

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
        self.siblings: dict[int, tuple[object, object]] = {}
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
        """Connect; without an address, start the embedded server unless it runs. Idempotent."""
        self.reach()

    def close(self) -> None:
        """Close the connections and end the thread. May be called twice; a later call reopens."""
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

    topic = Named(asynchronous.Penstock.topic, Topic)
    queue = Named(asynchronous.Penstock.queue, Queue)

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
        from penstock.sync.queue_admin import QueueAdmin  # noqa: PLC0415

        return QueueAdmin(self)

    @cached_property
    def repairs(self) -> Repairs:
        """Find and remove registry entries and keys that are unusable, as `penstock repair`."""
        from penstock.sync.repairs import Repairs  # noqa: PLC0415

        return Repairs(self)

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
        """Make a function's calls jobs of a queue, as `penstock.Penstock.task` does."""
        declared = queue.declared if isinstance(queue, Queue) else queue

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            return Task(self, self.twin.registry.task(function, declared, **options))

        return make if function is None else make(function)

    def cron(
        self, expression: str, *, tz: str = "UTC", **options: Unpack[RecurringOptions]
    ) -> TaskDecorator:
        """Run a function or a task by a cron expression, as `penstock.Penstock.cron` does."""
        return recurring(self, lambda app, own: app.cron(expression, tz=tz, **own), options)

    def every(
        self,
        period: float | timedelta,
        *,
        offset: float | timedelta = 0,
        **options: Unpack[RecurringOptions],
    ) -> TaskDecorator:
        """Run a function or a task every so many seconds, as `penstock.Penstock.every` does."""
        return recurring(self, lambda app, own: app.every(period, offset=offset, **own), options)

    @cached_property
    def schedules(self) -> Schedules:
        """Recurring tasks: list them, and pause, resume, trigger or remove them by name."""
        from penstock.sync.queue_admin import Schedules  # noqa: PLC0415

        return Schedules(self)

    def send(
        self,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **options: Unpack[SendKeywords],
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
        from penstock.sync.worker import Worker  # noqa: PLC0415

        made = self.twin.worker(queues=queues, concurrency=concurrency, services=services)
        return Worker(self.twin, made, self._working)

    add_to_queue_safe = Blocking(asynchronous.Penstock.add_to_queue_safe)
    get_queue_pressure = Blocking(asynchronous.Penstock.get_queue_pressure)
    health = Blocking(asynchronous.Penstock.health)
    doctor = Blocking(asynchronous.Penstock.doctor)

    def leave_to_parent(self) -> None:
        """After a fork: replace locks, which other threads may have held, and the loop."""
        if self._portal is not None and self._finalizer is not None:
            _inherited.append(self._portal)
            self._finalizer.detach()
        self._lock, self._portal = threading.Lock(), None
        self._working = threading.Lock()


_all: weakref.WeakSet[Penstock] = weakref.WeakSet()
# Loops and sockets that a forked child inherits. Releasing them would close descriptors that the
# parent's selector still watches, so they are kept.
_inherited: list[Portal] = []


def _after_fork_in_child() -> None:
    for app in list(_all):
        app.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
