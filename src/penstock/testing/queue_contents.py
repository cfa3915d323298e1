"""Contents of a queue, read with plain commands. For tests: it reads everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.app import Penstock
from penstock.queues.schedules.schedule import Schedule
from penstock.queues.storage.keys import PRIORITIES, QueueKeyring, QueuesKeys
from penstock.redis.client import Client

__all__ = ["NO_TIME", "Standing", "Stored", "known_queues", "standing_of", "stored_in"]

NO_TIME = 8e15
"""Scores beyond this are no times: of lanes that are paused or at their limit, and of schedules."""

# One script, so that no job is overlooked on its way from one place to the next.
_STANDING = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local waiting, running = redis.call('LLEN', KEYS[1]), 0
for _, lane in ipairs({'high', 'normal', 'low'}) do
  waiting = waiting + redis.call('LLEN', KEYS[1] .. ':' .. lane)
end
local ring, parked = redis.call('LRANGE', KEYS[2], 0, -1), redis.call('ZRANGE', KEYS[3], 0, -1)
for _, lanes in ipairs({ring, parked}) do
  for _, lane in ipairs(lanes) do waiting = waiting + redis.call('LLEN', KEYS[1] .. ':' .. lane) end
end
for _, members in ipairs({KEYS[5], KEYS[6]}) do
  for _, worker in ipairs(redis.call('ZRANGE', members, 0, -1)) do
    running = running + redis.call('HLEN', ARGV[1] .. worker)
  end
end
return {waiting, running, redis.call('ZCOUNT', KEYS[4], '-inf', now + ARGV[2]),
  redis.call('ZCARD', KEYS[4]), redis.call('HEXISTS', KEYS[8], 'paused'),
  redis.call('HGETALL', KEYS[7]), redis.call('ZRANGE', KEYS[9], 0, -1, 'WITHSCORES'), now}
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """How many jobs of a queue are where."""

    queue: str
    waiting: int
    running: int
    due: int
    """Not waiting yet, but due within the time that was asked about; ticks of schedules, too."""
    later: int
    """Not due for longer than that."""
    paused: bool
    counters: dict[str, int]
    """What has happened in the queue so far: added, done, retried, dead and so on."""

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.due)

    def __str__(self) -> str:
        counts = f"{self.waiting} waiting, {self.running} running, {self.due} due"
        return f"queue {self.queue!r}: {counts}{', paused' if self.paused else ''}"


@dataclass(frozen=True, slots=True)
class Stored:
    """A job that waits, as it is stored."""

    data: bytes
    lane: str
    due_ms: int | None
    """When it is to be queued, in server ms; None if it is queued already."""
    place: int | str
    """Its index in the lane's list, or its id among those not yet due."""


async def known_queues(app: Penstock) -> list[str]:
    """Names of all queues: of this program, and those that others have declared."""
    names = await app.redis.call("SMEMBERS", QueuesKeys.of(app.redis.keys).registry)
    return sorted({*app.registry.queues, *(name.decode() for name in names)})


async def standing_of(app: Penstock, queue: str, window_s: float = 0.0) -> Standing:
    """Count the jobs of a queue, all at one moment."""
    keys = QueueKeyring.of(app.redis.keys, queue)
    places = (
        *(keys.waiting, keys.ring, keys.parked, keys.delayed),
        *(keys.workers, keys.dead_workers, keys.counters, keys.state, keys.schedule),
    )
    window_ms = round(window_s * 1000)
    waiting, running, due, delayed, paused, counters, ticks, now_ms = await app.redis.call(
        "EVAL", _STANDING, len(places), *places, keys.claims, window_ms
    )
    pairs = zip(counters[::2], counters[1::2], strict=True)
    counted = {name.decode(): int(count) for name, count in pairs}
    next_ticks = dict(zip(ticks[::2], map(float, ticks[1::2]), strict=True))
    ticking = _due_schedules(app, queue, next_ticks, now_ms + window_ms)
    return Standing(queue, waiting, running, due + ticking, delayed - due, bool(paused), counted)


def _due_schedules(app: Penstock, queue: str, ticks: dict[bytes, float], until_ms: int) -> int:
    """Count the schedules of this program whose time has come; those of others fire elsewhere."""
    due = 0
    declared: Sequence[Schedule] = getattr(getattr(app, "schedules", None), "declared", ())
    for schedule in declared:
        tick = ticks.get(schedule.name.encode())
        if schedule.queue == queue and tick is not None and tick < NO_TIME:
            due += tick + schedule.delay_ms(int(tick)) <= until_ms
    return due


async def stored_in(client: Client, keys: QueueKeyring) -> list[Stored]:
    """Read all jobs that wait: lane by lane from the front, then those not yet due."""
    ring, parked, side = await _asked(
        client,
        ("LRANGE", keys.ring, 0, -1),
        ("ZRANGE", keys.parked, 0, -1),
        ("HGET", keys.state, "side"),
    )
    fair = dict.fromkeys(lane.decode() for lane in (*ring, *parked))
    found: list[Stored] = []
    for lane in (*PRIORITIES, "", *fair):
        (items,) = await _asked(client, ("LRANGE", keys.list_of(lane), 0, -1))
        stored = [Stored(data, lane, None, place) for place, data in enumerate(items)]
        found += reversed(stored) if side == b"left" else stored
    (delayed,) = await _asked(client, ("ZRANGE", keys.delayed, 0, -1, "WITHSCORES"))
    for job_id, due in zip(delayed[::2], delayed[1::2], strict=True):
        (body,) = await _asked(client, ("HGET", keys.delayed_bodies, job_id))
        if body is not None:
            head, _, data = body.partition(b"\n")
            found.append(Stored(data, head[1:].decode(), int(float(due)), job_id.decode()))
    return found


async def _asked(client: Client, *commands: tuple[Any, ...]) -> list[Any]:
    return [await client.call(*command) for command in commands]
