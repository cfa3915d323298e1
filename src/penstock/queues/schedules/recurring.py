"""Tasks that recur: `@app.cron(…)`, `@app.every(…)`, `task.cron(…)` and `task.every(…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from penstock.errors import ConfigError
from penstock.queues.options import SendOptions
from penstock.queues.producer.sender import meta_of
from penstock.queues.queue import Queue
from penstock.queues.registry import QueueRegistry
from penstock.queues.schedules.cron import When
from penstock.queues.schedules.schedule import Missed, Schedule
from penstock.queues.schedules.schedules import Schedules
from penstock.queues.storage.job_record import first_fields
from penstock.queues.storage.stored_job import task_body, task_item
from penstock.queues.task import Task, TaskDecorator, TaskOptions

__all__ = ["RecurringOptions", "ScheduleOptions", "recurring_decorator", "schedule_task"]

_SCHEDULE_OPTIONS: Final = ("args", "kwargs", "missed", "jitter_s")


class ScheduleOptions(TaskOptions, total=False):
    """Options of a recurring task except its queue: see `Penstock.cron`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None
    missed: Missed
    jitter_s: float


class RecurringOptions(ScheduleOptions, total=False):
    """Options of a recurring task: see `Penstock.cron`."""

    queue: str | Queue


def recurring_decorator(
    registry: QueueRegistry,
    schedules: Schedules,
    when: When,
    options: RecurringOptions,
) -> TaskDecorator:
    """Return a decorator that makes a task of a function and schedules it, both under one name.

    An existing task may be scheduled as well, any number of times: then `name` is that of the
    schedule alone, and options that belong to the task raise ConfigError.
    """
    of_task = dict[str, Any](options)
    of_schedule = {name: of_task.pop(name) for name in _SCHEDULE_OPTIONS if name in of_task}

    def register(function: Callable[..., Any] | Task[..., Any]) -> Task[..., Any]:
        if not isinstance(function, Task):
            task = registry.task(function, **{"queue": "default", **of_task})
        elif others := of_task.keys() - {"name"}:
            raise ConfigError(f"{function!r}: give {', '.join(others)} where the task is made")
        else:
            task = cast("Task[..., Any]", function)
        schedule_task(schedules, task, when, name=of_task.get("name"), **of_schedule)
        return task

    return cast("TaskDecorator", register)


def schedule_task(
    schedules: Schedules,
    task: Task[..., Any],
    when: When,
    *,
    name: str | None = None,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    missed: Missed = "skip",
    jitter_s: float = 0.0,
) -> None:
    """Schedule calls of a task, under the task's name or another.

    InvalidJob if it does not take the arguments, InvalidName for an invalid name.
    """
    named = dict(kwargs or {})
    arguments, keywords = task.signature.encode(args, named)
    options = task.options_for(task.options, args, named)

    def renew() -> Schedule:
        queue = task.queue
        target, tracked = queue.target(options), task.performer().tracked
        fields = first_fields(
            job_id="",
            queue=queue.name,
            task=task.name,
            max_attempts=task.retry.max_attempts,
            group="",
            lane=target.lane,
            unique=queue.held_key(options),
            copied={},
        )

        def make(job_id: str, tick_ms: int) -> bytes:
            meta = meta_of(_with_tick(options, tick_ms), tracked=tracked, now_ms=tick_ms)
            if queue.signatures is not None:
                body = task_body(id=job_id, task=task.name, args=arguments, kwargs=keywords)
                meta = queue.signatures.signed_call(job_id, task.name, body, meta)
            item = task_item(
                queue.codec, id=job_id, task=task.name, args=arguments, kwargs=keywords, meta=meta
            )
            return queue.enqueuer.check_size(item)

        return Schedule(
            name=task.name if name is None else name,
            when=when,
            queue=queue.name,
            make=make,
            lane=target.lane,
            unique=options.unique or "",
            fields=tuple(fields) if tracked else None,
            max_size=target.max_size,
            max_bytes=queue.options.max_bytes,
            # Waiting for room would delay other schedules: the tick stays due instead.
            overflow=target.overflow if isinstance(target.overflow, str) else "reject",
            missed=missed,
            jitter_s=jitter_s,
        )

    schedules.add(renew(), renew)


def _with_tick(options: SendOptions, tick_ms: int) -> SendOptions:
    return replace(options, headers={**(options.headers or {}), "scheduled_ms": str(tick_ms)})
