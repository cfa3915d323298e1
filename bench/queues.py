"""Suite `queues`: how fast jobs go in and out, beside the peers and beside loops by hand.

Everybody has the same embedded server, the same 200-byte job and an empty task, in a process of
their own. Penstock claims, acknowledges after the work and would try again. Ratios are taken within
a round, in which all have a turn; the median of the rounds counts. What could not be measured is a
figure that is missed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from arena import Arena, Backlog, open_arena
from figures import Figure
from penstock.queues.storage.keys import QueueKeyring
from queue_rivals import BULLMQ_NODE, PYTHON_PEERS, QueuePeer
from results import DRAINS, SENDS, Results, Turn, program

SUITE = "queues"
A_SECOND = 200
ROUND_TRIP_MS = 2
SLOW_US = 5_000
SHALLOW = 10_000
CLAIMS = 1_000
PEERS = (BULLMQ_NODE, *PYTHON_PEERS)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    jobs: int
    """For what is fast: Penstock and the loops by hand."""
    alone: int
    peer_s: float
    """About how long a peer is busy with its jobs; half as long with sending them, each way."""
    paced_s: int
    deep: int


QUICK = Sizes(1, 100_000, alone=3_000, peer_s=0.4, paced_s=3, deep=200_000)
FULL = Sizes(5, 300_000, alone=10_000, peer_s=1.2, paced_s=6, deep=1_000_000)

RAW, PLAIN, TRACKED, FAR = "by hand", "plain task", "task with a record", "2 ms away"
ALONE, IN_BULK, AT_ONCE = " alone", " in bulk", " at once"
P50, P99 = (f"on the way at {A_SECOND}/s, {centile}" for centile in ("p50", "p99"))
BY_HAND = " by hand"
CLAIM = "a claim where 10,000 wait / where many do"
SLOW, LONGEST = "scripts over 5 ms while many wait", "longest of them"


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    sizes, results = QUICK if quick else FULL, Results(SUITE)
    # Others who compute meanwhile spoil the rest: the reader shall see it.
    yield Figure(SUITE, "load of the machine beforehand", os.getloadavg()[0], "", 0, ">=")
    async with open_arena() as arena:
        await results.play_rounds(arena, _turns(sizes), sizes.rounds)
        await results.play(arena, "many jobs", partial(_deep, sizes))
    for figure in (*_held_against_bars(results), *results.rates()):
        yield figure


def _held_against_bars(results: Results) -> Iterator[Figure]:
    python = [peer.name + DRAINS for peer in PYTHON_PEERS]
    alone = [peer.name + ALONE + SENDS for peer in PEERS]
    in_bulk = [peer.name + IN_BULK + SENDS for peer in PEERS if peer.bulk_a_second]
    plain, many, node = PLAIN + DRAINS, PLAIN + IN_BULK + SENDS, BULLMQ_NODE.name
    ratio, value = results.ratio, results.value
    yield ratio("plain task / fastest Python peer", 15, plain, *python)
    yield ratio("plain task / BullMQ on Node", 5, plain, node + DRAINS)
    yield ratio("task with a record / fastest Python peer", 6, TRACKED + DRAINS, *python)
    yield ratio("task with a record / BullMQ on Node", 3, TRACKED + DRAINS, node + DRAINS)
    for way in (ALONE, AT_ONCE, IN_BULK):
        ours, theirs = TRACKED + way + SENDS, node + way + SENDS
        yield ratio(f"sends with a record{way} / BullMQ on Node", 2, ours, theirs)
    yield ratio("plain task, 2 ms away / near", 0.6, FAR + DRAINS, plain)
    yield ratio("send_many / pipelines by hand", 0.6, many, RAW + SENDS)
    yield ratio("send_many / best peer's bulk", 8, many, *in_bulk)
    yield ratio("one awaited send / fastest peer", 1, PLAIN + ALONE + SENDS, *alone)
    yield value(P50, "ms", 0.6, "<=")
    yield value(P99, "ms", 4, "<=")
    # What the machine allows at this moment; no bar of ours.
    yield value(P50 + BY_HAND, "ms", 0, ">=")
    yield value(P99 + BY_HAND, "ms", 0, ">=")
    # The script does the same; but what a deep list holds is not in the processor's cache.
    yield value(CLAIM, "x", 0.8, ">=")
    yield value(SLOW, "", 0, "<=")
    yield value(LONGEST, "ms", 0, ">=")


def _turns(sizes: Sizes) -> dict[str, Turn]:
    return {
        **{peer.name: partial(_peer, peer, sizes) for peer in PEERS},
        # Who is compared has its turn soon after: a noisy moment shall hit both.
        PLAIN + ALONE: partial(_alone, PLAIN, "plain", sizes),
        TRACKED + ALONE: partial(_alone, TRACKED, "tracked", sizes),
        PLAIN: partial(_ours, PLAIN, "plain", count=sizes.jobs),
        RAW: partial(_by_hand, sizes),
        FAR: partial(_ours, FAR, "plain", count=sizes.jobs, round_trip_ms=ROUND_TRIP_MS),
        TRACKED: partial(_ours, TRACKED, "tracked", count=sizes.jobs // 6),
        "paced": partial(_paced, sizes),
    }


async def _peer(peer: QueuePeer, sizes: Sizes, arena: Arena) -> dict[str, float]:
    told = await peer.offers(arena, sizes.peer_s / 2)
    await arena.clean()
    drained = await peer.works(arena, sizes.peer_s)
    sent = {f"{peer.name} {way}{SENDS}": rate for way, rate in told.items()}
    return {peer.name + DRAINS: drained, **sent}


async def _by_hand(sizes: Sizes, arena: Arena) -> dict[str, float]:
    sent = await arena.run(program("queue_loops", "push", "raw", sizes.jobs))
    return {RAW + SENDS: sent["rate"]}


async def _ours(
    name: str, task: str, arena: Arena, *, count: int, round_trip_ms: int | None = None
) -> dict[str, float]:
    sent = await arena.run(program("queue_ours", "send-many", task, count))
    await arena.rest()
    worker, backlog = program("queue_ours", "work", task), _not_done(arena, count)
    if round_trip_ms is None:
        drained = await arena.drain(worker, backlog)
    else:
        with arena.started(program("slow_line", round_trip_ms)) as line:
            url = (await line.tells())["url"]
            drained = await arena.drain(worker, backlog, BENCH_URL=url)
    return {name + IN_BULK + SENDS: sent["rate"], name + DRAINS: drained}


def _not_done(arena: Arena, count: int) -> Backlog:
    """How many of the jobs no worker has acknowledged."""
    keys = QueueKeyring.of(arena.client.keys, "orders")

    async def backlog() -> int:
        return count - int(await arena.client.call("HGET", keys.counters, "done") or 0)

    return backlog


async def _alone(name: str, task: str, sizes: Sizes, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("queue_ours", "send-alone", task, sizes.alone))
    await arena.clean()
    at_once = await arena.run(program("queue_ours", "send-at-once", task, sizes.alone * 10))
    return {name + ALONE + SENDS: told["rate"], name + AT_ONCE + SENDS: at_once["rate"]}


async def _paced(sizes: Sizes, arena: Arena) -> dict[str, float]:
    size = A_SECOND, A_SECOND * sizes.paced_s
    told: dict[str, dict[str, float]] = {}
    for who in ("queue_ours", "queue_loops"):
        with arena.started(program(who, "take-paced", *size)) as worker:
            await arena.run(program(who, "send-paced", *size))
            told[who] = await worker.tells()
    ours, loops = told["queue_ours"], told["queue_loops"]
    return {
        P50: ours["p50"],
        P99: ours["p99"],
        P50 + BY_HAND: loops["p50"],
        P99 + BY_HAND: loops["p99"],
    }


async def _deep(sizes: Sizes, arena: Arena) -> dict[str, float]:
    """Let many jobs wait: what a claim costs then, and whether a script holds others up."""
    for queue, count in (("shallow", SHALLOW), ("deep", sizes.deep)):
        await arena.run(program("queue_loops", "push", queue, count))
    await arena.rest()
    took_ms = await arena.run(program("queue_loops", "claim", "shallow,deep", CLAIMS))
    await arena.clean()

    call = arena.client.call
    await call("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US)
    await call("SLOWLOG", "RESET")
    await arena.run(program("queue_ours", "send-many", "plain", sizes.deep))
    await arena.drain(program("queue_ours", "work", "plain"), _not_done(arena, sizes.deep))
    slow = _scripts_ms(await call("SLOWLOG", "GET", -1))
    return {
        CLAIM: took_ms["shallow"] / took_ms["deep"],
        SLOW: len(slow),
        LONGEST: max(slow, default=0),
    }


def _scripts_ms(entries: list[list[Any]]) -> list[float]:
    """How long the scripts in a slow log took."""
    return [entry[2] / 1_000 for entry in entries if entry[3][0].upper().startswith(b"EVAL")]
