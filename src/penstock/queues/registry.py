"""The queues and tasks of one application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ParamSpec, TypeVar, Unpack, cast

from penstock.errors import ConfigError, InvalidJob
from penstock.queues.job import Job
from penstock.queues.options import (
    POLICIES,
    Block,
    QueueOptions,
    SendOptions,
    SendWords,
    check_task_name,
)
from penstock.queues.queue import Queue
from penstock.queues.results import QueueAddResult, QueuePressure
from penstock.queues.sending import PLAIN, Dispatch
from penstock.queues.tasks import Task
from penstock.queues.waiting import Announcements
from penstock.redis.client import Client
from penstock.redis.codec import Codec

__all__ = ["QueueRegistry"]

P = ParamSpec("P")
R = TypeVar("R")
_DEFAULTS = QueueOptions()


class QueueRegistry:
    """Every queue and task that was named in one application; each queue is there once."""

    def __init__(
        self,
        client: Client,
        codec: Codec,
        announcements: Callable[[], Announcements] | None = None,
    ) -> None:
        self._client, self._codec, self._announcements = client, codec, announcements
        self.queues: dict[str, Queue] = {}
        self.tasks: dict[str, Task[..., Any]] = {}

    def queue(self, name: str, options: QueueOptions = _DEFAULTS) -> Queue:
        """Return the queue of this name, made with its first mention.

        Options may be said once, or twice the same; ConfigError if they differ.
        """
        queue = self.queues.get(name)
        if queue is None:
            queue = Queue(
                self._client, self._codec, name, options, announcements=self._announcements
            )
            self.queues[name] = queue
        elif options not in (_DEFAULTS, queue.options):
            if queue.options != _DEFAULTS:
                raise ConfigError(
                    f"queue {name!r} was given other options before: "
                    f"{_differences(queue.options, options)}"
                )
            queue.configure(options)
        return queue

    def task(self, function: Callable[P, Any], queue: str | Queue, **options: Any) -> Task[P, Any]:
        """Make a task of a function; ConfigError if another one has its name."""
        place = queue if isinstance(queue, Queue) else self.queue(queue)
        task: Task[P, Any] = Task(place, function, **options)
        if task.name in self.tasks:
            raise ConfigError(f"there are two tasks {task.name!r}: give one another name")
        self.tasks[task.name] = place.tasks[task.name] = task
        return task

    def adopt(self, task: Task[P, R]) -> Task[P, R]:
        """Declare a task of another application here as well; the same one for the same name."""
        place = self.queue(task.queue.name, task.queue.options)
        if task.name not in self.tasks:
            self.tasks[task.name] = place.tasks[task.name] = task.on(place)
        return cast("Task[P, R]", self.tasks[task.name])

    async def send(
        self,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **words: Unpack[SendWords],
    ) -> Job[Any]:
        """See `Penstock.send`."""
        check_task_name(task)
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidJob("args: expected a list or tuple of positional arguments")
        options = SendOptions(**words) if words else PLAIN
        known = self.tasks.get(task)
        if known is not None and queue in {None, known.queue.name}:
            options = replace(known.options, **words) if words else known.options
            asked = known.options_for(options, tuple(args), kwargs or {})
            return await known.dispatch.send(tuple(args), kwargs or {}, asked)
        if queue is None:
            raise InvalidJob(f"task {task!r} is not of this program: say its queue")
        place = self.queue(queue)
        dispatch = Dispatch(place, task, status=lambda: place.options.status)
        return await dispatch.send(tuple(args), kwargs or {}, options)

    async def add_to_queue_safe(
        self,
        queue_name: str,
        data: Any,
        max_size: int | None = None,
        overflow_policy: str | Block | None = None,
    ) -> QueueAddResult:
        """See `Penstock.add_to_queue_safe`."""
        note = None
        if not (overflow_policy is None or isinstance(overflow_policy, Block)) and (
            overflow_policy not in POLICIES
        ):
            note = f"overflow_policy {str(overflow_policy)[:60]!r} is unknown: reject was used"
            overflow_policy = "reject"
        result = await self.queue(queue_name).add_safe(
            data, max_size=max_size, overflow=overflow_policy
        )
        if note is None:
            return result
        return replace(result, warning="; ".join(filter(None, (note, result.warning))))

    async def get_queue_pressure(
        self, queue_name: str, max_size: int | None = None, timeout_s: float = 5.0
    ) -> QueuePressure:
        """See `Penstock.get_queue_pressure`."""
        async with asyncio.timeout(timeout_s):
            return await self.queue(queue_name).pressure(max_size)


def _differences(before: QueueOptions, now: QueueOptions) -> str:
    names = [
        one.name for one in fields(before) if getattr(before, one.name) != getattr(now, one.name)
    ]
    return ", ".join(names)
