"""Compressed jobs that a full queue has dropped or moved aside: scripts cannot read them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.errors import ServerError
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.scripts import QueueScripts
from penstock.queues.storage.stored_job import read_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Argument
from penstock.throttled_log import RateLimitedLog

__all__ = ["note_losses"]

quiet = RateLimitedLog(logging.getLogger(__name__))


async def note_losses(
    client: Client, codec: Codec, keys: QueueKeyring, packed: Sequence[bytes]
) -> None:
    """Close the records of such jobs, and free their unique keys.

    A failure is logged: the caller's own jobs are stored.
    """
    arguments: list[Argument] = []
    for item in (read_item(data, codec) for data in packed):
        if item.id and (item.meta.tracked or item.meta.unique):
            unique = item.meta.unique
            arguments += (keys.record_name(item.id), keys.unique(unique) if unique else "")
    if not arguments:
        return
    try:
        await QueueScripts.of(client).note_losses(keys=keys, jobs=arguments)
    except ServerError as error:
        quiet.warning(
            f"losses {keys.queue}",
            "queue %s: the records of dropped jobs could not be closed: %s",
            keys.queue,
            error,
        )
