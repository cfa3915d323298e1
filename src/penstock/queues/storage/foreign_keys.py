"""Keys under a queue's names that hold something else: another program's, or spoilt ones.

A worker cannot use such a key and never removes it. It is reported with its name and type; a person
renames or deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.delivery.foreign_keys import ForeignKey, delete_key, foreign_among, rename_key
from penstock.delivery.queries import ask_typed, exact
from penstock.errors import InvalidName, QueueError
from penstock.queues.storage.job_record import STATES
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.lanes import FIXED
from penstock.redis.client import Client
from penstock.redis.keys.family import RedisType
from penstock.redis.wire import Command

__all__ = [
    "claims_of",
    "delete_foreign",
    "find_foreign",
    "fixed_types",
    "other_types",
    "rename_foreign",
    "type_commands",
]

_SHOWN: Final = 1_000
"""Lanes and workers that are checked."""


async def find_foreign(client: Client, keys: QueueKeyring) -> list[ForeignKey]:
    """Find keys of another type under a queue's names: fair lanes and claims, too. Two round trips.

    Of lanes and of workers 1,000 at most.
    """
    ring, parked, live, dead = await ask_typed(
        client,
        [
            ("LRANGE", keys.ring, 0, _SHOWN - 1),
            *(("ZRANGE", key, 0, _SHOWN - 1) for key in (keys.parked, keys.workers)),
            ("ZRANGE", keys.dead_workers, 0, _SHOWN - 1),
        ],
    )
    lanes, workers = map(exact, (*ring, *parked)), (*live, *dead)
    expected = {**fixed_types(keys), **other_types(keys, lanes, workers)}
    return foreign_among(expected, await ask_typed(client, type_commands(expected)))


def fixed_types(keys: QueueKeyring) -> dict[str, RedisType]:
    """What the keys hold that every queue has."""
    lists = (*map(keys.list_of, FIXED), keys.dead_letters, keys.overflow, keys.ring, keys.wakeup)
    hashes = (keys.state, keys.counters, keys.weights, keys.delayed_bodies, keys.suspects)
    sorted_sets = (
        *(keys.workers, keys.dead_workers, keys.parked, keys.delayed, keys.aside, keys.schedule),
        keys.busy,
    )
    return {
        **dict.fromkeys(lists, RedisType.LIST),
        **dict.fromkeys(hashes, RedisType.HASH),
        **dict.fromkeys((*sorted_sets, *map(keys.jobs, STATES)), RedisType.ZSET),
        **dict.fromkeys((keys.cancelled, keys.lanes), RedisType.SET),
        keys.audit: RedisType.STREAM,
    }


def other_types(
    keys: QueueKeyring, lanes: Iterable[str], workers: Iterable[bytes]
) -> dict[str, RedisType]:
    """What the lists of fair lanes and the claims of workers hold."""
    return {
        **dict.fromkeys(map(keys.list_of, lanes), RedisType.LIST),
        **dict.fromkeys((claims_of(keys, worker) for worker in workers), RedisType.HASH),
    }


def claims_of(keys: QueueKeyring, worker: bytes) -> str:
    """Key of a worker's claims, also of one that is not ours."""
    try:
        return keys.claimed(worker.decode())
    except (InvalidName, UnicodeDecodeError):
        return keys.claims + exact(worker)


def type_commands(expected: Iterable[str]) -> list[Command]:
    return [("TYPE", key) for key in expected]


async def rename_foreign(client: Client, keys: QueueKeyring, key: str, to: str) -> None:
    """Rename a key of another type; QueueError if it is the queue's own, or if `to` exists."""
    await rename_key(client, await _found(client, keys, key), to, QueueError)


async def delete_foreign(client: Client, keys: QueueKeyring, key: str) -> None:
    """Delete a key of another type; QueueError if it is the queue's own."""
    await delete_key(client, await _found(client, keys, key), QueueError)


async def _found(client: Client, keys: QueueKeyring, key: str) -> ForeignKey:
    for one in await find_foreign(client, keys):
        if one.key == key:
            return one
    raise QueueError(f"{key!r} is no key of another type under the names of {keys.queue!r}")
