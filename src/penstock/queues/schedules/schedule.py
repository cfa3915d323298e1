"""Schedules, and how the job of each tick is queued exactly once.

The next tick of a schedule is stored on the server. A worker that finds it due makes the job and
calls one script, which queues the job and stores the tick after it, unless another worker was
first. So any number of workers may try, die or be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args
from zlib import crc32

from penstock.delivery.times import wait_s
from penstock.errors import ConfigError
from penstock.queues.schedules.cron import Cron, Every, When
from penstock.queues.schedules.scripts import FireStatus, ScheduleScripts
from penstock.queues.storage.dropped_jobs import note_losses
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.names import check_name
from penstock.redis.wire import Argument

__all__ = ["MOST_MISSED", "PAUSED", "Missed", "Schedule", "enqueue"]

Missed = Literal["skip", "once", "all"]

MISSED_AFTER_MS: Final = 15_000
"""A tick found later than this was missed; before that it is late, as after a restart."""
MOST_MISSED: Final = 1_000
"""Missed ticks for which `missed="all"` queues jobs: the latest ones."""
PAUSED: Final = "inf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A recurring job: at each moment of `when`, a job made by `make` goes to `queue`.

    - `name`: the same in all workers; the server stores the next tick under it.
    - `make(job_id, tick_ms)` returns the stored form of the job for the tick `tick_ms`.
    - `missed`: what to do with ticks at which no worker ran. "skip" waits for the next one; "once"
      queues one job, for the latest; "all" queues one for each of the last 1,000.
    - `jitter_s`: each tick is delayed by up to this much, determined by name and tick.
    - `lane`: of the queue, as spelled in keys.
    - `unique`: a key that its job holds until it ends; a tick that finds it held is skipped.
    - `fields`: names and values of the job's record; None for jobs without one.
    - `max_size`, `max_bytes`, `overflow`: as for other jobs of the queue. In a full queue that
      rejects jobs, the tick stays due.

    Raises `ConfigError` or `InvalidName`.
    """

    name: str
    when: When
    queue: str
    make: Callable[[str, int], bytes]
    missed: Missed = "skip"
    jitter_s: float = 0.0
    lane: str = ""
    unique: str = ""
    fields: tuple[Argument, ...] | None = None
    max_size: int | None = None
    max_bytes: int = 0
    overflow: str | None = None

    def __post_init__(self) -> None:
        check_name("schedule", self.name)
        if not isinstance(self.when, Cron | Every):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"schedule {self.name!r}: when = {self.when!r}: expected Cron, Every")
        if self.missed not in get_args(Missed):
            raise ConfigError(
                f"schedule {self.name!r}: missed = {self.missed!r}: "
                f"expected one of {', '.join(get_args(Missed))}"
            )
        try:
            object.__setattr__(self, "jitter_s", wait_s(self.jitter_s, "jitter_s"))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"schedule {self.name!r}: {error}") from None

    def delay_ms(self, tick_ms: int) -> int:
        """Jitter of a tick: the same in every process."""
        most = round(self.jitter_s * 1000)
        return crc32(f"{self.name}:{tick_ms}".encode()) % (most + 1)

    def due_ticks(self, tick_ms: int, now_ms: int) -> tuple[list[int], int]:
        """Return the ticks to queue jobs for, if `tick_ms` is due at `now_ms`, and the next tick.

        The latest tick is among them, unless it was missed and is to be skipped.
        """
        # The stored tick may be none of `when`: it can be set by hand.
        most = MOST_MISSED if self.missed == "all" else 1
        ticks = [tick_ms, *self.when.between(tick_ms, now_ms, most)][-most:]
        latest = ticks[-1]
        if self.missed == "skip" and now_ms - latest > MISSED_AFTER_MS:
            ticks = []
        return ticks, self.when.next_after(latest)


async def enqueue(
    client: Client,
    schedule: Schedule,
    jobs: Sequence[tuple[str, int]],
    *,
    found: str = "",
    due_ms: int = 0,
    next_ms: int = 0,
) -> FireStatus:
    """Queue jobs (id and tick) and move on from the tick `found`: see `fire_tick.lua`.

    Without `found` the jobs are queued beside the ticks.
    """
    settings, keys = client.settings.queues, QueueKeyring.of(client.keys, schedule.queue)
    stored: list[Argument] = []
    for job_id, tick in jobs:
        stored += (job_id, keys.record_name(job_id), schedule.make(job_id, tick))
    reply = await ScheduleScripts.of(client).fire_tick(
        keys=keys,
        unique=keys.unique(schedule.unique or schedule.name),
        name=schedule.name,
        text=schedule.when.text,
        found=found,
        due=due_ms,
        next_tick=next_ms,
        lane=schedule.lane,
        policy=schedule.overflow or settings.overflow_policy,
        max_size=settings.max_size if schedule.max_size is None else schedule.max_size,
        max_bytes=schedule.max_bytes,
        max_overflow=settings.max_overflow,
        keep_ms=round(settings.keep_s * 1000),
        is_unique=bool(schedule.unique),
        fields=schedule.fields,
        jobs=stored,
    )
    if reply.packed:
        await note_losses(client, Codec(client.settings.codec), keys, reply.packed)
    return reply.status
