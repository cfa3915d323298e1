"""Suite `idle_queues`: what workers cost that have nothing to do, and how soon a job wakes one.

Workers with connections of their own, several to a process, serve the same queues. Figures with a
bar are of the largest size; the others show how the cost grows. All of it is part of suite `sizes`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from arena import Arena
from figures import Figure
from items import Column, Growth, Item, item_figures
from results import program

SUITE = "idle_queues"
QUEUES, PROCESSES = 10, 5
WAKE_UPS = (
    Column("first", "s", 0.3, "<="),
    Column("wake-up p50", "ms"),
    Column("wake-up p99", "ms", 10, "<="),
)
COLUMNS = (
    *WAKE_UPS,
    Column("commands", "/s", 200, "<="),
    Column("client", "µs/s"),
    Column("server", "µs/s", 10_000, "<="),
    Column("server, nothing sent", "µs/s"),
)


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    async for figure in item_figures(SUITE, ITEMS, quick=quick):
        yield figure


async def _idle(
    workers: int, queues: int, topics: int, processes: int, arena: Arena, quick: bool
) -> dict[str, float]:
    seconds, jobs = (2, 200) if quick else (6, 1_000)
    sizes = workers, queues, topics, processes
    return await arena.run(program("idle_workers", *sizes, seconds, jobs))


ITEMS = (
    Item(
        {
            f"{workers} workers of {QUEUES} queues": partial(_idle, workers, QUEUES, 0, PROCESSES)
            for workers in (10, 25, 50, 100)
        },
        COLUMNS,
        barred=("100 workers of 10 queues",),
        growths=(Growth("server", "100 workers of 10 queues", "25 workers of 10 queues", 4),),
    ),
    Item(
        {
            f"1 worker of {queues} queues with lanes": partial(_idle, 1, queues, 0, 1)
            for queues in (10, 50, 100, 200)
        },
        COLUMNS,
        barred=("1 worker of 200 queues with lanes",),
        growths=(
            Growth(
                *("server", "1 worker of 200 queues with lanes"),
                *("1 worker of 50 queues with lanes", 4),
            ),
        ),
    ),
    Item(
        {
            f"1 worker of {each} queues and {each} subscriptions": partial(_idle, 1, each, each, 1)
            for each in (10, 50, 100, 200)
        },
        (
            *WAKE_UPS,
            Column("message p50", "ms"),
            Column("message p99", "ms", 10, "<="),
            Column("connections", ""),
            # What idle subscriptions cost has bars of its own, in suite `sizes`.
            *(Column(one.name, one.unit) for one in COLUMNS[len(WAKE_UPS) :]),
        ),
        barred=("1 worker of 200 queues and 200 subscriptions",),
    ),
)
