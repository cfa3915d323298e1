"""Suite `sizes`: cost against size, of all that a process or a server may have many of.

Each size is measured by processes of its own on one embedded server: processor µs of the client and
of the server, and how soon things happen. Bars are on the largest size, and on the growth from a
smaller one; --quick measures few sizes. With --markdown the tables of
docs/benchmarks.md are printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import idle_queues
from arena import Arena
from figures import Figure
from items import Column, Growth, Item, item_figures
from results import program

SUITE = "sizes"


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    async for figure in item_figures(SUITE, ITEMS, quick=quick):
        yield figure


async def _subscriptions(count: int, arena: Arena, quick: bool) -> dict[str, float]:
    return await arena.run(program("ours", "many", count, 2 if quick else 8))


async def _schedules(count: int, arena: Arena, quick: bool) -> dict[str, float]:
    return await arena.run(program("schedule_ticks", count, 2 if quick else 8))


async def _slots(count: int, processes: int, arena: Arena, quick: bool) -> dict[str, float]:
    return await arena.run(program("slot_waiters", count, processes, 4 if quick else 10))


async def _records(size: int, arena: Arena, quick: bool) -> dict[str, float]:
    jobs = 2_000 if size == 1 else 20_000
    return await arena.run(program("record_sends", size, jobs if quick else 4 * jobs))


async def _results(count: int, arena: Arena, quick: bool) -> dict[str, float]:
    """Let callers wait, first for nothing, then for a job every few milliseconds."""
    with arena.started(program("queue_waiters", count, 2 if quick else 8)) as waiters:
        await waiters.tells()
        with arena.started(program("queue_waiters", "work")):
            return await asyncio.to_thread(waiters.result)


async def _backlog(count: int, arena: Arena, quick: bool) -> dict[str, float]:
    del quick
    return await arena.run(program("key_backlog", count))


SUBSCRIPTIONS = Item(
    {f"{count} subscriptions": partial(_subscriptions, count) for count in (10, 50, 100, 200)},
    (
        Column("ready after", "s"),
        Column("first message", "s", 0.3, "<="),
        Column("wake-up p50", "ms"),
        Column("wake-up p99", "ms", 10, "<="),
        Column("idle commands", "/s"),
        Column("idle client", "µs/s"),
        Column("idle server", "µs/s", 10_000, "<="),
        Column("client", "µs/message"),
        Column("server", "µs/message"),
    ),
    barred=("200 subscriptions",),
    growths=(
        Growth("client", "200 subscriptions", "50 subscriptions", 2),
        Growth("server", "200 subscriptions", "50 subscriptions", 2),
    ),
)
SCHEDULES = Item(
    {f"{count:,} schedules": partial(_schedules, count) for count in (10, 100, 1_000, 10_000)},
    (
        Column("client", "µs/tick"),
        Column("server", "µs/tick"),
        Column("both", "µs/tick"),
        Column("ticks", "/s", 45),
        Column("late p50", "ms"),
        Column("late p99", "ms"),
        Column("loop held up", "ms", 50, "<="),
        Column("loop late", "ms"),
        Column("declared after", "s"),
        Column("declare client", "µs each"),
        Column("declare server", "µs each"),
    ),
    barred=("10,000 schedules",),
    growths=(Growth("both", "10,000 schedules", "10 schedules", 1.5, is_quick=True),),
)
SLOTS = Item(
    {
        **{f"{count:,} slot waiters": partial(_slots, count, 1) for count in (10, 100, 1_000)},
        "10,000 slot waiters": partial(_slots, 10_000, 1),
        "10,000 slot waiters in 20 processes": partial(_slots, 10_000, 20),
    },
    (
        Column("grants", "/s"),
        Column("of the possible", "x", 0.9),
        Column("client", "µs/grant"),
        Column("server", "µs/grant"),
        Column("server in all", "%", 5, "<="),
    ),
    barred=("10,000 slot waiters",),
    growths=(
        Growth("client", "10,000 slot waiters", "100 slot waiters", 2),
        Growth("server", "10,000 slot waiters", "100 slot waiters", 2),
    ),
)
RECORDS = Item(
    {
        f"{size:,} to a call, jobs with records": partial(_records, size)
        for size in (1, 10, 50, 500, 5_000)
    },
    (
        Column("client", "µs/job"),
        Column("server", "µs/job"),
        Column("jobs", "/s"),
    ),
    barred=(),
    growths=(
        Growth(
            "server",
            "500 to a call, jobs with records",
            "1 to a call, jobs with records",
            1 / 3,
            is_quick=True,
        ),
        Growth(
            "server", "5,000 to a call, jobs with records", "10 to a call, jobs with records", 1
        ),
    ),
)
RESULTS = Item(
    {
        f"{count:,} callers that wait for results": partial(_results, count)
        for count in (10, 100, 1_000, 10_000)
    },
    (
        Column("begin client", "µs each"),
        Column("begin server", "µs each"),
        Column("waiting client", "µs/s"),
        Column("waiting server", "µs/s"),
        Column("waiting commands", "/s", 500, "<="),
        Column("heard p50", "ms"),
        Column("heard p99", "ms", 20, "<="),
    ),
    barred=("10,000 callers that wait for results",),
    growths=(
        Growth(
            "begin client",
            "10,000 callers that wait for results",
            "100 callers that wait for results",
            1,
        ),
    ),
)
BACKLOG = Item(
    {
        f"{count:,} messages behind one that failed": partial(_backlog, count)
        for count in (100, 1_000, 10_000, 100_000)
    },
    (
        Column("others handled after", "s"),
        Column("client", "µs/message"),
        Column("server", "µs/message"),
    ),
    barred=(),
    growths=(
        Growth(
            "client",
            "100,000 messages behind one that failed",
            "10,000 messages behind one that failed",
            1.5,
        ),
    ),
)
ITEMS = (SUBSCRIPTIONS, *idle_queues.ITEMS, SCHEDULES, SLOTS, RECORDS, RESULTS, BACKLOG)
