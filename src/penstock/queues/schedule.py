"""What recurs, and how its jobs are queued: each once.

The next tick of a schedule stands on the server. Whoever finds that its time has come makes the job
and calls one script, which queues the job and stores the tick after it, provided that nobody else
has. So it does not matter how many workers try, when one dies, or for how long none is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args
from zlib import crc32

from penstock.delivery.times import wait_s
from penstock.errors import ConfigError
from penstock.queues.cron import Cron, Every, When
from penstock.queues.losses import note_losses
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.keyring import QueueKeyring
from penstock.redis.keys.names import check_name
from penstock.redis.wire import Argument

__all__ = ["MOST_MISSED", "PAUSED", "QUEUED", "Missed", "Schedule", "enqueue"]

Missed = Literal["skip", "once", "all"]

MISSED_AFTER_MS: Final = 15_000
"""A tick found later than this was missed; before that it is only late, as in a restart."""
MOST_MISSED: Final = 1_000
"""Missed ticks for which `missed="all"` queues jobs: the latest ones."""
PAUSED: Final = "inf"
QUEUED: Final = 1
"""What `enqueue` says of jobs that were queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Something that recurs: at the moments of `when`, a job of `make` goes to `queue`.

    - `name`: the same in all workers. It is what the server remembers the next tick by.
    - `make(job_id, tick_ms)` returns the job as it is stored; `tick_ms` is the moment it is for.
    - `missed`: what becomes of ticks at which no worker was there. "skip" waits for the next one;
      "once" queues one job, for the latest; "all" queues one for each of the last 1,000.
    - `jitter_s`: each tick comes up to so much later, by a length that name and tick decide.
    - `lane`: of the queue, as it stands in keys.
    - `unique`: a key that its job holds until it ends; a tick that finds it held is passed over.
    - `fields`: names and values of the job's record; None for jobs that have none.
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
        """How much later than its moment a tick is due: the same in every process."""
        most = round(self.jitter_s * 1000)
        return crc32(f"{self.name}:{tick_ms}".encode()) % (most + 1)

    def due_ticks(self, tick_ms: int, now_ms: int) -> tuple[list[int], int]:
        """Return the ticks to queue jobs for, if `tick_ms` is due at `now_ms`; and the next tick.

        A job comes for the latest tick at least, unless it was missed and is to be skipped.
        """
        # The stored tick itself may be none of ours: somebody has set it by hand.
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
) -> int:
    """Queue jobs (id and tick) and move on from the tick `found`: see `fire_tick.lua`.

    Without `found` the jobs are queued out of turn.
    """
    settings, keys = client.settings.queues, QueueKeyring.of(client.keys, schedule.queue)
    stored: list[Argument] = []
    for job_id, tick in jobs:
        stored += (job_id, keys.record_name(job_id), schedule.make(job_id, tick))
    done, *packed = await client.scripts.fire_tick(
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
    if packed:
        await note_losses(client, Codec(client.settings.codec), keys, packed)
    return done
