"""Queues: jobs that workers run, as calls of tasks or as raw data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.queues.admin.queue_admin import QueueAdmin
    from penstock.queues.dead_letters.dead_letters import QueueDeadLetters
    from penstock.queues.isolation.pool import Isolation
    from penstock.queues.job import Job
    from penstock.queues.options import block
    from penstock.queues.producer.results import QueueAddResult, QueuePressure
    from penstock.queues.queue import Queue
    from penstock.queues.schedules.schedules import Schedules
    from penstock.queues.storage.job_record import JobProgress, JobRecord
    from penstock.queues.task import Task
    from penstock.queues.worker.job_context import JobContext, current_job
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "admin.queue_admin": "QueueAdmin",
            "dead_letters.dead_letters": "QueueDeadLetters",
            "isolation.pool": "Isolation",
            "job": "Job",
            "options": "block",
            "producer.results": "QueueAddResult QueuePressure",
            "queue": "Queue",
            "schedules.schedules": "Schedules",
            "storage.job_record": "JobProgress JobRecord",
            "task": "Task",
            "worker.job_context": "JobContext current_job",
        },
    )

__all__ = [
    # tasks and queues
    "Queue",
    "Task",
    "Job",
    "block",
    "QueueAddResult",
    "QueuePressure",
    # while a job runs
    "current_job",
    "JobContext",
    "Isolation",
    # administration
    "JobRecord",
    "JobProgress",
    "QueueAdmin",
    "QueueDeadLetters",
    "Schedules",
]
