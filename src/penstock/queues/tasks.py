"""A function whose calls are jobs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import (
    TYPE_CHECKING,
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
from penstock.queues.handlers import as_isolation
from penstock.queues.isolation import Isolation
from penstock.queues.items import Item
from penstock.queues.job import Job
from penstock.queues.options import SendOptions, SendWords, check_flag, check_task_name, check_work
from penstock.queues.performer import Call as Arguments
from penstock.queues.performer import Performer
from penstock.queues.sending import PLAIN, Call, Dispatch
from penstock.queues.signature import Signature
from penstock.redis.keys import Priority

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

__all__ = ["Task", "TaskDecorator", "TaskSender", "TaskWords", "name_of"]

P = ParamSpec("P")
R = TypeVar("R")
Unique = bool | str | Callable[..., str] | None


class TaskWords(TypedDict, total=False):
    """What can be said about a task: see `Penstock.task`."""

    name: str | None
    retry: RetryPolicy | None
    timeout: float | None
    concurrency: int | None
    status: bool
    isolate: bool | Isolation
    priority: Priority | None
    unique: Unique
    expires: float | timedelta | datetime | None


class TaskDecorator(Protocol):
    """Makes a task of a function, and keeps its signature."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class TaskSender(Generic[P, R]):
    """A task with options for the jobs that it sends. Made by `task.with_options(…)`."""

    def __init__(self, task: Task[P, R], options: SendOptions) -> None:
        self.task, self.options = task, options

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Queue one call of the task; one round trip. As calling it, as far as arguments go.

        InvalidJob if the function could not be called so, QueueFull if there is no room.
        """
        task = self.task
        return await task.dispatch.send(args, kwargs, task.options_for(self.options, args, kwargs))

    async def send_many(
        self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any] | Call]
    ) -> list[Job[R]]:
        """Queue many calls: tuples of arguments, dicts of named ones, or `task.call(…)`.

        All are checked and encoded before the first is sent. They go in chunks of 500, each stored
        as a whole or not: if some are not, `SendBatchFailed` tells of each job what became of it
        (QueueFull if none was stored for want of room).
        """
        task, options = self.task, self.options
        if task.unique is None or options.unique is not None:
            return await task.dispatch.send_many(calls, task.options_for(options, (), {}))
        return await task.dispatch.send_many(calls, functools.partial(task.options_for, options))

    def with_options(self, **words: Unpack[SendWords]) -> TaskSender[P, R]:
        """Return a sender with other options, beside the ones it has: see `SendOptions`."""
        try:
            return TaskSender(self.task, replace(self.options, **words))
        except TypeError:
            SendOptions(**words)
            raise


class Task(TaskSender[P, R]):
    """A function whose calls can be queued. Made by `@app.task(…)`.

    job = await welcome.send(42, lang="de")
    await welcome.with_options(delay=60).send(42)
    await welcome(42)                              # no queue: runs it here and now
    """

    def __init__(
        self,
        queue: Queue,
        function: Callable[P, Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
        status: bool = False,
        isolate: bool | Isolation = False,
        priority: Priority | None = None,
        unique: Unique = None,
        expires: float | timedelta | datetime | None = None,
    ) -> None:
        self.name = check_task_name(name_of(function) if name is None else name)
        self.queue, self.function = queue, function
        self.signature = Signature(function, self.name)
        if retry is not None:
            check_work("task", retry, timeout, concurrency)
        check_work("task", RetryPolicy(), timeout, concurrency)
        check_flag("task.status", status)
        self._retry, self._timeout_s, self.concurrency = retry, timeout, concurrency
        self.status = status
        self.isolation = as_isolation(isolate)
        self.unique = _checked_unique(unique)
        said = SendOptions(priority=priority, expires=expires)
        super().__init__(self, PLAIN if said == PLAIN else said)
        self.dispatch = Dispatch(
            queue,
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
        """Run the function itself, here and now."""
        return self.function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return a call for `send_many`, its arguments seen by type checkers."""
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
            timeout=self._timeout_s,
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
        """The options of one call, with the unique key that the task asks for."""
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
                raise InvalidJob(f"task {self.name}: unique gave {type(key).__name__}, no text")
            return key
        both = b"\n".join(self.signature.encode(args, dict(sorted(kwargs.items()))))
        return f"{self.name[:128]}:{blake2b(both, digest_size=16).hexdigest()}"

    def _keeps_record(self) -> bool:
        return self.status or self.queue.options.status


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function's task: its module and its own name.

    A module that was started as a program is named as if it were imported, because the worker
    imports it.
    """
    code = function.func if isinstance(function, functools.partial) else function
    module = getattr(code, "__module__", None) or "tasks"
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(path).stem if path else module
    own = getattr(code, "__qualname__", None) or type(code).__qualname__
    return f"{module}.{own.rpartition('<locals>.')[2]}"


def _checked_unique(unique: object) -> Unique:
    if unique is None or unique is False:
        return None
    if unique is True or isinstance(unique, str) or callable(unique):
        if isinstance(unique, str):
            SendOptions(unique=unique)
        return cast("Unique", unique)
    raise ConfigError("unique: expected True, a text, or a function of the task's arguments")
