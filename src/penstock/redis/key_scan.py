"""Walks all keys of a node that are named like Penstock's, with their types and TTLs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, cast

from penstock.errors import CommandRefused
from penstock.redis.client import Client
from penstock.redis.keys.reading import KeyRead, read_key
from penstock.redis.node import Node, Role

__all__ = ["ScannedKey", "is_guess", "registered_queues", "scan_keys"]

_SCAN_COUNT: Final = 1_000
_GUESSED: Final = frozenset({"queue.waiting", "queue.priority", "queue.lane"})


class ScannedKey(NamedTuple):
    """One key as it was found."""

    key: bytes
    read: KeyRead
    kind: bytes
    """As TYPE says; `none` if it is gone again."""
    ttl_ms: int


async def scan_keys(client: Client, node: Node) -> AsyncIterator[tuple[int, list[ScannedKey]]]:
    """Pages of keys, each with the number of keys that were looked at. Two round trips per page.

    A key may come twice. What this user may not see is left out.
    """
    cursor = b"0"
    wire = await node.wire(Role.DEFAULT)
    while True:
        cursor, keys = cast(
            "tuple[bytes, list[bytes]]", await wire.call("SCAN", cursor, "COUNT", _SCAN_COUNT)
        )
        ours = [(key, read) for key in keys if (read := read_key(key, client.keys.namespace))]
        replies = await wire.call_many(
            [command for key, _ in ours for command in (("TYPE", key), ("PTTL", key))]
        )
        yield (
            len(keys),
            [
                ScannedKey(key, read, kind, ttl_ms)
                for (key, read), kind, ttl_ms in zip(ours, replies[::2], replies[1::2], strict=True)
                if isinstance(kind, bytes) and isinstance(ttl_ms, int)
            ],
        )
        if cursor == b"0":
            return
        await asyncio.sleep(0)


def is_guess(read: KeyRead, queues: set[str]) -> bool:
    """Whether a key may be another program's: users name queues, so any plain key looks like one.

    `queues` are those that are registered.
    """
    return read.family.name in _GUESSED and read.arguments["queue"] not in queues


async def registered_queues(client: Client) -> set[str]:
    """Names of the queues there are; none if that key itself holds something else."""
    try:
        names = await client.call("SMEMBERS", client.keys.queues().registry)
    except CommandRefused:
        return set()
    return {name.decode(errors="replace") for name in cast("list[bytes]", names)}
