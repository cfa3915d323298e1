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
    QueueOptions,
    SendKeywords,
    SendOptions,
    WaitForRoom,
    check_task_name,
)
from penstock.queues.producer.result_poller import Announcements
from penstock.queues.producer.results import QueueAddResult, QueuePressure
from penstock.queues.producer.sender import PLAIN, JobSender
from penstock.queues.queue import Queue
from penstock.queues.task import Task
from penstock.redis.client import Client
from penstock.redis.codec import Codec

__all__ = ["QueueRegistry"]

P = ParamSpec("P")
R = TypeVar("R")
_DEFAULTS = QueueOptions()


class QueueRegistry:
    """Every queue and task of one application, each once."""

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
        """Return the queue of this name, created at the first call.

        Options may be given once, or repeated unchanged; ConfigError if they differ.
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
        owner = queue if isinstance(queue, Queue) else self.queue(queue)
        task: Task[P, Any] = Task(owner, function, **options)
        if task.name in self.tasks:
            raise ConfigError(f"there are two tasks {task.name!r}: give one another name")
        self._add(task)
        return task

    def adopt(self, task: Task[P, R]) -> Task[P, R]:
        """Declare a task of another application here as well; the same one for the same name."""
        queue = self.queue(task.queue.name, task.queue.options)
        if task.name not in self.tasks:
            self._add(task.on(queue))
        return cast("Task[P, R]", self.tasks[task.name])

    def _add(self, task: Task[..., Any]) -> None:
        self.tasks[task.name] = task
        task.queue.add_task(task.name, task.performer)

    async def close(self) -> None:
        """Wait for sends in flight and stop polling for results; after the client was closed."""
        for queue in self.queues.values():
            await queue.close()

    async def send(
        self,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **keywords: Unpack[SendKeywords],
    ) -> Job[Any]:
        """See `Penstock.send`."""
        check_task_name(task)
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidJob("args: expected a list or tuple of positional arguments")
        options = SendOptions(**keywords) if keywords else PLAIN
        known = self.tasks.get(task)
        if known is not None and queue in {None, known.queue.name}:
            options = replace(known.options, **keywords) if keywords else known.options
            options = known.options_for(options, tuple(args), kwargs or {})
            return await known.job_sender.send(tuple(args), kwargs or {}, options)
        if queue is None:
            raise InvalidJob(f"task {task!r} is not declared in this program: give its queue")
        owner = self.queue(queue)
        sender = JobSender(owner, owner.enqueuer, task, status=lambda: owner.options.status)
        return await sender.send(tuple(args), kwargs or {}, options)

    async def add_to_queue_safe(
        self,
        queue_name: str,
        data: Any,
        max_size: int | None = None,
        overflow_policy: str | WaitForRoom | None = None,
    ) -> QueueAddResult:
        """See `Penstock.add_to_queue_safe`."""
        note = None
        if not (overflow_policy is None or isinstance(overflow_policy, WaitForRoom)) and (
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
