"""What comes back from adding a job, and how full a queue is."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.queues.options import Overflow

__all__ = ["QueueAddResult", "QueuePressure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAddResult:
    """What became of one job, or of many added together."""

    success: bool
    queue_length: int
    """Jobs that wait in the list now; for a job with a delay, those not yet due."""
    dropped_count: int = 0
    moved_to_dlq_count: int = 0
    error: str | None = None
    warning: str | None = None
    job_id: str = ""
    """Of the job that was added, or of the one that holds its unique key; empty if it has none."""
    created: bool = True
    """False if the unique key or the id was taken: then nothing was added."""

    @property
    def had_backpressure(self) -> bool:
        """Whether the queue is nearly full, or was full."""
        return not self.success or self.warning is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePressure:
    """How full a queue is."""

    queue_name: str
    current_length: int
    max_size: int
    """0 for any number."""
    fill_ratio: float
    is_at_pressure_threshold: bool
    is_full: bool
    overflow_policy: Overflow
