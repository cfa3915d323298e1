"""Let time pass for a queue without waiting for it."""

from __future__ import annotations

import math
from typing import cast

import msgspec

from penstock.app import Penstock
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.stored_job import read_item, write_item
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.testing.queue_contents import NO_TIME, known_queues, stored_in

__all__ = ["ServerClock"]

_PAGE = 1000


class ServerClock:
    """Moves what waits for a time nearer, in all queues of an application's namespace.

        await remind.with_options(delay=3600).send(7)
        await clock.advance(app, 3600)
        await run_until_idle(app)              # the reminder runs

    The server's clock itself cannot be moved, so the deadlines are: of delayed jobs and retries, of
    parked lanes, of jobs that expire, of unique keys, and of workers that have fallen silent. What
    that means:

    - A schedule whose tick lies within the span is due now, and fires once, however many ticks the
      span has.
    - A worker that runs meanwhile counts as silent for that long, like one whose process was
      suspended: advance between runs, unless that is what you test.
    - Times in records and ids stay as they are. Topics and limits take no notice.
    - It reads and rewrites every waiting job, and nothing guards that against others. For tests.
    """

    async def advance(self, app: Penstock, seconds: float) -> None:
        """Move all deadlines `seconds` nearer."""
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"a clock cannot be moved by {seconds} s")
        shift_ms = round(seconds * 1000)
        for queue in await known_queues(app):
            await self._advance(app, QueueKeyring.of(app.redis.keys, queue), shift_ms)

    async def _advance(self, app: Penstock, keys: QueueKeyring, shift_ms: int) -> None:
        client = app.redis
        for key in (keys.delayed, keys.parked, keys.workers):
            for member, score in await _scores(client, key):
                await client.call("ZADD", key, "XX", score - shift_ms, member)
        seconds, micros = await client.call("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        for member, score in await _scores(client, keys.schedule):
            # Not further back than now: a tick that is late is a missed one.
            nearer = max(score - shift_ms, min(score, now_ms))
            await client.call("ZADD", keys.schedule, "XX", nearer, member)
        await _shorten(client, keys.unique("x")[:-1], shift_ms)
        await self._age(app, keys, shift_ms)

    async def _age(self, app: Penstock, keys: QueueKeyring, shift_ms: int) -> None:
        """Bring nearer what the jobs themselves carry: when they expire, since when they wait."""
        for stored in await stored_in(app.redis, keys):
            item = read_item(stored.data, app.codec)
            meta = item.meta
            if not (meta.expires_ms or meta.parked_ms):
                continue
            aged = msgspec.structs.replace(
                meta,
                expires_ms=meta.expires_ms and max(1, meta.expires_ms - shift_ms),
                parked_ms=meta.parked_ms and max(1, meta.parked_ms - shift_ms),
            )
            data = write_item(item, aged, app.codec)
            if isinstance(stored.place, int):
                await app.redis.call("LSET", keys.list_of(stored.lane), stored.place, data)
            else:
                body = await app.redis.call("HGET", keys.delayed_bodies, stored.place)
                head = body.partition(b"\n")[0]
                await app.redis.call("HSET", keys.delayed_bodies, stored.place, head + b"\n" + data)


async def _scores(client: Client, key: str) -> list[tuple[bytes, int]]:
    reply = await client.call("ZRANGE", key, 0, -1, "WITHSCORES")
    pairs = ((member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True))
    return [(member, int(score)) for member, score in pairs if score < NO_TIME]


async def _shorten(client: Client, beginning: str, shift_ms: int) -> None:
    """Let keys that begin so end earlier."""
    pattern = "".join(f"\\{sign}" if sign in "*?[]\\" else sign for sign in beginning) + "*"
    for node in await client.primaries():
        wire, cursor = await node.wire(Role.DEFAULT), b"0"
        while True:
            cursor, names = cast(
                "tuple[bytes, list[bytes]]",
                await wire.call("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE),
            )
            for name in names:
                left_ms = await client.call("PTTL", name)
                if left_ms > shift_ms:
                    await client.call("PEXPIRE", name, left_ms - shift_ms)
                elif left_ms > 0:
                    await client.call("DEL", name)
            if cursor == b"0":
                break
