"""Penstock's side of the suite `limits`: a program that uses nothing but the public API.

python limit_ours.py <exact | compact | gcra | leased> <callers> <count>

Three windows in one call, all wide enough that every call is admitted, as those of the peers are.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from loops import sending
from penstock import Penstock, Settings

WINDOWS = ["100_000_000/min", "500_000_000/hour", "1_000_000_000/day"]
LEASE = 250

app = Penstock(settings=Settings(url=sending.URL))


async def main(kind: str, callers: int) -> None:
    """Acquire from tasks, each of which awaits its answer before it asks again."""
    async with app:
        if kind == "leased":
            limit = app.limit("bench", WINDOWS, lease=LEASE)
        else:
            limit = app.limit("bench", WINDOWS, algorithm=kind)
        each = sending.count() // callers

        async def acquire() -> None:
            for _ in range(each):
                if not await limit.try_acquire():
                    raise SystemExit("the limit was reached")

        await limit.try_acquire()  # the first one opens what it needs
        started = time.perf_counter()
        await asyncio.gather(*(acquire() for _ in range(callers)))
        sending.tell(each * callers, started)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
