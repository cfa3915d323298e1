"""Keys under a namespace as earlier versions spelled it: `hsi:…`, where it is `hsi::…` now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

from penstock.delivery.queries import ask, text
from penstock.errors import CoordinationError
from penstock.inspector.key_contract import read_key
from penstock.inspector.key_scan import registered_queues
from penstock.redis.client import Client
from penstock.redis.keys.reading import KeyRead
from penstock.redis.keys.space import KeySpace, former_prefix
from penstock.redis.node import Node, Role
from penstock.runtime.keys import WorkersKeys

__all__ = ["find_former", "rename_former"]

_PAGE = 1_000


async def find_former(client: Client, node: Node) -> AsyncIterator[tuple[int, list[str]]]:
    """Pages of such keys of a node, each with the number of scanned keys.

    A key counts if its name and type are those of a family. One that belongs to a queue of a
    system without a namespace does not: its queue `hsi` may have a lane of any name. Two round
    trips per page, none without a namespace.
    """
    former = former_prefix(client.keys.namespace).encode()
    if not former:
        return
    plain = await registered_queues(client, KeySpace(cluster=client.keys.cluster))
    wire = await node.wire(Role.DEFAULT)
    cursor = b"0"
    while True:
        cursor, keys = cast(
            "tuple[bytes, list[bytes]]", await wire.call("SCAN", cursor, "COUNT", _PAGE)
        )
        named = [
            (key, read)
            for key in keys
            if key.startswith(former)
            and (read := read_key(key.removeprefix(former)))
            and not _is_of(plain, read_key(key))
        ]
        kinds = await wire.call_many([("TYPE", key) for key, _ in named])
        found = [
            key.decode()
            for (key, read), kind in zip(named, kinds, strict=True)
            if kind == read.family.redis_type.encode()
        ]
        yield len(keys), found
        if cursor == b"0":
            return
        await asyncio.sleep(0)


async def rename_former(client: Client) -> int:
    """Give such keys the names of this version; how many were renamed. May be repeated.

    CoordinationError while a worker of the earlier version is alive, or if a new name is taken:
    then that key stays, and the others are renamed.
    """
    former, prefix = former_prefix(client.keys.namespace), client.keys.prefix
    await _refuse_live_workers(client, former)
    renamed, left = 0, list[str]()
    for node in await client.primaries():
        async for _, page in find_former(client, node):
            pairs = [(key, prefix + key.removeprefix(former)) for key in page]
            commands = [("RENAMENX", old, new) for old, new in pairs]
            replies = await ask(client, commands, absent=True)  # some have expired meanwhile
            renamed += replies.count(1)
            left += [new for (_, new), done in zip(pairs, replies, strict=True) if done == 0]
    if left:
        raise CoordinationError(
            f"{renamed} keys were renamed, {len(left)} were not, as their new names are taken "
            f"already: {', '.join(left[:3])}"
        )
    return renamed


async def _refuse_live_workers(client: Client, former: str) -> None:
    keys = WorkersKeys.of(client.keys)
    heartbeats = former + keys.heartbeats.removeprefix(keys.root)
    workers = [text(name) for name in await client.call("ZRANGE", heartbeats, 0, -1)]
    records = [former + keys.info(name).removeprefix(keys.root) for name in workers]
    alive = await ask(client, [("EXISTS", record) for record in records])
    if any(alive):
        named = ", ".join(name for name, lives in zip(workers, alive, strict=True) if lives)
        raise CoordinationError(f"stop the workers of the earlier version first: {named}")


def _is_of(queues: set[str], read: KeyRead | None) -> bool:
    return read is not None and read.arguments.get("queue") in queues
