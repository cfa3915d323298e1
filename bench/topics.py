"""Suite `topics`: how fast messages go in and out, beside the peers and beside loops by hand.

Everybody has the same embedded server, the same 200-byte message and an empty handler, in a process
of their own, and acknowledges after the work. Ratios are taken within a round, in which all have a
turn; the median of the rounds counts. What could not be measured is a figure that is missed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial

from arena import Arena, open_arena
from figures import Figure
from results import DRAINS, SENDS, Results, Turn, program
from rivals import BULLMQ, DRAMATIQ, FASTSTREAM, FASTSTREAM_BATCH, TASKIQ, Peer

SUITE = "topics"
PARTITIONS = 4
A_SECOND = 200
ROUND_TRIP_MS = 2
PYTHON_PEERS = (DRAMATIQ, TASKIQ, FASTSTREAM)
PEERS = (*PYTHON_PEERS, FASTSTREAM_BATCH, BULLMQ)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    messages: int
    """For what is fast: Penstock and the loops by hand."""
    peer_s: float
    """About how long a peer is busy with its messages, one way."""
    paced_s: int
    memory_steps: int
    memory_step: int


QUICK = Sizes(2, 120_000, peer_s=0.5, paced_s=3, memory_steps=3, memory_step=60_000)
FULL = Sizes(5, 400_000, peer_s=3, paced_s=10, memory_steps=10, memory_step=500_000)


RAW, MESSAGE, BATCH, KEY = "by hand", "message handler", "batch handler", "ordering by key"
AT_ONCE, ALONE = "100 tasks", "one task"
ONE, SIXTEEN, FAR, LINE = "1 partition", "16 partitions", "2 ms away", "0 ms away"
P50, P99 = (f"on the way at {A_SECOND}/s, {centile}" for centile in ("p50", "p99"))
BY_HAND = " by hand"
VS_CLIENT, VS_STOCK = "one task sends / XADD by the client", "one task sends / XADD by redis-py"
MEMORY = "consumer's memory, at the end / after the first of its steps"


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    sizes, results = QUICK if quick else FULL, Results(SUITE)
    turns = _turns(sizes)
    # Others who compute meanwhile spoil the rest: the reader shall see it.
    yield Figure(SUITE, "load of the machine beforehand", os.getloadavg()[0], "", 0, ">=")
    async with open_arena() as arena:
        await results.play_rounds(arena, turns, sizes.rounds)
        for name, turn in _turns_taken_once(sizes).items():
            await results.play(arena, name, turn)
    for figure in (*_held_against_bars(results), *results.rates()):
        yield figure


def _held_against_bars(results: Results) -> Iterator[Figure]:
    python = [peer.name + DRAINS for peer in PYTHON_PEERS]
    senders = [peer.name + SENDS for peer in PYTHON_PEERS]
    message, batch, raw = MESSAGE + DRAINS, BATCH + DRAINS, RAW + DRAINS
    ratio, value = results.ratio, results.value
    yield ratio("message handler / fastest Python peer", 30, message, *python)
    yield ratio("message handler / BullMQ on Node", 10, message, BULLMQ.name + DRAINS)
    yield ratio("message handler / loop by hand", 0.6, message, raw)
    yield ratio("batch handler / FastStream's batches", 3, batch, FASTSTREAM_BATCH.name + DRAINS)
    yield ratio("batch handler / loop by hand", 0.8, batch, raw)
    yield ratio("ordering by key / loop by hand", 0.35, KEY + DRAINS, raw)
    yield ratio("message handler, 16 partitions / 1", 0.9, SIXTEEN + DRAINS, ONE + DRAINS)
    yield ratio("message handler, 2 ms away / near", 0.6, FAR + DRAINS, message)
    yield ratio("send_batch / pipelines by hand", 0.8, MESSAGE + SENDS, RAW + SENDS)
    yield ratio("100 tasks send / best Python peer", 5, AT_ONCE + SENDS, *senders)
    yield ratio("100 tasks send / best peer", 5, AT_ONCE + SENDS, *senders, BULLMQ.name + SENDS)
    yield value(VS_CLIENT, "x", 0.9, ">=")
    yield value(VS_STOCK, "x", 1, ">=")
    yield value(P50, "ms", 0.5, "<=")
    yield value(P99, "ms", 3, "<=")
    # What the machine allows at this moment; no bar of ours.
    yield value(P50 + BY_HAND, "ms", 0, ">=")
    yield value(P99 + BY_HAND, "ms", 0, ">=")
    yield value(MEMORY, "x", 1.1, "<=")


def _turns(sizes: Sizes) -> dict[str, Turn]:
    ours = partial(_ours, count=sizes.messages)
    return {
        **{peer.name: partial(_peer, peer, sizes) for peer in PEERS},
        RAW: partial(_by_hand, sizes),
        MESSAGE: partial(ours, MESSAGE, "message"),
        BATCH: partial(ours, BATCH, "batch"),
        KEY: partial(ours, KEY, "key", send="send-batch-with-keys"),
        ONE: partial(ours, ONE, "message", partitions=1),
        SIXTEEN: partial(ours, SIXTEEN, "message", partitions=16),
        FAR: partial(ours, FAR, "message", round_trip_ms=ROUND_TRIP_MS),
        AT_ONCE: partial(_at_once, sizes),
        ALONE: partial(_alone, sizes),
        "paced": partial(_paced, sizes),
    }


def _turns_taken_once(sizes: Sizes) -> dict[str, Turn]:
    return {
        # What the slow line itself costs: it is a third process on perhaps two cores.
        LINE: partial(_ours, LINE, "message", count=sizes.messages, round_trip_ms=0),
        "memory": partial(_memory, sizes),
    }


async def _peer(peer: Peer, sizes: Sizes, arena: Arena) -> dict[str, float]:
    sent = await peer.sends(arena, round(peer.about_a_second * sizes.peer_s))
    await arena.rest()
    drained = {peer.name + DRAINS: await peer.drains(arena)}
    return drained if sent is None else {**drained, peer.name + SENDS: sent}


async def _by_hand(sizes: Sizes, arena: Arena) -> dict[str, float]:
    sent = await arena.run(program("loops", "produce", PARTITIONS, sizes.messages))
    await arena.rest()
    drained = await arena.drain(program("loops", "consume", PARTITIONS))
    return {RAW + SENDS: sent["rate"], RAW + DRAINS: drained}


async def _ours(
    name: str,
    handler: str,
    arena: Arena,
    *,
    count: int,
    send: str = "send-batch",
    partitions: int = PARTITIONS,
    round_trip_ms: int | None = None,
) -> dict[str, float]:
    sent = await arena.run(program("ours", send, partitions, count))
    await arena.rest()
    consumer = program("ours", "consume", handler, partitions)
    if round_trip_ms is None:
        drained = await arena.drain(consumer)
    else:
        with arena.started(program("slow_line", round_trip_ms)) as line:
            url = (await line.tells())["url"]
            drained = await arena.drain(consumer, BENCH_URL=url)
    return {name + SENDS: sent["rate"], name + DRAINS: drained}


async def _at_once(sizes: Sizes, arena: Arena) -> dict[str, float]:
    sent = await arena.run(program("ours", "send-at-once", PARTITIONS, sizes.messages // 2))
    return {AT_ONCE + SENDS: sent["rate"]}


async def _alone(sizes: Sizes, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("ours", "send-alone", sizes.messages // 20))
    return {VS_CLIENT: told["client"], VS_STOCK: told["redis-py"], ALONE + SENDS: told["rate"]}


async def _paced(sizes: Sizes, arena: Arena) -> dict[str, float]:
    size = A_SECOND, A_SECOND * sizes.paced_s
    told: dict[str, dict[str, float]] = {}
    for who in ("ours", "loops"):
        with arena.started(program(who, "take-paced", *size)) as consumer:
            await arena.run(program(who, "send-paced", *size))
            told[who] = await consumer.tells()
    ours, loops = told["ours"], told["loops"]
    return {
        P50: ours["p50"],
        P99: ours["p99"],
        P50 + BY_HAND: loops["p50"],
        P99 + BY_HAND: loops["p99"],
    }


async def _memory(sizes: Sizes, arena: Arena) -> dict[str, float]:
    """Let one consumer take many messages; what has been settled is trimmed behind it."""
    resident_mb: list[float] = []
    with arena.started(program("ours", "consume", "message", PARTITIONS)) as consumer:
        for _ in range(sizes.memory_steps):
            await arena.run(program("ours", "send-batch", PARTITIONS, sizes.memory_step))
            _ = [left async for left in arena.watch(consumer, await arena.groups())]
            resident_mb.append(consumer.resident_mb)
            await arena.trim()
    return {MEMORY: resident_mb[-1] / resident_mb[0]}
