"""Throwing away jobs that wait, or are not yet due."""

from __future__ import annotations

import re
from typing import Final

from penstock.delivery.looking import exact
from penstock.queues.items import Item, read_item
from penstock.queues.job_pages import read_jobs
from penstock.queues.lane_pages import LanePages
from penstock.queues.requeue import job_names, unique_of
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring
from penstock.redis.wire import Argument

__all__ = ["delayed_body", "purge_delayed", "purge_lane"]

_PAGE: Final = 100
_split = re.compile(rb"[fb]([^\n]*)\n(.*)", re.DOTALL).fullmatch


async def purge_lane(client: Client, codec: Codec, keys: QueueKeyring, lane: str) -> int:
    """Throw away what waits in a lane now; how many. Two round trips per page of 200 or fewer.

    A job that a worker claims meanwhile is the worker's.
    """
    pages = LanePages(client, codec, keys, lane)
    left, removed = await pages.count(), 0
    keep_ms = round(client.settings.queues.keep_s * 1000)
    while left > 0:
        page = await pages.page(0, left)
        if not page:
            break
        left -= len(page)
        told: list[Argument] = []
        for place, item in enumerate(page):
            told += (item.data, place, job_names(keys, item)[0], unique_of(keys, item))
        removed += await client.scripts.purge_jobs(keys=keys, lane=lane, keep_ms=keep_ms, jobs=told)
    return removed


async def purge_delayed(
    client: Client, codec: Codec, keys: QueueKeyring, lane: str | None = None
) -> int:
    """Throw away what is not yet due, in one lane or all; how many. Three round trips per 100."""
    left, removed, kept = await client.call("ZCARD", keys.delayed), 0, 0
    keep_ms = round(client.settings.queues.keep_s * 1000)
    while left > 0:
        ids = await client.call("ZRANGE", keys.delayed, kept, kept + min(_PAGE, left) - 1)
        if not ids:
            break
        left -= len(ids)
        chosen = {} if lane else dict.fromkeys(ids, "")  # those without a body are of no fair lane
        async for name, body in read_jobs(client, keys.delayed_bodies, ids):
            of_lane, item = delayed_body(body, codec)
            if lane is None or lane == of_lane:
                chosen[name] = unique_of(keys, item)
            else:
                chosen.pop(name, None)
        told: list[Argument] = [part for one in chosen.items() for part in one]
        kept += len(ids) - len(told) // 2
        if told:
            removed += await client.scripts.purge_delayed(keys=keys, keep_ms=keep_ms, jobs=told)
    return removed


def delayed_body(body: bytes | None, codec: Codec) -> tuple[str, Item]:
    """Lane and job of one that is not yet due; the body may be missing or anything."""
    found = _split(body or b"")
    if found is None:
        return "", read_item(body or b"", codec)
    return exact(found[1]), read_item(found[2], codec)
