"""A process that does something once, as its first argument says; it tells in lines of JSON.

With `crowd`, as many processes that all try at the same moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack

from penstock import Penstock
from penstock.coordination.leases import Leases
from penstock.coordination.once.once import Once
from penstock.errors import PenstockError
from penstock.queues import raw_handler, registry
from penstock.settings import OnceSettings, Settings

IMPORTED = raw_handler, registry  # not by each of a crowd


def tell(**facts: object) -> None:
    # In one piece: many processes share the pipe.
    os.write(1, json.dumps(facts).encode() + b"\n")


async def once_of(told: dict, opened: AsyncExitStack) -> tuple[Penstock, Once]:
    settings = Settings(
        url=told["url"],
        namespace=told["namespace"],
        once=OnceSettings(hold_s=told.get("hold_s", 60.0)),
    )
    app = await opened.enter_async_context(Penstock(settings=settings))
    leases = Leases(app.redis)
    opened.push_async_callback(leases.close)
    return app, Once(app.redis, app.codec, leases)


async def work(told: dict, number: int = 0, ready: int | None = None) -> None:
    async with AsyncExitStack() as opened:
        app, once = await once_of(told, opened)
        key, value = told["key"], told.get("value", str(number))
        queue = app.queue("work")
        await queue.declared()
        if ready is not None:
            tell(ready=number)
            os.read(ready, 1)  # which ends for all at once
        if told["kind"] == "seen":
            tell(first=not await once.seen(key, value), value=value)
        elif told["kind"] == "enqueue":
            added = await once.enqueue(key, queue, {"n": number}, value=value)
            tell(first=added.first, value=added.value)
        else:
            try:
                async with once.reserve(key, value=value) as mark:
                    tell(first=mark.first, value=mark.value)
                    if "wait" in told:
                        # Renewals go on meanwhile.
                        await asyncio.to_thread(sys.stdin.readline)
            except PenstockError as error:
                tell(ended=type(error).__name__)
            else:
                tell(ended="")


def crowd(told: dict) -> None:
    ready, go = os.pipe()
    children = []
    for number in range(told["crowd"]):
        pid = os.fork()
        if not pid:
            os.close(go)
            signal.alarm(60)
            asyncio.run(work(told, number, ready))
            os._exit(0)
        children.append(pid)
    sys.stdin.readline()
    os.close(go)
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    if "crowd" in orders:
        crowd(orders)
    else:
        asyncio.run(work(orders))
