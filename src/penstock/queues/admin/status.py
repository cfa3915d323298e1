"""Status of queues: lengths, lanes, workers, counters, at a cost independent of their length."""

from __future__ import annotations

from typing import Final

from penstock.delivery.foreign_keys import ForeignKey, foreign_among
from penstock.delivery.queries import as_dict, ask, ask_typed, exact, is_wrong_type, now_ms, text
from penstock.errors import InvalidName
from penstock.queues.admin.views import LaneView, QueueFacts, QueueLine, QueueWorkerView
from penstock.queues.storage.foreign_keys import (
    claims_of,
    fixed_types,
    other_types,
    type_commands,
)
from penstock.queues.storage.keys import QueueKeyring, QueueKeys, QueuesKeys
from penstock.queues.storage.lanes import FIXED, paused_lanes, shown_lane
from penstock.queues.storage.stored_job import id_ms, read_item
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Command, Reply

__all__ = ["is_queue", "list_queues", "queue_workers", "read_facts"]

LANES_SHOWN: Final = 200
WORKERS_SHOWN: Final = 1_000
AT_LIMIT, PAUSED = 9_000_000_000_000_000, 9_000_000_000_000_001
"""As `lua/parts/lanes.lua` has them."""


async def list_queues(client: Client) -> list[QueueLine]:
    """Every registered queue by name. Two round trips, O(queues)."""
    members = await client.call("SMEMBERS", QueuesKeys.of(client.keys).registry)
    names = sorted(name for name in map(text, members) if is_queue(client, name))
    rings = [QueueKeyring.of(client.keys, name) for name in names]
    commands: list[Command] = []
    for keys in rings:
        commands += [("LLEN", keys.list_of(lane)) for lane in FIXED]
        commands += [("LLEN", keys.ring), ("ZCARD", keys.parked), ("ZCARD", keys.delayed)]
        commands += [("LLEN", keys.dead_letters), ("LLEN", keys.overflow)]
        commands += [("ZCARD", keys.workers), ("HEXISTS", keys.state, "paused")]
    replies = await ask(client, commands, typed=True)
    width = len(FIXED) + 7
    lines: list[QueueLine] = []
    for place, keys in enumerate(rings):
        lengths = replies[place * width : (place + 1) * width]
        foreign = any(map(is_wrong_type, lengths))
        lengths = [0 if is_wrong_type(length) else length for length in lengths]
        ring, parked, delayed, dead, overflow, workers, paused = lengths[len(FIXED) :]
        lines.append(
            QueueLine(
                name=keys.queue,
                waiting=sum(lengths[: len(FIXED)]),
                fair_lanes=ring + parked,
                delayed=delayed,
                dead_letters=dead,
                overflow=overflow,
                workers=workers,
                paused=bool(paused),
                foreign=foreign,
            )
        )
    return lines


async def read_facts(client: Client, codec: Codec, queue: str) -> QueueFacts:
    """Status of a queue. Two round trips at any queue length."""
    keys = QueueKeyring.of(client.keys, queue)
    commands: list[Command] = [
        ("TIME",),
        ("HGETALL", keys.state),
        ("HGETALL", keys.counters),
        ("ZCARD", keys.delayed),
        ("ZRANGE", keys.delayed, 0, 0, "WITHSCORES"),
        ("LLEN", keys.dead_letters),
        ("LLEN", keys.overflow),
        ("LINDEX", keys.waiting, 0),
        ("LINDEX", keys.waiting, -1),
        ("SISMEMBER", QueuesKeys.of(client.keys).registry, queue),
        ("LRANGE", keys.ring, 0, LANES_SHOWN - 1),
        ("ZRANGE", keys.parked, 0, LANES_SHOWN - 1, "WITHSCORES"),
        ("LLEN", keys.ring),
        ("ZCARD", keys.parked),
        *_worker_commands(keys),
        *(("LLEN", keys.list_of(lane)) for lane in FIXED),
    ]
    expected = fixed_types(keys)
    replies = await ask_typed(client, [*commands, *type_commands(expected)])
    foreign = foreign_among(expected, replies[len(commands) :])
    (time, stored, counters, delayed, due, dead, overflow, *rest) = replies[: len(commands)]
    (first, last, registered, ring, parked, ring_size, parked_size, live, gone, *lengths) = rest
    now, state = now_ms(time), as_dict(stored)
    scores = dict(zip(map(exact, parked[::2]), map(_whole, parked[1::2]), strict=True))
    fair = list(dict.fromkeys((*map(exact, ring), *scores)))
    lanes = [
        LaneView(name=lane, waiting=length, paused=lane in paused_lanes(state))
        for lane, length in zip(FIXED, lengths, strict=True)
    ]
    fair_views, workers, others = await _read_named(client, keys, fair, scores, live, gone, now)
    lanes += fair_views
    lanes_used = any(lane.waiting for lane in lanes)
    side = text(state.get("side", b"right"))
    head = last if side == "left" else first
    return QueueFacts(
        name=queue,
        at_ms=now,
        known=any(
            (registered, state, counters, delayed, dead, overflow, lanes_used, workers, foreign)
        ),
        side=side,
        waiting=sum(lane.waiting for lane in lanes),
        lanes=lanes,
        more_lanes=ring_size > LANES_SHOWN or parked_size > LANES_SHOWN,
        fair_lanes=ring_size + parked_size,
        max_lanes=client.settings.queues.max_lanes,
        delayed=delayed,
        next_due_ms=_whole(due[1]) - now if due else None,
        claimed=sum(worker.claims for worker in workers),
        workers=workers,
        dead_letters=dead,
        overflow=overflow,
        paused="paused" in state,
        limit=_whole(state.get("limit")),
        lane_limit=_whole(state.get("lane_limit")),
        levels=text(state.get("levels", b"strict")),
        bytes=_whole(state["bytes"]) if "bytes" in state else None,
        oldest_ms=_age(head, codec, now),
        counters={name: _whole(count) for name, count in as_dict(counters).items()},
        foreign=foreign + others,
    )


async def queue_workers(client: Client, queue: str) -> list[QueueWorkerView]:
    """Workers of a queue, the dead ones last. Two round trips."""
    keys = QueueKeyring.of(client.keys, queue)
    time, live, gone = await ask_typed(client, [("TIME",), *_worker_commands(keys)])
    _, workers, _ = await _read_named(client, keys, [], {}, live, gone, now_ms(time))
    return workers


def _worker_commands(keys: QueueKeyring) -> list[Command]:
    return [
        ("ZRANGE", places, 0, WORKERS_SHOWN - 1, "WITHSCORES")
        for places in (keys.workers, keys.dead_workers)
    ]


async def _read_named(
    client: Client,
    keys: QueueKeyring,
    fair: list[str],
    scores: dict[str, int],
    live: Reply,
    gone: Reply,
    now: int,
) -> tuple[list[LaneView], list[QueueWorkerView], list[ForeignKey]]:
    """Read what depends on the names of lanes and workers."""
    names = [*live[::2], *gone[::2]]
    commands: list[Command] = [("HLEN", claims_of(keys, name)) for name in names]
    for lane in fair:
        commands.append(("LLEN", keys.list_of(lane)))
        commands.append(("SCARD", keys.runnings + lane))
        commands.append(("HGET", keys.weights, lane))
    expected = other_types(keys, fair, names)
    replies = await ask_typed(client, [*commands, *type_commands(expected)])
    foreign = foreign_among(expected, replies[len(commands) :])
    claims, rest = replies[: len(names)], replies[len(names) : len(commands)]
    beats = [*live[1::2], *gone[1::2]]
    workers = [
        QueueWorkerView(
            name=text(name),
            silent_ms=max(0, now - _whole(beat)),
            claims=held,
            alive=place < len(live) // 2,
        )
        for place, (name, beat, held) in enumerate(zip(names, beats, claims, strict=True))
    ]
    lanes = [
        _fair_lane(lane, scores.get(lane, 0), now, *rest[3 * place : 3 * place + 3])
        for place, lane in enumerate(fair)
    ]
    return lanes, workers, foreign


def _fair_lane(
    lane: str, score: int, now: int, waiting: int, running: int, weight: bytes | None
) -> LaneView:
    return LaneView(
        name=shown_lane(lane),
        waiting=waiting,
        weight=_whole(weight) or 1,
        running=running,
        paused=score == PAUSED,
        parked_ms=max(0, score - now) if score < AT_LIMIT else 0,
        at_limit=score == AT_LIMIT,
    )


def _age(head: bytes | None, codec: Codec, now: int) -> int | None:
    made = id_ms(read_item(head, codec).id) if head else None
    return None if made is None else max(0, now - made)


def _whole(stored: bytes | None) -> int:
    """Decode a number; anything else counts as 0, so that one bad field hides no others."""
    try:
        return int(float(stored)) if stored else 0
    except (ValueError, OverflowError):
        return 0


def is_queue(client: Client, name: str) -> bool:
    """Whether a registered name is a valid queue name; other programs may register any."""
    try:
        QueueKeys.of(client.keys, name)
    except InvalidName:
        return False
    return True
