"""Tasks that recur: `@app.cron(…)`, `@app.every(…)`, `task.cron(…)` and `task.every(…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import ConfigError
from penstock.queues.cron import When
from penstock.queues.items import task_item
from penstock.queues.options import SendOptions
from penstock.queues.records import first_fields
from penstock.queues.schedule import Missed, Schedule
from penstock.queues.schedules import Schedules
from penstock.queues.sending import meta_of
from penstock.queues.tasks import Task, TaskDecorator, TaskWords

if TYPE_CHECKING:
    from penstock.queues.queue import Queue
    from penstock.queues.registry import QueueRegistry

__all__ = ["RecurringWords", "ScheduleWords", "recurring_decorator", "schedule_task"]

_OF_SCHEDULES: Final = ("args", "kwargs", "missed", "jitter_s")


class ScheduleWords(TaskWords, total=False):
    """Options of a recurring task except its queue: see `Penstock.cron`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None
    missed: Missed
    jitter_s: float


class RecurringWords(ScheduleWords, total=False):
    """Options of a recurring task: see `Penstock.cron`."""

    queue: str | Queue


def recurring_decorator(
    registry: QueueRegistry,
    schedules: Schedules,
    when: When,
    words: RecurringWords,
) -> TaskDecorator:
    """Return what makes a task of a function and lets it recur, both under one name.

    A task that is one already recurs as well, as often as it is asked to: then the name is that of
    the schedule alone, and ConfigError tells of options that belong to the task.
    """
    told = dict[str, Any](words)
    about = {name: told.pop(name) for name in _OF_SCHEDULES if name in told}

    def register(function: Callable[..., Any] | Task[..., Any]) -> Task[..., Any]:
        if not isinstance(function, Task):
            task = registry.task(function, **{"queue": "default", **told})
        elif others := told.keys() - {"name"}:
            raise ConfigError(f"{function!r}: {', '.join(others)} must be said where it is made")
        else:
            task = cast("Task[..., Any]", function)
        schedule_task(schedules, task, when, name=told.get("name"), **about)
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
    """Let calls of a task recur, under the task's name or another.

    InvalidJob if it cannot be called so, InvalidName if the name cannot be a schedule's.
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
            told = _with_tick(options, tick_ms)
            meta = meta_of(told, tracked=tracked, now_ms=tick_ms)
            item = task_item(
                queue.codec, id=job_id, task=task.name, args=arguments, kwargs=keywords, meta=meta
            )
            return queue.adder.check_size(item)

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
            # Blocking would hold up other schedules: the tick stays due instead.
            overflow=target.overflow if isinstance(target.overflow, str) else "reject",
            missed=missed,
            jitter_s=jitter_s,
        )

    schedules.add(renew(), renew)


def _with_tick(options: SendOptions, tick_ms: int) -> SendOptions:
    return replace(options, headers={**(options.headers or {}), "scheduled_ms": str(tick_ms)})
