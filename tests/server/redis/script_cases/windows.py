"""Windows with open batches, beside the queue in use that gets them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.kit.scripts import scripts_of

from penstock.coordination.windows.keys import BatchKeys, WindowIndexKeys, WindowKeys
from penstock.coordination.windows.scripts import BatchArguments
from penstock.redis.client import Client
from penstock.redis.prepared_call import SharedLink
from penstock.redis.wire import Argument

from . import queues
from .kit import Case, Engine

__all__ = ["WINDOWS"]

DAY_MS = 86_400_000
WINDOW = "w:k"


def place(client: Client, policy: str = "block", max_size: int = 0) -> BatchArguments:
    k, index = queues.ring(client), WindowIndexKeys.of(client.keys, "q", "w")
    return BatchArguments(
        (
            *(index.due, index.events, index.state, k.waiting, k.state, k.counters, k.overflow),
            *(k.ring, k.parked),
        ),
        (
            *(_batches(client), "queue", "q", policy, max_size, 0, 100),
            *(k.records, k.indexes, k.uniques, '"camera_id"', '"detections"'),
            *(DAY_MS, DAY_MS, 100, 1000, "camera_id", "detections"),
        ),
    )


def _batches(client: Client) -> str:
    return BatchKeys.prefix(client.keys, "q")


def fact(client: Client, name: str, batch: str = "b1") -> str:
    return f"{_batches(client)}{batch}:{name}"


def populate(client: Client, now: int) -> list[tuple[Argument, ...]]:
    index, window = (
        WindowIndexKeys.of(client.keys, "q", "w"),
        WindowKeys.of(client.keys, "q", WINDOW),
    )
    began = f"{now // 1000}.000001"
    return [
        *queues.populate(client, now),
        ("ZADD", index.due, 1, WINDOW),
        ("XADD", index.events, "1-0", "type", "open", "data", "{}", "ms", now),
        ("HSET", index.state, "seq", 1),
        ("SET", window.current, "b1"),
        ("ZADD", window.seen, now * 1000, "i1"),
        ("RPUSH", fact(client, "detections"), '"ITEM-1"', '"ITEM-2"'),
        ("MSET", fact(client, "camera_id"), "k", fact(client, "started_at"), began),
        ("MSET", fact(client, "last_activity"), began, fact(client, "bytes"), 20),
    ]


def add(client: Client, *, most: int = 9, fast: bytes = b"", **target: Any) -> Any:
    window = WindowKeys.of(client.keys, "q", WINDOW)
    call = scripts_of(client).add_to_window(
        link=SharedLink(client),
        keys=place(client, **target),
        current=window.current,
        seen=window.seen,
        max_items=most,
        max_bytes=1000,
        remember_ms=1000,
        window=WINDOW,
        key=b"k",
    )
    return call.send(b'"ITEM-3"', b"i3", b"b2", fast, b"9")


def close(client: Client, reason: str, **target: Any) -> Any:
    return scripts_of(client).close_windows(
        keys=place(client, **target),
        windows_prefix=WindowKeys.prefix(client.keys, "q"),
        name_prefix="w:",
        limit=10,
        reason=reason,
        windows=[WINDOW] if reason else [],
    )


# Facts about a batch are ours alone, by its random id: they are written with each item, go with the
# batch, and what a foreign one says is not believed.
FACTS = [
    partial(fact, name=name, batch=batch)
    for batch in ("b1", "b2")
    for name in ("camera_id", "started_at", "last_activity", "bytes")
]

WINDOWS = Engine(
    populate,
    {
        "add_to_window": [
            Case(add, FACTS),
            Case(partial(add, most=3), FACTS),
            Case(partial(add, most=2), FACTS),
            Case(partial(add, most=3, policy="dlq", max_size=3), FACTS),
            Case(partial(add, fast=b"f1"), FACTS),
        ],
        "close_windows": [
            Case(partial(close, reason=reason, policy=policy, max_size=size), FACTS)
            for reason in ("", "closed")
            for policy, size in (("block", 0), ("drop_oldest", 3), ("dlq", 3))
        ],
    },
)
