"""Scan of the keys of a node that are named like Penstock's, with their types and TTLs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, cast

from penstock.errors import CommandRefused, PermissionRefused
from penstock.inspector.key_contract import read_key
from penstock.queues.storage.keys import QueuesKeys
from penstock.redis.client import Client
from penstock.redis.keys.reading import KeyRead
from penstock.redis.keys.space import KeySpace
from penstock.redis.node import Node, Role

__all__ = ["ScannedKey", "is_guess", "registered_queues", "scan_keys"]

_SCAN_COUNT: Final = 1_000
_GUESSED: Final = frozenset({"queue.waiting", "queue.priority", "queue.lane"})


class ScannedKey(NamedTuple):
    """A key with its type and TTL."""

    key: bytes
    read: KeyRead
    kind: bytes
    """Result of TYPE; `none` if the key is gone."""
    ttl_ms: int


async def scan_keys(client: Client, node: Node) -> AsyncIterator[tuple[int, list[ScannedKey]]]:
    """Pages of keys, each with the number of scanned keys. Two round trips per page.

    A key may be returned twice. Keys that this user may not read are omitted.
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


async def registered_queues(client: Client, space: KeySpace | None = None) -> set[str]:
    """Names of registered queues; empty if the registry has the wrong type.

    Empty, too, if this user may not read those of another `space`.
    """
    registry = QueuesKeys.of(space or client.keys).registry
    try:
        names = await client.call("SMEMBERS", registry)
    except (CommandRefused, PermissionRefused):
        return set()
    return {name.decode(errors="replace") for name in cast("list[bytes]", names)}
