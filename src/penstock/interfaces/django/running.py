"""The side of `django.tasks` that runs tasks: Django's functions as Penstock's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from penstock.app import Penstock
from penstock.delivery.failures import Failure
from penstock.delivery.retries import GiveUp, RetryPolicy
from penstock.interfaces.django import framework
from penstock.interfaces.django.backend import PenstockBackend
from penstock.interfaces.django.results import error_of, moment, new_result, workers_of
from penstock.queues.storage.stored_job import id_ms
from penstock.queues.worker.job_context import JobContext, current_job

__all__ = ["register", "worker_app"]


def worker_app(backend: str = "default", *modules: str, **options: Any) -> Penstock:
    """Make the application whose workers run the tasks of one backend, with its settings.

    As `register`, for programs that have no Penstock of their own.
    """
    app = Penstock(settings=framework.task_backends[backend].settings)
    register(app, *modules, backend=backend, **options)
    return app


def register(
    app: Penstock,
    *modules: str,
    backend: str = "default",
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
) -> None:
    """Let the workers of `app` run the tasks that were declared for a backend.

    They are found in the modules `tasks` of the installed apps and in `modules`; call it once,
    after `django.setup()`. Each is a task by the path of its function, and is run from any queue of
    the backend. A task that fails is tried again as `retry` says, by default as other tasks are.
    """
    framework.autodiscover_modules("tasks")
    for module in modules:
        import_module(module)
    place = framework.task_backends[backend]
    if not isinstance(place, PenstockBackend):
        raise TypeError(f"TASKS[{backend!r}] is a {type(place).__name__}, not a PenstockBackend")
    policy = retry or RetryPolicy()
    for (alias, path), task in list(PenstockBackend.seen.items()):
        if alias != backend:
            continue
        declare = app.task(
            queue=task.queue_name, name=path, retry=policy, timeout_s=timeout, status=True
        )
        made = declare(_runner(task, backend, policy))
        for name in place.queues:
            app.queue(name).add_task(path, made.performer)


def _runner(task: Any, alias: str, policy: RetryPolicy) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(task.func):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            async_close = framework.sync_to_async(framework.close_old_connections)
            await async_close()
            try:
                with _reported(task, alias, policy, args, kwargs) as result:
                    value = await task.func(*_arguments(task, result, args), **kwargs)
                    object.__setattr__(result, "_return_value", value)
            finally:
                await async_close()
            return value

        return run_async

    def run(*args: Any, **kwargs: Any) -> Any:
        # As around a request: a connection that has become stale is not used again.
        framework.close_old_connections()
        try:
            with _reported(task, alias, policy, args, kwargs) as result:
                value = task.func(*_arguments(task, result, args), **kwargs)
                object.__setattr__(result, "_return_value", value)
        finally:
            framework.close_old_connections()
        return value

    return run


def _arguments(task: Any, result: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (framework.TaskContext(task_result=result), *args) if task.takes_context else args


@contextmanager
def _reported(
    task: Any, alias: str, policy: RetryPolicy, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[Any]:
    """Send Django's signals around an attempt. A receiver that fails does not fail the task."""
    job = current_job()
    now = framework.timezone.now()
    result = new_result(
        alias,
        task.using(queue_name=job.queue),
        args,
        kwargs,
        id=job.id,
        status=framework.TaskResultStatus.RUNNING,
        enqueued_at=moment(id_ms(job.id)),
        started_at=now,
        last_attempted_at=now,
        worker_ids=workers_of(job.attempt, job.worker),
    )
    framework.task_started.send_robust(PenstockBackend, task_result=result)
    try:
        yield result
    except Exception as error:
        if isinstance(policy.decide(error, job.attempt), GiveUp):
            _finish(result, "FAILED", _failure(error, job))
        raise
    _finish(result, "SUCCESSFUL")


def _finish(result: Any, status: str, *errors: Any) -> None:
    result.errors.extend(errors)
    object.__setattr__(result, "status", framework.TaskResultStatus[status])
    object.__setattr__(result, "finished_at", framework.timezone.now())
    framework.task_finished.send_robust(PenstockBackend, task_result=result)


def _failure(error: Exception, job: JobContext) -> Any:
    failure = Failure.of(error, job.attempt, 0)
    return error_of(failure.error_class, failure.stack)
