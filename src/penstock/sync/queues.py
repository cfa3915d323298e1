"""Queues, tasks and jobs for code that does not await: see `penstock.sync`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from penstock import app as asynchronous
from penstock.delivery.retries import RetryPolicy
from penstock.queues import job as asynchronous_job
from penstock.queues import queue as asynchronous_queue
from penstock.queues import task as asynchronous_tasks
from penstock.queues.isolation.pool import Isolation
from penstock.queues.options import SendKeywords, SendOptions
from penstock.queues.producer.sender import Call
from penstock.queues.schedules.recurring import ScheduleOptions
from penstock.sync.portal import Blocking, Portal
from penstock.sync.sibling import Application, NamedSibling

__all__ = [
    "Job",
    "Queue",
    "RecurringOptions",
    "Task",
    "TaskDecorator",
    "TaskSender",
    "job_of",
    "recurring",
]

Handle = TypeVar("Handle", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
AnyJob = asynchronous_job.Job[Any]


class Queue(NamedSibling[asynchronous_queue.Queue]):
    """`penstock.Queue`, blocking. Made by `Penstock.queue`."""

    def reach(self) -> tuple[Portal, asynchronous_queue.Queue]:
        portal, app = self._app.reach()
        return portal, self.on(app)

    def on(self, app: asynchronous.Penstock) -> asynchronous_queue.Queue:
        """Return this queue in an asynchronous application."""
        return app.registry.queue(self.name, self.declared.options)

    push = Blocking(asynchronous_queue.Queue.push)
    push_many = Blocking(asynchronous_queue.Queue.push_many)
    add_safe = Blocking(asynchronous_queue.Queue.add_safe)
    pressure = Blocking(asynchronous_queue.Queue.pressure)

    def job(self, job_id: str) -> Job[Any]:
        """Return a handle on a job that was added before."""
        return Job(self._app, self.name, job_id)

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
        """Register the function for the raw jobs of the queue, as `penstock.Queue.handler`."""
        register = self.declared.handler(
            concurrency=concurrency, retry=retry, timeout_s=timeout_s, isolate=isolate
        )
        return register if function is None else register(function)


class Job(Generic[R]):
    """`penstock.Job`, blocking."""

    def __init__(
        self,
        app: Application,
        queue: str,
        id: str,  # noqa: A002  as the asynchronous one has it
        created: bool = False,
        type: Any = Any,  # noqa: A002
    ) -> None:
        self.queue, self.id, self.created, self.type = queue, id, created, type
        self._app = app

    def __repr__(self) -> str:
        return f"Job({self.queue!r}, {self.id!r})"

    def reach(self) -> tuple[Portal, AnyJob]:
        portal, app = self._app.reach()
        queue = app.registry.queue(self.queue)
        return portal, asynchronous_job.Job(queue, self.id, self.created, self.type)

    status = Blocking(AnyJob.status)
    progress = Blocking(AnyJob.progress)
    wait = Blocking(AnyJob.wait)
    cancel = Blocking(AnyJob.cancel)

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the return value of the job's function. JobFailed if it ended otherwise."""
        portal, job = self.reach()
        return portal.run(job.result(timeout_s))


def job_of(app: Application, job: asynchronous_job.Job[R]) -> Job[R]:
    """Return the blocking sibling of a handle."""
    return Job(app, job.queue, job.id, job.created, job.type)


class TaskSender(Generic[P, R]):
    """A task with options for the jobs that it sends. Made by `task.with_options(…)`."""

    def __init__(self, task: Task[P, R], options: SendKeywords) -> None:
        self._task, self._options = task, options

    def reach(self) -> tuple[Portal, asynchronous_tasks.TaskSender[P, R]]:
        portal, task = self._task.reach_task()
        return portal, task.with_options(**self._options) if self._options else task

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

    def with_options(self, **options: Unpack[SendKeywords]) -> TaskSender[P, R]:
        """Return a sender with these options in addition to its own."""
        both: SendKeywords = {**self._options, **options}
        SendOptions(**both)
        return TaskSender(self._task, both)


class Task(TaskSender[P, R]):
    """`penstock.Task`, blocking. Made by `Penstock.task`."""

    def __init__(self, app: Application, declared: asynchronous_tasks.Task[P, R]) -> None:
        self.app, self.declared = app, declared
        self.name, self.function = declared.name, declared.function
        super().__init__(self, {})
        functools.update_wrapper(cast("Any", self), declared.function, updated=())

    def __repr__(self) -> str:
        return repr(self.declared)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function itself, here and now."""
        return self.function(*args, **kwargs)

    @property
    def retry(self) -> RetryPolicy:
        """Its own policy, or that of its queue."""
        return self.declared.retry

    @property
    def timeout_s(self) -> float | None:
        return self.declared.timeout_s

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return a call for `send_many`, its arguments seen by type checkers."""
        return Call(args, kwargs)

    def job(self, job_id: str) -> Job[R]:
        """Return a handle on a job of this task that was sent before."""
        return job_of(self.app, self.declared.job(job_id))

    def reach_task(self) -> tuple[Portal, asynchronous_tasks.Task[P, R]]:
        """Return this process's loop and the task on it."""
        portal, app = self.app.reach()
        return portal, app.registry.adopt(self.declared)


class RecurringOptions(ScheduleOptions, total=False):
    """Options of a recurring task: see `penstock.Penstock.cron`."""

    queue: str | Queue


def recurring(
    app: Application,
    decorate: Callable[[asynchronous.Penstock, Any], asynchronous_tasks.TaskDecorator],
    options: RecurringOptions,
) -> TaskDecorator:
    """Return a decorator that declares a recurring task in the application that a worker runs."""
    declared = dict[str, Any](options)
    if isinstance(queue := declared.get("queue"), Queue):
        declared["queue"] = queue.declared
    declare = decorate(app.twin, declared)

    def register(function: Callable[..., Any]) -> Task[..., Any]:
        if isinstance(function, Task):
            task = cast("Task[..., Any]", function)
            declare(task.declared)
            return task
        return Task(app, declare(function))

    return cast("TaskDecorator", register)


class TaskDecorator(Protocol):
    """Makes a task of a function, and keeps its signature."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
