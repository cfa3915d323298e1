"""What Penstock needs of Django: `django.tasks` if there is one, else the package `django-tasks`.

Neither has types, so all of it is `Any` here, and only here.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = [
    "BaseTaskBackend",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "autodiscover_modules",
    "checks",
    "close_old_connections",
    "package",
    "settings",
    "sync_to_async",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
    "timezone",
]


def _package() -> str:
    for name in ("django.tasks", "django_tasks"):
        try:
            if find_spec(name) is not None:
                return name
        except ModuleNotFoundError:  # there is no Django at all
            continue
    raise ImportError(
        "penstock.interfaces.django needs Django 6, or an older one with the package "
        "django-tasks: pip install 'penstock[django]'"
    )


package = _package()
_tasks: Any = import_module(package)
_base: Any = import_module(f"{package}.base")
_signals: Any = import_module(f"{package}.signals")

BaseTaskBackend: Any = import_module(f"{package}.backends.base").BaseTaskBackend
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
TaskResultDoesNotExist: Any = import_module(f"{package}.exceptions").TaskResultDoesNotExist
task_backends: Any = _tasks.task_backends
task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished

autodiscover_modules: Any = import_module("django.utils.module_loading").autodiscover_modules
checks: Any = import_module("django.core.checks")
close_old_connections: Any = import_module("django.db").close_old_connections
settings: Any = import_module("django.conf").settings
sync_to_async: Any = import_module("asgiref.sync").sync_to_async
timezone: Any = import_module("django.utils.timezone")
