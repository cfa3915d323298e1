"""What queues and jobs refuse."""

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
    """A queue or a job is not as the caller thinks."""


class QueueFull(QueueError):
    """There is no room, and the queue's policy takes no more; nothing was stored."""

    def __init__(self, queue: str, length: int, max_size: int, max_bytes: int = 0) -> None:
        super().__init__(queue, length, max_size, max_bytes)
        self.queue, self.length = queue, length
        self.max_size, self.max_bytes = max_size, max_bytes

    def __str__(self) -> str:
        jobs = str(self.max_size) if self.max_size else ""
        size = f"{self.max_bytes} bytes of them" if self.max_bytes else ""
        most = " or ".join(filter(None, (jobs, size)))
        return f"queue {self.queue!r} is full: {self.length} jobs wait, {most} may"


class QueueMismatch(QueueError):
    """Jobs are pushed to the other end of the queue than the caller says."""

    def __init__(self, queue: str, side: str, wanted: str) -> None:
        super().__init__(queue, side, wanted)
        self.queue, self.side, self.wanted = queue, side, wanted

    def __str__(self) -> str:
        return (
            f"jobs of queue {self.queue!r} are pushed to its {self.side}, not to its {self.wanted}"
        )


class JobMissing(QueueError):
    """There is no such job, or none that has a record."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} has no record of job {self.job_id!r}: they are kept for tasks "
            "and queues with status=True and jobs with an idempotency_key, for a time"
        )


class JobFailed(QueueError):
    """The job whose result was asked for ended without one: failed, cancelled or expired."""

    def __init__(self, queue: str, job_id: str, status: str, error: str) -> None:
        super().__init__(queue, job_id, status, error)
        self.queue, self.job_id, self.status, self.error = queue, job_id, status, error

    def __str__(self) -> str:
        why = f": {self.error}" if self.error else ""
        return f"job {self.job_id!r} in queue {self.queue!r} is {self.status}{why}"


class ClaimLost(QueueError):
    """A job has passed to another worker; what the caller said of it was not written."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r} in queue {self.queue!r} has passed to another worker"


class InvalidJob(QueueError, ValueError):
    """An argument, an option or a time that no job can have; nothing was stored."""
