"""Deleting waiting and delayed jobs, and whole queues."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from penstock.delivery.queries import ask, exact, is_wrong_type
from penstock.errors import CommandRefused, QueueError
from penstock.queues.admin.status import queue_workers
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.foreign_keys import claims_of
from penstock.queues.storage.job_record import STATES
from penstock.queues.storage.keys import QueueKeyring, QueuesKeys
from penstock.queues.storage.lanes import FIXED, fair_lanes
from penstock.queues.storage.pages import LanePages, read_jobs
from penstock.queues.storage.stored_job import Item, job_names, read_item, unique_of
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Argument, Command

__all__ = ["delayed_body", "delete_queue", "purge_delayed", "purge_lane", "purge_lanes"]

_PAGE: Final = 100
_LANES_AT_ONCE: Final = 16
_RECORDS_PAGE: Final = 500
_split = re.compile(rb"[fb]([^\n]*)\n(.*)", re.DOTALL).fullmatch


async def purge_lane(client: Client, codec: Codec, keys: QueueKeyring, lane: str) -> int:
    """Delete the jobs waiting in a lane; returns how many. Two round trips per page of up to 200.

    A job that a worker claims meanwhile stays with the worker.
    """
    pages = LanePages(client, codec, keys, lane)
    left, removed = await pages.count(), 0
    keep_ms = round(client.settings.queues.keep_s * 1000)
    while left > 0:
        page = await pages.page(0, left)
        if not page:
            break
        left -= len(page)
        arguments: list[Argument] = []
        for place, item in enumerate(page):
            arguments += (item.data, place, job_names(keys, item)[0], unique_of(keys, item))
        removed += await QueueAdminScripts.of(client).purge_jobs(
            keys=keys, lane=lane, keep_ms=keep_ms, jobs=arguments
        )
    return removed


async def purge_lanes(
    client: Client, codec: Codec, keys: QueueKeyring, lanes: Sequence[str], counts: list[int]
) -> CommandRefused | None:
    """Delete the jobs waiting in lanes, a few lanes at once; appends to `counts` how many.

    Lanes that are keys of another type are passed over; returns the error of one of them.
    """
    passed_over: CommandRefused | None = None
    for start in range(0, len(lanes), _LANES_AT_ONCE):
        some = lanes[start : start + _LANES_AT_ONCE]
        ends = await asyncio.gather(
            *(purge_lane(client, codec, keys, lane) for lane in some), return_exceptions=True
        )
        counts += [end for end in ends if isinstance(end, int)]
        for end in ends:
            if isinstance(end, CommandRefused) and is_wrong_type(end):
                passed_over = end
            elif isinstance(end, BaseException):
                raise end
    return passed_over


async def purge_delayed(
    client: Client, codec: Codec, keys: QueueKeyring, lane: str | None = None
) -> int:
    """Delete delayed jobs of one lane or all; returns how many. Three round trips per 100."""
    left, removed, kept = await client.call("ZCARD", keys.delayed), 0, 0
    keep_ms = round(client.settings.queues.keep_s * 1000)
    while left > 0:
        ids = await client.call("ZRANGE", keys.delayed, kept, kept + min(_PAGE, left) - 1)
        if not ids:
            break
        left -= len(ids)
        chosen = {} if lane else dict.fromkeys(ids, "")  # without a body: no fair lane
        async for name, body in read_jobs(client, keys.delayed_bodies, ids):
            of_lane, item = delayed_body(body, codec)
            if lane is None or lane == of_lane:
                chosen[name] = unique_of(keys, item)
            else:
                chosen.pop(name, None)
        arguments: list[Argument] = [part for one in chosen.items() for part in one]
        kept += len(ids) - len(arguments) // 2
        if arguments:
            removed += await QueueAdminScripts.of(client).purge_delayed(
                keys=keys, keep_ms=keep_ms, jobs=arguments
            )
    return removed


async def delete_queue(client: Client, codec: Codec, queue: str) -> bool:
    """See `QueueAdmin.delete`."""
    keys = QueueKeyring.of(client.keys, queue)
    workers = await queue_workers(client, queue)
    if any(worker.alive for worker in workers):
        raise QueueError(f"queue {queue!r} has workers; stop them before you delete it")
    if any(worker.claims for worker in workers):
        raise QueueError(
            f"queue {queue!r} has jobs of a dead worker; let another worker return them first"
        )
    lanes = await fair_lanes(client, keys)
    if passed_over := await purge_lanes(client, codec, keys, (*FIXED, *lanes), []):
        raise passed_over
    await purge_delayed(client, codec, keys)
    for state in STATES:
        await _drop_records(client, keys, state)
    gone = [
        *(keys.waiting, keys.dead_letters, keys.overflow, keys.ring, keys.parked, keys.weights),
        *(keys.delayed, keys.delayed_bodies, keys.schedule, keys.workers, keys.dead_workers),
        *(keys.suspects, keys.counters, keys.state, keys.audit, keys.cancelled),
        *(keys.wakeup, keys.lanes, keys.busy, keys.aside),
        *(keys.runnings + lane for lane in lanes),
        *(claims_of(keys, worker.name.encode()) for worker in workers),
    ]
    registered = ("SREM", QueuesKeys.of(client.keys).registry, queue)
    *removed, known = await ask(client, [*(("UNLINK", key) for key in gone), registered])
    return bool(known or any(removed))


async def _drop_records(client: Client, keys: QueueKeyring, state: str) -> None:
    index = keys.jobs(state)
    while True:
        names = await client.call("ZRANGE", index, 0, _RECORDS_PAGE - 1)
        if not names:
            return
        commands: list[Command] = [("UNLINK", keys.records + exact(name)) for name in names]
        # Only afterwards: a call that ends half-way finds them again.
        await ask(client, commands)
        await client.call("ZREM", index, *names)


def delayed_body(body: bytes | None, codec: Codec) -> tuple[str, Item]:
    """Lane and job of a delayed job's body, which may be missing or anything."""
    parts = _split(body or b"")
    if parts is None:
        return "", read_item(body or b"", codec)
    return exact(parts[1]), read_item(parts[2], codec)
