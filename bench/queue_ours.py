"""Penstock's side of the suite `queues`: programs that use nothing but the public API.

python queue_ours.py work <task>
                     send-many <task> <count>
                     send-alone <count>
                     send-paced | take-paced <a second> <count>

A task is `plain`, or `tracked`: with a record of its states.
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

AT_A_TIME = 5_000

# A million jobs are to wait here; by itself a queue takes fewer.
app = Penstock(settings=Settings(url=sending.URL, queues=QueueSettings(max_size=0)))


@app.task(queue="orders", name="plain")
async def plain(order: Order) -> None:
    pass


@app.task(queue="orders", name="tracked", status=True)
async def tracked(order: Order) -> None:
    pass


TASKS = {task.name: task for task in (plain, tracked)}


async def work(_: str) -> None:
    """Run a worker until it is killed."""
    await app.worker().run()


async def send_many(name: str, _: str) -> None:
    total, task = sending.count(), TASKS[name]
    started = time.perf_counter()
    for _ in range(0, total, AT_A_TIME):
        await task.send_many([(ORDER,)] * AT_A_TIME)
    sending.tell(total, started)


async def send_alone(_: str) -> None:
    """One after the other, each awaited."""
    await plain.send(ORDER)  # the first one opens what it needs
    started = time.perf_counter()
    for _ in range(sending.count()):
        await plain.send(ORDER)
    sending.tell(sending.count(), started)


async def send_paced(a_second: str, _: str) -> None:
    await pace(int(a_second), _paced(lambda _: None).send)


async def take_paced(a_second: str, _: str) -> None:
    _paced(Arrivals(int(a_second)).note)
    await app.worker().run()


def _paced(note: Callable[[Order], None]) -> Any:
    @app.task(queue="orders", name="paced")
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
    "send-paced": send_paced,
    "take-paced": take_paced,
}

if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
