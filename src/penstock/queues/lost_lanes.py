"""Fair lanes that have jobs but no turns: another program pushed to their lists, or took the ring.

A lane is put into the ring when it gets its first job. If its list held something before, or the
ring is gone, its jobs would wait for ever.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from penstock.queues.lanes import FIXED
from penstock.redis.client import Client
from penstock.redis.keys import QueueKeyring, key_slot

__all__ = ["relist_lanes"]

logger = logging.getLogger(__name__)

_PAGE: Final = 1_000


async def relist_lanes(client: Client, keys: QueueKeyring) -> int:
    """Give such lanes their turns again; how many there were. O(keys of the server)."""
    slot = key_slot(keys.waiting) if client.keys.cluster else None
    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", keys.waiting) + ":*"
    first, cursor, found = len(keys.waiting.encode()) + 1, b"0", 0
    while True:
        wire = await client.wire(slot=slot)
        cursor, names = await wire.call(
            *("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE, "TYPE", "list")
        )
        for name in names:
            lane: bytes = name[first:]
            # The lists of other queues begin so, too; no lane is called `queue` or has a colon.
            if b":" not in lane and lane not in _NO_LANES:
                found += await client.scripts.relist_lane(keys=keys, lane=lane)
        if cursor == b"0":
            break
    if found:
        logger.warning("queue %s: %d lanes with jobs had no turns; they do now", keys.queue, found)
    return found


_NO_LANES: Final = {b"queue", *(lane.encode() for lane in FIXED)}
