"""Processor time of the embedded server, with jemalloc and with the C library's own allocator."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from penstock import Penstock, Settings
from penstock.settings import EmbeddedSettings, QueueSettings
from penstock.testing.queues import run_until_idle

__all__ = ["processor_time_ratio"]

_TICKS = os.sysconf("SC_CLK_TCK")
_LARGE = 3_000


async def processor_time_ratio(jobs: int, rounds: int) -> float:
    """Its time with jemalloc over that without, for the same jobs: the median of some rounds."""
    ratios: list[float] = []
    for _ in range(rounds):
        with_it = await _server_s(jobs, jemalloc=True)
        ratios.append(with_it / await _server_s(jobs, jemalloc=False))
    return statistics.median(ratios)


async def _server_s(jobs: int, *, jemalloc: bool) -> float:
    """Seconds of processor time for sending and running jobs with records, small and large."""
    with tempfile.TemporaryDirectory(prefix="bench") as home:
        settings = Settings(
            home=home,
            embedded=EmbeddedSettings(jemalloc=jemalloc, linger_s=0),
            queues=QueueSettings(max_size=0),
        )
        async with Penstock(settings=settings) as app:

            @app.task(queue="work", status=True)
            async def work(number: int, text: str) -> int:
                return number + len(text)

            pid = await _server_pid(app)
            before = _cpu_s(pid)
            for first in range(0, jobs, 1_000):
                texts = [
                    f"{number}" * (_LARGE // 5 if number % 5 == 0 else 20)
                    for number in range(first, first + 1_000)
                ]
                await work.send_many([(number, text) for number, text in enumerate(texts)])
                await run_until_idle(app)
            return _cpu_s(pid) - before


async def _server_pid(app: Penstock) -> int:
    told: bytes = await app.redis.call("INFO", "server")
    return int(told.split(b"process_id:")[1].split()[0])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
