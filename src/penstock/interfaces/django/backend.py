"""The side of `django.tasks` that sends tasks and asks what became of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from penstock import app as asynchronous
from penstock import sync
from penstock.errors import ConfigError, InvalidName, JobMissing
from penstock.inspector.key_scan import registered_queues
from penstock.interfaces.django import framework
from penstock.interfaces.django.results import as_result, new_result
from penstock.queues.storage.job_record import JobRecord
from penstock.settings import Settings

__all__ = ["PenstockBackend"]

RECORDED = ("args", "kwargs")
"""Fields of a job that are copied into its record."""

_lock = threading.Lock()
_applications: dict[str, sync.Penstock] = {}


class PenstockBackend(framework.BaseTaskBackend):
    """Queues tasks of Django, by the path of their function; a Penstock worker runs them.

    `OPTIONS` are Penstock's settings by their dotted names, `{"url": …, "queues.max_size": 500}`;
    the environment and `penstock.toml` hold for the others. Of priorities there are three: above 0,
    0 and below.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    seen: ClassVar[dict[tuple[str, str], Any]] = {}
    """Every task that was declared for such a backend, by the backend's alias and its path."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)  # pyright: ignore[reportUnknownMemberType]
        self.alias: str
        self.queues: set[str]
        self.options: dict[str, Any]

    @property
    def settings(self) -> Settings:
        """The settings in force; ConfigError if `OPTIONS` are none."""
        return Settings.load(self.options)

    def validate_task(self, task: Any) -> None:
        """See that the task can be run; remember it for the worker."""
        super().validate_task(task)  # pyright: ignore[reportUnknownMemberType]
        self.seen.setdefault((self.alias, task.module_path), task)

    def check(self, **_: Any) -> list[Any]:
        """Check the settings, for `manage.py check`."""
        try:
            Settings.load(self.options)
        except ConfigError as error:
            return [framework.checks.Error(f"TASKS[{self.alias!r}]: {error}", id="penstock.E001")]
        return []

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Queue a task; it is stored when this returns. To wait for a commit: `on_commit`."""
        self.validate_task(task)
        result = new_result(self.alias, task, args, kwargs)
        self._push(result)
        framework.task_enqueued.send_robust(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As `enqueue`, without blocking the event loop."""
        self.validate_task(task)
        result = new_result(self.alias, task, args, kwargs)
        await asyncio.to_thread(self._push, result)
        await framework.task_enqueued.asend_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result of a queued task; `TaskResultDoesNotExist` if it has no record."""
        portal, app = self._penstock().reach()
        record = portal.run(self._record(app, str(result_id)))
        task = self._declared(record.task)
        if task is None:
            framework.autodiscover_modules("tasks")  # a program that queues none of them itself
            task = self._declared(record.task)
        if task is None:
            raise framework.TaskResultDoesNotExist(result_id)
        return as_result(self.alias, task, record, app.codec)

    def _declared(self, path: str) -> Any:
        """The task of a path, which is compared and never imported: anyone can write a record."""
        return next((task for (_, seen), task in list(self.seen.items()) if seen == path), None)

    async def aget_result(self, result_id: str) -> Any:
        """As `get_result`, without blocking the event loop."""
        return await asyncio.to_thread(self.get_result, result_id)

    def close(self) -> None:
        """Close the connections of this process; a later call opens them again."""
        self._penstock().close()

    def _push(self, result: Any) -> None:
        portal, app = self._penstock().reach()
        job_id = portal.run(self._send(app, result))
        object.__setattr__(result, "id", job_id)
        object.__setattr__(result, "enqueued_at", framework.timezone.now())

    async def _send(self, app: asynchronous.Penstock, result: Any) -> str:
        task = result.task
        at: datetime | None = task.run_after
        if at is not None and at.tzinfo is None:
            at = framework.timezone.make_aware(at)
        if at is not None and at <= datetime.now(UTC):
            at = None
        queue = app.queue(task.queue_name, status=True, status_fields=RECORDED)
        job = await app.send(
            task.module_path,
            result.args,
            result.kwargs,
            queue=queue.name,
            at=at,
            priority="high" if task.priority > 0 else "low" if task.priority < 0 else None,
        )
        return job.id

    async def _record(self, app: asynchronous.Penstock, result_id: str) -> JobRecord:
        for name in sorted(self.queues) or await self._all_queues(app):
            queue = app.queue(name, status=True, status_fields=RECORDED)
            try:
                return await queue.job(result_id).status()
            except (JobMissing, InvalidName):
                continue
        raise framework.TaskResultDoesNotExist(result_id)

    async def _all_queues(self, app: asynchronous.Penstock) -> list[str]:
        """Without `QUEUES` a task may be in any."""
        return sorted(await registered_queues(app.redis))

    def _penstock(self) -> sync.Penstock:
        """Return the process's application: Django makes a backend for each of its threads."""
        key = repr(sorted(self.options.items()))
        with _lock:
            if key not in _applications:
                _applications[key] = sync.Penstock(settings=self.settings)
            return _applications[key]
