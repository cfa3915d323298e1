"""The other coordination primitives, for the suite `limits`: how many calls a second they take.

python coordination_ours.py <seen | once | slots | feed | window | cache> <callers> <count>
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count

import uvloop

from loops import ORDER, sending
from penstock import Penstock, Settings

app = Penstock(settings=Settings(url=sending.URL))

Call = Callable[[], Awaitable[object]]


def seen() -> Call:
    """Mark something, if it is new."""
    numbers = count()
    return lambda: app.seen(f"key-{next(numbers)}")


def once() -> Call:
    """Reserve, do nothing, commit."""
    numbers = count()

    async def call() -> None:
        async with app.once(f"key-{next(numbers)}") as mark:
            assert mark  # noqa: S101

    return call


def slots() -> Call:
    """Take a slot and release it; there is one for everybody."""
    gpu = app.slots("gpu", 1_000)

    async def call() -> None:
        async with gpu.hold():
            pass

    return call


def feed() -> Call:
    """Publish an event with a state."""
    events = app.feed("bench")
    return lambda: events.publish("progress", ORDER, state=ORDER)


def window() -> Call:
    """Add an item to one of many batches, which close at 100 items."""
    gathered, numbers = app.window("bench", to=app.queue("batches"), max_items=100), count()
    return lambda: gathered.add(f"camera-{next(numbers) % 50}", ORDER)


def cache() -> Call:
    """Store a value."""
    values, numbers = app.cache("bench"), count()
    return lambda: values.set(f"key-{next(numbers) % 1_000}", ORDER, ttl=60)


async def main(what: str, callers: int) -> None:
    """Call from tasks, each of which awaits its answer before the next call."""
    async with app:
        call, each = KINDS[what](), sending.count() // callers
        await call()  # the first one opens what it needs

        async def repeat() -> None:
            for _ in range(each):
                await call()

        started = time.perf_counter()
        await asyncio.gather(*(repeat() for _ in range(callers)))
        sending.tell(each * callers, started)


KINDS = {
    "seen": seen,
    "once": once,
    "slots": slots,
    "feed": feed,
    "window": window,
    "cache": cache,
}

if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
