"""Jobs that a full queue has dropped or moved aside, and that no script can read."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.errors import ServerError
from penstock.queues.items import read_item
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring
from penstock.redis.wire import Argument

__all__ = ["note_losses"]

quiet = RateLimitedLog(logging.getLogger(__name__))


async def note_losses(
    client: Client, codec: Codec, keys: QueueKeyring, packed: Sequence[bytes]
) -> None:
    """Close the records of compressed jobs that had to go, and free their unique keys.

    A failure is logged: what the caller wanted to add is stored.
    """
    told: list[Argument] = []
    for item in (read_item(data, codec) for data in packed):
        if item.id and (item.meta.tracked or item.meta.unique):
            unique = item.meta.unique
            told += (keys.record_name(item.id), keys.unique(unique) if unique else "")
    if not told:
        return
    try:
        await client.scripts.note_losses(keys=keys, jobs=told)
    except ServerError as error:
        quiet.warning(
            f"losses {keys.queue}",
            "queue %s: dropped jobs whose records still say they wait: %s",
            keys.queue,
            error,
        )
