"""Penstock's side of the suite `queues`: programs that use nothing but the public API.

python queue_ours.py work <kind>
                     send-many <kind> <count>
                     send-alone | send-at-once <kind> <count>
                     send-paced | take-paced <a second> <count>

The task is `plain`, or `tracked`: with a record of its states.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

from loops import ORDER, Arrivals, Order, pace, sending
from penstock import Penstock, Settings
from penstock.settings import QueueSettings

QUEUE = "orders"
AT_A_TIME = 5_000

# A million jobs are to wait here; by itself a queue takes fewer.
app = Penstock(settings=Settings(url=sending.URL, queues=QueueSettings(max_size=0)))


async def work(kind: str) -> None:
    """Run a worker until it is killed."""
    _task(kind)
    await app.worker().run()


async def send_many(kind: str, _: str) -> None:
    total, task = sending.count(), _task(kind)
    started = time.perf_counter()
    for sent in range(0, total, AT_A_TIME):
        await task.send_many([(ORDER,)] * min(AT_A_TIME, total - sent))
    sending.tell(total, started)


async def send_alone(kind: str, _: str) -> None:
    """One after the other, each awaited."""
    task = _task(kind)
    await task.send(ORDER)  # the first one opens what it needs
    started = time.perf_counter()
    for _ in range(sending.count()):
        await task.send(ORDER)
    sending.tell(sending.count(), started)


async def send_at_once(kind: str, _: str) -> None:
    """From many tasks, each of which awaits its job before the next."""
    task = _task(kind)
    await task.send(ORDER)
    await sending.send_at_once(lambda: task.send(ORDER))


async def send_paced(a_second: str, _: str) -> None:
    await pace(int(a_second), _paced(lambda _: None).send)


async def take_paced(a_second: str, _: str) -> None:
    _paced(Arrivals(int(a_second)).note)
    await app.worker().run()


def _task(kind: str) -> Any:
    @app.task(queue=QUEUE, name="handle", status=kind == "tracked")
    async def handle(_: Order) -> None:
        pass

    return handle


def _paced(note: Callable[[Order], None]) -> Any:
    @app.task(queue=QUEUE, name="paced")
    async def paced(order: Order) -> None:
        note(order)

    return paced


async def main(role: str, *arguments: str) -> None:
    async with app:
        await ROLES[role](*arguments)


ROLES = {
    "work": work,
    "send-many": send_many,
    "send-alone": send_alone,
    "send-at-once": send_at_once,
    "send-paced": send_paced,
    "take-paced": take_paced,
}

if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
