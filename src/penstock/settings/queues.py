"""Defaults of queues and their workers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from penstock.settings.group import Bytes, Group, Share

__all__ = ["QueueSettings"]


class QueueSettings(Group):
    """Queues and their workers."""

    section: ClassVar[str] = "queues"
    max_size: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    """Maximum number of waiting jobs per queue and lane; 0 for no limit."""
    overflow_policy: Literal["reject", "dlq", "drop_oldest"] = "reject"
    """What a full queue does with a new job: see `docs/how-to/queues.md`."""
    pressure: Share = 0.8
    """Fill ratio from which the result of a push has a warning."""
    max_overflow: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    """Maximum number of jobs on the overflow list; beyond it the queue rejects."""
    max_lanes: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 100_000
    """Maximum number of fair lanes with waiting jobs per queue; 0 for no limit."""
    max_delayed: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 1_000_000
    """Maximum number of delayed jobs per queue, beside `max_size`; 0 for no limit."""
    max_queues: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    """Maximum number of queues per namespace; 0 for no limit."""
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 32
    """Maximum number of running jobs per queue and worker process."""
    prefetch: Annotated[int, Meta(ge=1, le=2_000)] = 250
    """Maximum number of jobs per claim. Only jobs of a few milliseconds are claimed in advance."""
    prefetch_bytes: Bytes = 4 * 1024 * 1024
    """Maximum bytes per claim, and of jobs claimed in advance, unless a single job has more."""
    poll_s: Annotated[float, Meta(ge=0.005, le=10)] = 0.1
    """How often the tender of a queue looks for jobs without a wake-up token."""
    beat_s: Annotated[float, Meta(ge=0.05, le=600)] = 1.0
    """How often a worker sends a heartbeat to its queues, from a thread of its own."""
    silence_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 5.0
    """A worker without a heartbeat for this long is dead: its jobs return to their queue."""
    keep_s: Annotated[float, Meta(gt=0, le=3_650 * 86_400)] = 7 * 86_400.0
    """How long the record of a job stays after the job has ended."""
    max_job_bytes: Bytes = 512 * 1024
    """Maximum size of a stored job. Put larger data elsewhere and queue its address."""
    max_result_bytes: Bytes = 4 * 1024 * 1024
    """Maximum size of a stored result; for a larger one the record has a note instead."""
    unknown_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 3_600.0
    """How long a job whose task or arguments no worker knows is put off before it becomes a dead
    letter."""
