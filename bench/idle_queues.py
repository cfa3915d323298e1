"""Suite `idle_queues`: what workers cost that have nothing to do, and how soon a job wakes one.

Workers with connections of their own, several to a process, serve the same queues. Figures with a
bar are of the largest size; the others show how the cost grows.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

from arena import Arena, open_arena
from penstock.testing.figures import Figure
from results import program

SUITE = "idle_queues"
QUEUES, MOST_WORKERS, MOST_QUEUES = 10, 100, 200
WORKERS = (10, 25, 50, MOST_WORKERS)
ONE_WORKER = (10, 50, 100, MOST_QUEUES)
PROCESSES = 5


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    yield Figure(SUITE, "load of the machine beforehand", os.getloadavg()[0], "", 0, ">=")
    seconds, jobs = (3, 200) if quick else (8, 1_000)
    async with open_arena() as arena:
        for workers in WORKERS[-1:] if quick else WORKERS:
            processes = min(PROCESSES, workers)
            found = await _idle(arena, workers, QUEUES, processes, seconds, jobs)
            for figure in _of(found, f"{workers} workers of {QUEUES} queues", MOST_WORKERS):
                yield figure
        for queues in ONE_WORKER[-1:] if quick else ONE_WORKER:
            found = await _idle(arena, 1, queues, 1, seconds, jobs)
            for figure in _of(found, f"1 worker of {queues} queues", MOST_QUEUES):
                yield figure


async def _idle(arena: Arena, *sizes: int) -> dict[str, float]:
    found = await arena.run(program("idle_workers", *sizes))
    await arena.clean()
    return found


def _of(found: dict[str, float], name: str, largest: int) -> Iterator[Figure]:
    is_largest = f"{largest} " in name

    def figure(what: str, value: float, unit: str, bar: float) -> Figure:
        if not is_largest:
            return Figure(SUITE, f"{name}: {what}", value, unit, 0, ">=")
        return Figure(SUITE, f"{name}: {what}", value, unit, bar, "<=")

    yield figure("commands", found["commands"], "/s", 200)
    yield figure("server", found["server_percent"], "% of a core", 1)
    yield Figure(SUITE, f"{name}: workers", found["clients_percent"], "% of a core", 0, ">=")
    yield figure("first job after ready", found["first_s"], "s", 0.3)
    yield Figure(SUITE, f"{name}: wake-up p50", found["p50_ms"], "ms", 0, ">=")
    yield figure("wake-up p99", found["p99_ms"], "ms", 10)
