"""Penstock's side of the suite `topics`: programs that use nothing but the public API.

python ours.py consume <handler> <partitions>
               send-batch | send-batch-with-keys | send-at-once <partitions> <count>
               send-alone <count>
               send-paced | take-paced <a second> <count>
               many <subscriptions> <seconds>
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import sending

from figures import ratio
from loops import GROUP, ORDER, Arrivals, Order, pace
from meter import Meter, commands_in, percentile
from penstock import Message, Outgoing, Penstock, Settings, Topic

AT_A_TIME = 5_000
BATCH = 500
ROUNDS = 9
PACE = 100
"""Messages a second, to one subscription after the other, as `many` sends them."""

app = Penstock(settings=Settings(url=sending.URL))


async def consume(handler: str, partitions: str) -> None:
    """Run a worker with an empty handler until it is killed."""
    topic = orders(partitions)

    async def one(_: Order) -> None:
        pass

    async def many(_: list[Order]) -> None:
        pass

    match handler:
        case "message":
            topic.subscribe(group=GROUP)(one)
        case "key":
            topic.subscribe(group=GROUP, ordering="key")(one)
        case "batch":
            topic.subscribe(group=GROUP, batch=BATCH)(many)
        case _:
            raise SystemExit(f"no such handler: {handler}")
    await app.worker().run()


async def send_batch(partitions: str, _: str) -> None:
    topic, total = orders(partitions), sending.count()
    started = time.perf_counter()
    for _ in range(0, total, AT_A_TIME):
        await topic.send_batch([ORDER] * AT_A_TIME)
    sending.tell(total, started)


async def send_batch_with_keys(partitions: str, _: str) -> None:
    topic, total = orders(partitions), sending.count()
    started = time.perf_counter()
    for first in range(0, total, AT_A_TIME):
        turns = range(first, first + AT_A_TIME)
        await topic.send_batch([Outgoing(ORDER, key=f"customer-{turn}") for turn in turns])
    sending.tell(total, started)


async def send_at_once(partitions: str, _: str) -> None:
    topic = orders(partitions)
    await sending.send_at_once(lambda: topic.send(ORDER))


async def send_alone(_: str) -> None:
    """One after the other, in turns with what a bare client needs for the same XADD."""
    topic, stream, body = orders("1"), "bare", json.dumps(sending.ORDER)
    stock = await app.redis.redis_py()
    total = sending.count() // ROUNDS
    ours = one_by_one(lambda: topic.send(ORDER), total)
    bare = one_by_one(lambda: app.redis.call("XADD", stream, "*", "payload", body), total)
    theirs = one_by_one(lambda: stock.xadd(stream, {"payload": body}), total)
    await ours()  # the first one opens what it needs
    told = {
        "client": await ratio(ours, bare, ROUNDS),
        "redis-py": await ratio(ours, theirs, ROUNDS),
        "rate": await ours(),
    }
    print(json.dumps(told), flush=True)


def one_by_one(call: Callable[[], Awaitable[object]], total: int) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        started = time.perf_counter()
        for _ in range(total):
            await call()
        return total / (time.perf_counter() - started)

    return measure


async def send_paced(a_second: str, _: str) -> None:
    await pace(int(a_second), orders("4").send)


async def take_paced(a_second: str, _: str) -> None:
    arrivals = Arrivals(int(a_second))

    async def take(order: Order, _: Message) -> None:
        arrivals.note(order)

    orders("4").subscribe(group=GROUP)(take)
    await app.worker().run()


async def many(subscriptions: str, seconds: str) -> None:
    """Run a worker with many subscriptions: how soon messages come, and what waiting costs."""
    count, sent, took = int(subscriptions), dict[int, float](), list[float]()

    async def take(number: int) -> None:
        took.append(time.perf_counter() - sent.pop(number))

    topics = [app.topic(f"many-{count}-{number}", type=int) for number in range(count)]
    for topic in topics:
        await topic.metadata()
        topic.subscribe(group=GROUP)(take)

    async def send(number: int) -> None:
        sent[number] = time.perf_counter()
        await topics[number % count].send(number)

    async def all_taken() -> list[float]:
        while sent:  # noqa: ASYNC110  an event would cost what is measured
            await asyncio.sleep(0.001)
        taken = took[:]
        took.clear()
        return taken

    worker = app.worker()
    running = asyncio.create_task(worker.run())
    started = time.perf_counter()
    while not worker.readiness():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    ready_s = time.perf_counter() - started
    for number in range(count):
        await send(number)
    first = await all_taken()
    await asyncio.sleep(1)  # what begins at the same time goes apart
    meter = await Meter(app.redis).start()
    await asyncio.sleep(float(seconds))
    idle = await meter.spent()
    commands = await commands_in(float(seconds), sending.URL.removeprefix("unix://"))
    chance = random.Random(1)  # noqa: S311
    places = [chance.randrange(count) for _ in range(int(float(seconds) * PACE))]
    started = time.perf_counter()
    meter = await Meter(app.redis).start()
    for turn, place in enumerate(places, 1):
        await send(turn * count + place)
        await asyncio.sleep(max(0, started + turn / PACE - time.perf_counter()))
    taken = await all_taken()
    busy = await meter.spent()
    waiting_s = busy.seconds / idle.seconds
    measured = {
        "ready after": ready_s,
        "first message": max(first),
        "wake-up p50": percentile(taken, 50) * 1000,
        "wake-up p99": percentile(taken, 99) * 1000,
        "idle commands": commands / float(seconds),
        "idle client": idle.client_us / idle.seconds,
        "idle server": idle.server_us / idle.seconds,
        "client": (busy.client_us - idle.client_us * waiting_s) / len(places),
        "server": (busy.server_us - idle.server_us * waiting_s) / len(places),
    }
    print(json.dumps(measured), flush=True)
    await worker.stop()
    await running


def orders(partitions: str) -> Topic:
    return app.topic("orders", partitions=int(partitions), type=Order)


async def main(role: str, *arguments: str) -> None:
    async with app:
        await ROLES[role](*arguments)


ROLES = {
    "consume": consume,
    "send-batch": send_batch,
    "send-batch-with-keys": send_batch_with_keys,
    "send-at-once": send_at_once,
    "send-alone": send_alone,
    "send-paced": send_paced,
    "take-paced": take_paced,
    "many": many,
}

if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
