"""Windows with open batches, beside the queue in use that gets them."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.redis.client import Client
from penstock.redis.window_scripts import WindowPlace
from penstock.redis.wire import Argument

from . import queues
from .kit import Case, Engine

__all__ = ["WINDOWS"]

DAY_MS = 86_400_000
WINDOW = "w:k"


def place(client: Client, policy: str = "block", max_size: int = 0) -> WindowPlace:
    k, index = queues.ring(client), client.keys.window_index("q", "w")
    return WindowPlace(
        (
            *(index.due, index.events, index.state, k.waiting, k.state, k.counters, k.overflow),
            *(k.ring, k.parked),
        ),
        (
            *(_batches(client), "queue", "q", policy, max_size, 0, 100),
            *(k.records, k.indexes, k.uniques, '"camera_id"', '"detections"'),
            *(DAY_MS, DAY_MS, 100, 1000),
        ),
    )


def _batches(client: Client) -> str:
    return client.keys.batch("q", "x").camera_id.removesuffix("x:camera_id")


def fact(client: Client, name: str, batch: str = "b1") -> str:
    return f"{_batches(client)}{batch}:{name}"


def populate(client: Client, now: int) -> list[tuple[Argument, ...]]:
    index, window = client.keys.window_index("q", "w"), client.keys.window("q", WINDOW)
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
    window = client.keys.window("q", WINDOW)
    return client.scripts.add_to_window(
        keys=place(client, **target),
        current=window.current,
        seen=window.seen,
        max_items=most,
        max_bytes=1000,
        remember_ms=1000,
        window=WINDOW,
        key=b"k",
        item=b'"ITEM-3"',
        item_id=b"i3",
        batch_id=b"b2",
        fast_id=fast,
    )


def close(client: Client, reason: str, **target: Any) -> Any:
    pointers = client.keys.window("q", "x").current.removesuffix("x:current")
    return client.scripts.close_windows(
        keys=place(client, **target),
        pointers=pointers,
        prefix="w:",
        most=10,
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
