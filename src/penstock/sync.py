"""Penstock for code that does not await: Django views, scripts, notebooks.

    from penstock.sync import Penstock

    with Penstock() as app:
        app.redis.call("SET", "greeting", "hello")
        print(app.health().status)

There is one implementation, the asynchronous one. It runs on a loop in a thread of its own, and
each method here waits for its sibling there. Any number of threads may share one object. A forked
child gets a loop and connections of its own at its first call; the parent's are left alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from penstock import app as asynchronous
from penstock.delivery.retries import RetryPolicy
from penstock.portal import Blocking, Portal
from penstock.queues.options import Gate, Overflow, SendWords, Side
from penstock.queues.tasks import TaskWords
from penstock.redis import client as asynchronous_client
from penstock.settings import Settings
from penstock.sync_coordination import Coordination
from penstock.sync_queues import Job, Queue, Task, TaskDecorator, job_of
from penstock.topics import topic as asynchronous_topic
from penstock.topics.durability import Durability
from penstock.topics.facts import Retention
from penstock.topics.partitioners import Partitioner

__all__ = ["Client", "Job", "Penstock", "Queue", "Task", "Topic"]

P = ParamSpec("P")
R = TypeVar("R")


class Client:
    """`penstock.redis.Client`, blocking. Made by `Penstock`."""

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def reach(self) -> tuple[Portal, asynchronous_client.Client]:
        portal, app = self._app.reach()
        return portal, app.redis

    call = Blocking(asynchronous_client.Client.call)
    pipeline = Blocking(asynchronous_client.Client.pipeline)


class Topic:
    """`penstock.Topic`, blocking: for sending. Made by `Penstock.topic`."""

    def __init__(self, app: Penstock, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self._app, self._options = app, options
        self._made: tuple[Portal, asynchronous_topic.Topic] | None = None
        self._lock = threading.Lock()

    def reach(self) -> tuple[Portal, asynchronous_topic.Topic]:
        portal, app = self._app.reach()
        with self._lock:
            if self._made is None or self._made[0] is not portal:  # opened anew, or after a fork
                self._made = (portal, self.on(app))
            return self._made

    def on(self, app: asynchronous.Penstock) -> asynchronous_topic.Topic:
        """Return a sibling in an application."""
        return app.topic(self.name, **self._options)

    send = Blocking(asynchronous_topic.Topic.send)
    send_batch = Blocking(asynchronous_topic.Topic.send_batch)
    facts = Blocking(asynchronous_topic.Topic.facts)


class Penstock(Coordination):
    """`penstock.Penstock`, blocking. Opens at its first use, or by `with`."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.load({"url": url})
        self.redis = Client(self)
        self._lock = threading.Lock()
        self._portal: Portal | None = None
        self._twin: asynchronous.Penstock | None = None
        self._finalizer: weakref.finalize[..., Penstock] | None = None
        _all.add(self)

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
        """Return a topic to send to, as `penstock.Penstock.topic` does."""
        options: dict[str, Any] = {
            "partitions": partitions,
            "type": type,
            "partitioner": partitioner,
            "durability": durability,
            "retention": retention,
            "dead_letter_retention": dead_letter_retention,
            "interop": interop,
        }
        return Topic(self, name, options)

    @property
    def twin(self) -> asynchronous.Penstock:
        """The same application for code that awaits, not open: its tasks are what a worker runs."""
        if self._twin is None:
            self._twin = asynchronous.Penstock(settings=self.settings)
        return self._twin

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
        """Return a queue to push to, as `penstock.Penstock.queue` does."""
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
        return Queue(self, name, options)

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, *, queue: str = "default", **options: Unpack[TaskWords]) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = "default",
        **options: Unpack[TaskWords],
    ) -> Any:
        """Make a function's calls jobs of a queue, as `penstock.Penstock.task` does."""

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            return Task(self, function, queue, options)

        return make if function is None else make(function)

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
        return job_of(self, portal.run(app.send(task, args, kwargs, queue=queue, **options)))

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


_all: weakref.WeakSet[Penstock] = weakref.WeakSet()
# What a forked child finds of its parent's loops and sockets. Letting go of them would close
# descriptors that the parent's selector still watches, so they are kept, untouched.
_inherited: list[Portal] = []


def _after_fork_in_child() -> None:
    for app in list(_all):
        app.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
