"""Queues, tasks and jobs for code that does not await: see `penstock.sync`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from penstock import app as asynchronous
from penstock.portal import Blocking, Portal
from penstock.queues import job as asynchronous_job
from penstock.queues import queue as asynchronous_queue
from penstock.queues import tasks as asynchronous_tasks
from penstock.queues.options import SendOptions, SendWords
from penstock.queues.sending import Call

if TYPE_CHECKING:
    from penstock.sync import Penstock

__all__ = ["Job", "Queue", "Task", "TaskDecorator", "TaskSender", "job_of"]

P = ParamSpec("P")
R = TypeVar("R")
AnyJob = asynchronous_job.Job[Any]


class Queue:
    """`penstock.Queue`, blocking: for adding jobs. Made by `Penstock.queue`."""

    def __init__(self, app: Penstock, name: str, options: dict[str, Any]) -> None:
        self.name = name
        app.twin.queue(name, **options)  # what cannot be is told here
        self._app, self._options = app, options

    def reach(self) -> tuple[Portal, asynchronous_queue.Queue]:
        portal, app = self._app.reach()
        return portal, self.on(app)

    def on(self, app: asynchronous.Penstock) -> asynchronous_queue.Queue:
        """Return its sibling in an application."""
        return app.queue(self.name, **self._options)

    push = Blocking(asynchronous_queue.Queue.push)
    push_many = Blocking(asynchronous_queue.Queue.push_many)
    add_safe = Blocking(asynchronous_queue.Queue.add_safe)
    pressure = Blocking(asynchronous_queue.Queue.pressure)

    def job(self, job_id: str) -> Job[Any]:
        """Return a handle on a job that was added before."""
        return Job(self._app, self.name, job_id)


class Job(Generic[R]):
    """`penstock.Job`, blocking."""

    def __init__(
        self,
        app: Penstock,
        queue: str,
        id: str,  # noqa: A002  as the asynchronous one has it
        created: bool = False,
        type: Any = Any,  # noqa: A002
    ) -> None:
        self.queue, self.id, self.created = queue, id, created
        self._app, self._type = app, type

    def __repr__(self) -> str:
        return f"Job({self.queue!r}, {self.id!r})"

    def reach(self) -> tuple[Portal, AnyJob]:
        portal, app = self._app.reach()
        found: AnyJob = asynchronous_job.Job(
            app.registry.queue(self.queue), self.id, self.created, self._type
        )
        return portal, found

    status = Blocking(AnyJob.status)
    progress = Blocking(AnyJob.progress)
    wait = Blocking(AnyJob.wait)
    cancel = Blocking(AnyJob.cancel)

    def result(self, timeout: float | None = None) -> R:
        """Wait for what the job's function returned. JobFailed if it ended otherwise."""
        portal, job = self.reach()
        return portal.run(job.result(timeout))


def job_of(app: Penstock, job: asynchronous_job.Job[R]) -> Job[R]:
    """Return the blocking sibling of a handle."""
    return Job(app, job.queue, job.id, job.created, job.type)


class TaskSender(Generic[P, R]):
    """A task with options for the jobs that it sends. Made by `task.with_options(…)`."""

    def __init__(self, task: Task[P, R], words: SendWords) -> None:
        self._task, self._words = task, words

    def reach(self) -> tuple[Portal, asynchronous_tasks.TaskSender[P, R]]:
        portal, task = self._task.reach_task()
        return portal, task.with_options(**self._words) if self._words else task

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Queue one call of the task, as `penstock.Task.send` does."""
        portal, sender = self.reach()
        return job_of(self._task.app, portal.run(sender.send(*args, **kwargs)))

    def send_many(
        self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any] | Call]
    ) -> list[Job[R]]:
        """Queue many calls, as `penstock.Task.send_many` does."""
        portal, sender = self.reach()
        app = self._task.app
        return [job_of(app, job) for job in portal.run(sender.send_many(calls))]

    def with_options(self, **words: Unpack[SendWords]) -> TaskSender[P, R]:
        """Return a sender with other options, beside the ones it has."""
        both: SendWords = {**self._words, **words}
        SendOptions(**both)
        return TaskSender(self._task, both)


class Task(TaskSender[P, R]):
    """`penstock.Task`, blocking: for sending its calls. Made by `Penstock.task`."""

    def __init__(
        self,
        app: Penstock,
        function: Callable[P, Any],
        queue: str,
        options: Mapping[str, Any],
    ) -> None:
        self.app = app
        self._function, self._queue, self._options = function, queue, options
        self._made: tuple[Portal, asynchronous_tasks.Task[P, R]] | None = None
        self._lock = threading.Lock()
        self.name = app.twin.registry.task(function, queue, **options).name
        super().__init__(self, {})
        functools.update_wrapper(cast("Any", self), function, updated=())

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self._queue!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function itself, here and now."""
        return self._function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return a call for `send_many`, its arguments seen by type checkers."""
        return Call(args, kwargs)

    def job(self, job_id: str) -> Job[R]:
        """Return a handle on a job of this task that was sent before."""
        return job_of(self.app, self.reach_task()[1].job(job_id))

    def reach_task(self) -> tuple[Portal, asynchronous_tasks.Task[P, R]]:
        """Return this process's loop and the task on it."""
        portal, app = self.app.reach()
        with self._lock:
            if self._made is None or self._made[0] is not portal:  # opened anew, or after a fork
                registry = app.registry
                # The queue's options, too, may have been said to the declared application alone.
                registry.queue(self._queue, self.app.twin.registry.queue(self._queue).options)
                made = registry.task(self._function, self._queue, **self._options)
                self._made = (portal, made)
            return self._made


class TaskDecorator(Protocol):
    """Makes a task of a function, and keeps its signature."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
