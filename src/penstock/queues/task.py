"""A function whose calls are jobs."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import (
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from penstock.delivery.retries import RetryPolicy
from penstock.errors import ConfigError, InvalidJob
from penstock.queues.isolation.pool import Isolation
from penstock.queues.job import Job
from penstock.queues.options import (
    SendKeywords,
    SendOptions,
    check_flag,
    check_task_name,
    check_work,
)
from penstock.queues.producer.sender import PLAIN, Call, JobSender
from penstock.queues.queue import Queue
from penstock.queues.raw_handler import as_isolation
from penstock.queues.signature import Signature, task_name_of
from penstock.queues.storage.keys import Priority
from penstock.queues.storage.stored_job import Item
from penstock.queues.worker.performer import Call as Arguments
from penstock.queues.worker.performer import Performer

__all__ = ["Task", "TaskDecorator", "TaskOptions", "TaskSender"]

P = ParamSpec("P")
R = TypeVar("R")
Unique = bool | str | Callable[..., str] | None


class TaskOptions(TypedDict, total=False):
    """Options of a task: see `Penstock.task`."""

    name: str | None
    retry: RetryPolicy | None
    timeout_s: float | None
    concurrency: int | None
    status: bool
    isolate: bool | Isolation
    priority: Priority | None
    unique: Unique
    expires: float | timedelta | datetime | None


class TaskDecorator(Protocol):
    """Turns a function into a task with the same signature."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class TaskSender(Generic[P, R]):
    """A task with options for its jobs. Made by `task.with_options(…)`."""

    def __init__(self, task: Task[P, R], options: SendOptions) -> None:
        self.task, self.options = task, options

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Queue one call of the task, with the arguments of the call. One round trip.

        InvalidJob if the function does not take them, QueueFull if there is no room.
        """
        task = self.task
        options = self.options
        if task.unique is not None:
            options = task.options_for(options, args, kwargs)
        return await task.job_sender.send(args, kwargs, options)

    async def send_many(
        self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any] | Call]
    ) -> list[Job[R]]:
        """Queue many calls: tuples of arguments, dicts of named ones, or `task.call(…)`.

        All are checked and encoded before the first is sent. They are sent in chunks of 500, each
        stored completely or not at all: if some are not stored, `SendBatchFailed` has the outcome
        of each job (QueueFull if there was no room for any).
        """
        task, options = self.task, self.options
        if task.unique is None or options.unique is not None:
            return await task.job_sender.send_many(calls, task.options_for(options, (), {}))
        return await task.job_sender.send_many(calls, functools.partial(task.options_for, options))

    def with_options(self, **options: Unpack[SendKeywords]) -> TaskSender[P, R]:
        """Return a sender with these options in addition to its own: see `SendOptions`."""
        try:
            return TaskSender(self.task, replace(self.options, **options))
        except TypeError:
            SendOptions(**options)
            raise


class Task(TaskSender[P, R]):
    """A function whose calls can be queued. Made by `@app.task(…)`.

    job = await welcome.send(42, lang="de")
    await welcome.with_options(delay=60).send(42)
    await welcome(42)                              # runs it here, without a queue
    """

    def __init__(
        self,
        queue: Queue,
        function: Callable[P, Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        status: bool = False,
        isolate: bool | Isolation = False,
        priority: Priority | None = None,
        unique: Unique = None,
        expires: float | timedelta | datetime | None = None,
    ) -> None:
        self.name = check_task_name(task_name_of(function) if name is None else name)
        self.queue, self.function = queue, function
        self.signature = Signature(function, self.name)
        if retry is not None:
            check_work("task", retry, timeout_s, concurrency)
        check_work("task", RetryPolicy(), timeout_s, concurrency)
        check_flag("task.status", status)
        self._retry, self._timeout_s, self.concurrency = retry, timeout_s, concurrency
        self.status = status
        self.isolation = as_isolation(isolate)
        self.unique = _checked_unique(unique)
        options = SendOptions(priority=priority, expires=expires)
        super().__init__(self, PLAIN if options == PLAIN else options)
        self.job_sender = JobSender(
            queue,
            queue.enqueuer,
            self.name,
            check=self.signature.check,
            result_type=self.signature.result_type,
            status=self._keeps_record,
            max_attempts=lambda: self.retry.max_attempts,
        )
        functools.update_wrapper(cast("Any", self), function, updated=())

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue.name!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, without a queue."""
        return self.function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return a call for `send_many`, with arguments that type checkers verify."""
        return Call(args, kwargs)

    def job(self, job_id: str) -> Job[R]:
        """Return a handle on a job of this task that was sent before."""
        return Job(self.queue, job_id, False, self.signature.result_type)

    def on(self, queue: Queue) -> Task[P, R]:
        """Return the same task for a queue of another application."""
        return Task(
            queue,
            self.function,
            name=self.name,
            retry=self._retry,
            timeout_s=self._timeout_s,
            concurrency=self.concurrency,
            status=self.status,
            isolate=self.isolation or False,
            priority=self.options.priority,
            unique=self.unique,
            expires=self.options.expires,
        )

    @property
    def retry(self) -> RetryPolicy:
        """Its own policy, or that of its queue."""
        return self._retry or self.queue.options.retry

    @property
    def timeout_s(self) -> float | None:
        return self.queue.options.timeout_s if self._timeout_s is None else self._timeout_s

    def performer(self) -> Performer:
        """What a worker needs to run it."""
        decode, misfit = self.signature.decode, self.signature.misfit

        def arguments(item: Item) -> Arguments:
            return decode(item.args, item.kwargs)

        return Performer(
            name=self.name,
            function=self.function,
            is_async=self.signature.is_async,
            decode=arguments,
            misfit=lambda item: misfit(item.args, item.kwargs),
            policy=self.retry,
            timeout_s=self.timeout_s,
            concurrency=self.concurrency,
            isolation=self.isolation,
            injects=bool(self.signature.injected),
            context_parameter=self.signature.context,
            tracked=self._keeps_record(),
        )

    def options_for(
        self, options: SendOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> SendOptions:
        """Options of one call, with the unique key of the task's `unique`."""
        if self.unique is None or options.unique is not None:
            return options
        return replace(options, unique=self._unique_key(args, kwargs))

    def _unique_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        unique = self.unique
        if isinstance(unique, str):
            return unique
        if callable(unique):
            key = cast("object", unique(*args, **kwargs))
            if not isinstance(key, str):
                raise InvalidJob(
                    f"task {self.name}: unique returned {type(key).__name__}, not text"
                )
            return key
        both = b"\n".join(self.signature.encode(args, dict(sorted(kwargs.items()))))
        return f"{self.name[:128]}:{blake2b(both, digest_size=16).hexdigest()}"

    def _keeps_record(self) -> bool:
        return self.status or self.queue.options.status


def _checked_unique(unique: object) -> Unique:
    if unique is None or unique is False:
        return None
    if unique is True or isinstance(unique, str) or callable(unique):
        if isinstance(unique, str):
            SendOptions(unique=unique)
        return cast("Unique", unique)
    raise ConfigError("unique: expected True, a text, or a function of the task's arguments")
