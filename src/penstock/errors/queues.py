"""Errors of queues and jobs."""

from __future__ import annotations

from penstock.errors.base import PenstockError

__all__ = [
    "ClaimLost",
    "InvalidJob",
    "JobFailed",
    "JobMissing",
    "QueueError",
    "QueueFull",
    "QueueMismatch",
]


class QueueError(PenstockError):
    """The call does not fit the state of a queue or job."""


_SETTINGS = {
    "waiting jobs": "queues.max_size",
    "fair lanes with jobs": "queues.max_lanes",
    "delayed jobs": "queues.max_delayed",
}


class QueueFull(QueueError):
    """The queue is full and its policy rejects; nothing was stored.

    `what` names what there are too many of, `limit` is the maximum and `setting` what sets it.
    """

    def __init__(
        self,
        queue: str,
        length: int,
        max_size: int,
        max_bytes: int = 0,
        what: str = "waiting jobs",
        limit: int = 0,
    ) -> None:
        super().__init__(queue, length, max_size, max_bytes, what, limit)
        self.queue, self.length = queue, length
        self.max_size, self.max_bytes = max_size, max_bytes
        self.what, self.limit, self.setting = what, limit or max_size, _SETTINGS[what]

    def __str__(self) -> str:
        if self.what != "waiting jobs":
            return f"queue {self.queue!r} is full: {self.setting} allows {self.limit} {self.what}"
        jobs = str(self.max_size) if self.max_size else ""
        size = f"{self.max_bytes} bytes of them" if self.max_bytes else ""
        most = " or ".join(filter(None, (jobs, size)))
        return f"queue {self.queue!r} is full: {self.length} jobs wait, {most} may"


class QueueMismatch(QueueError):
    """Jobs of the queue are pushed to its other end."""

    def __init__(self, queue: str, side: str, wanted: str) -> None:
        super().__init__(queue, side, wanted)
        self.queue, self.side, self.wanted = queue, side, wanted

    def __str__(self) -> str:
        return (
            f"jobs of queue {self.queue!r} are pushed to its {self.side}, not to its {self.wanted}"
        )


class JobMissing(QueueError):
    """The job does not exist, or has no record."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} has no record of job {self.job_id!r}: they are kept for tasks "
            "and queues with status=True and jobs with an idempotency_key, for a time"
        )


class JobFailed(QueueError):
    """The awaited job ended without a result: failed, cancelled or expired."""

    def __init__(self, queue: str, job_id: str, status: str, error: str) -> None:
        super().__init__(queue, job_id, status, error)
        self.queue, self.job_id, self.status, self.error = queue, job_id, status, error

    def __str__(self) -> str:
        why = f": {self.error}" if self.error else ""
        return f"job {self.job_id!r} in queue {self.queue!r} is {self.status}{why}"


class ClaimLost(QueueError):
    """Another worker has the job now; nothing was written."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r} in queue {self.queue!r} has passed to another worker"


class InvalidJob(QueueError, ValueError):
    """An invalid argument, option or time; nothing was stored."""
