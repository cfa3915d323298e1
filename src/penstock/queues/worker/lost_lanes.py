"""Fair lanes that have jobs but no turns: another program pushed to their lists, or took the ring.

A lane is put into the ring when it gets its first job. If its list held something before, or the
ring is gone, its jobs would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Final

from penstock.errors import CommandRefused
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.lanes import FIXED, fair_lanes
from penstock.redis.client import Client
from penstock.redis.keys.hash_slot import key_slot

__all__ = ["relist_known_lanes", "relist_lanes"]

logger = logging.getLogger(__name__)

_PAGE: Final = 1_000
_AT_ONCE: Final = 32
_NO_LANES: Final = {b"queue", *(lane.encode() for lane in FIXED)}
_ALL: Final = b""
"""Stands in the index of lanes if it names every lane that has jobs."""


async def relist_known_lanes(client: Client, keys: QueueKeyring) -> int:
    """Give lanes their turns again whose jobs Penstock has queued; how many there were.

    O(lanes that have jobs), a round trip per 1,000. The first time for a queue it walks over all
    keys of the server: the index of lanes may be younger than the lanes.
    """
    try:
        if await client.call("SISMEMBER", keys.lanes, _ALL):
            return await _relist(client, keys, _indexed(client, keys), are_indexed=True)
    except CommandRefused:  # the index is a key of another program
        return await relist_lanes(client, keys)
    found = await relist_lanes(client, keys)
    await client.call("SADD", keys.lanes, _ALL)
    return found


async def relist_lanes(client: Client, keys: QueueKeyring) -> int:
    """Give all such lanes their turns again; how many there were. O(keys of the server)."""
    return await _relist(client, keys, _stored(client, keys), are_indexed=False)


async def _relist(
    client: Client, keys: QueueKeyring, lanes: AsyncIterator[list[bytes]], *, are_indexed: bool
) -> int:
    # The server would walk the whole ring for each lane.
    listed = {lane.encode(errors="surrogateescape") for lane in await fair_lanes(client, keys)}
    scripts, found = QueueAdminScripts.of(client), 0
    if listed:  # the state may be new as well, and has to say that there are lanes
        await scripts.relist_lane(keys=keys, lane=next(iter(listed)), is_listed=True)
    async for page in lanes:
        wanted = [lane for lane in page if not (are_indexed and lane in listed)]
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            found += sum(
                await asyncio.gather(
                    *(
                        scripts.relist_lane(keys=keys, lane=lane, is_listed=lane in listed)
                        for lane in some
                    )
                )
            )
    if found:
        logger.warning("queue %s: %d lanes with jobs had no turns; they do now", keys.queue, found)
    return found


async def _indexed(client: Client, keys: QueueKeyring) -> AsyncIterator[list[bytes]]:
    cursor = b"0"
    while True:
        cursor, lanes = await client.call("SSCAN", keys.lanes, cursor, "COUNT", _PAGE)
        yield [lane for lane in lanes if lane != _ALL]
        if cursor == b"0":
            return


async def _stored(client: Client, keys: QueueKeyring) -> AsyncIterator[list[bytes]]:
    slot = key_slot(keys.waiting) if client.keys.cluster else None
    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", keys.waiting) + ":*"
    first, cursor = len(keys.waiting.encode()) + 1, b"0"
    while True:
        wire = await client.wire(slot=slot)
        cursor, names = await wire.call(
            *("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE, "TYPE", "list")
        )
        lanes = (name[first:] for name in names)
        # The lists of other queues begin so, too; no lane is called `queue` or has a colon.
        yield [lane for lane in lanes if b":" not in lane and lane not in _NO_LANES]
        if cursor == b"0":
            return
