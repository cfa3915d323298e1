"""Deleting a queue with everything that belongs to it."""

from __future__ import annotations

from penstock.delivery.looking import ask, exact
from penstock.errors import QueueError
from penstock.queues.facts import queue_workers
from penstock.queues.foreign_keys import claims_of
from penstock.queues.lanes import FIXED, fair_lanes
from penstock.queues.purging import purge_delayed, purge_lane
from penstock.queues.search import STATES
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring
from penstock.redis.wire import Command

__all__ = ["delete_queue"]

_PAGE = 500


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
    for lane in (*FIXED, *lanes):
        await purge_lane(client, codec, keys, lane)
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
    registered = ("SREM", client.keys.queues().registry, queue)
    *removed, known = await ask(client, [*(("UNLINK", key) for key in gone), registered])
    return bool(known or any(removed))


async def _drop_records(client: Client, keys: QueueKeyring, state: str) -> None:
    index = keys.jobs(state)
    while True:
        names = await client.call("ZRANGE", index, 0, _PAGE - 1)
        if not names:
            return
        commands: list[Command] = [("UNLINK", keys.records + exact(name)) for name in names]
        # Only afterwards: a call that ends half-way finds them again.
        await ask(client, commands)
        await client.call("ZREM", index, *names)
