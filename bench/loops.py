"""The ceiling: what a loop by hand on Penstock's wire reaches, with nothing around it.

python loops.py consume <partitions>
                produce <partitions> <count>
                send-paced | take-paced <a second> <count>
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import sending

from penstock import Settings
from penstock.redis import Client
from penstock.redis.node import Role

BATCH = 500
READ_AT_ONCE = 400
"""Messages of one read, over all partitions."""
IN_FLIGHT = 2
GROUP = "bench"
WARM_UP_S = 1.5
"""Until the consumer is there, and a little longer."""


class Order(msgspec.Struct):
    """The message, typed."""

    id: int
    customer: str
    lines: list[str]
    note: str


ORDER = msgspec.convert(sending.ORDER, Order)


async def consume(partitions: int) -> None:
    """Read, decode, acknowledge: two reads in flight, the acks of a chunk go out with the next."""
    names = _streams(partitions)
    decode = msgspec.json.Decoder(Order).decode
    read = (
        *("XREADGROUP", "GROUP", GROUP, "bench", "COUNT", max(1, READ_AT_ONCE // partitions)),
        *("STREAMS", *names, *(">" for _ in names)),
    )
    async with Client(Settings(url=sending.URL)) as client, client.lease(Role.QUEUE) as wire:
        ahead = deque(wire.send([read]) for _ in range(IN_FLIGHT))
        while ahead:
            chunk = (await ahead.popleft())[-1]
            commands = []
            for stream, entries in chunk or ():
                for entry in entries:
                    decode(entry[1][1])
                commands.append(("XACK", stream, GROUP, *[entry[0] for entry in entries]))
            if commands:
                ahead.append(wire.send([*commands, read]))


async def produce(partitions: int) -> None:
    """Encode and add in pipelines, the next while the one before is on its way."""
    names, encode, count = _streams(partitions), msgspec.json.Encoder().encode, sending.count()
    async with Client(Settings(url=sending.URL)) as client:
        for name in names:
            await client.call("XGROUP", "CREATE", name, GROUP, "0", "MKSTREAM")
        wire = await client.wire()
        started = time.perf_counter()
        ahead = wire.send([])
        for first in range(0, count, BATCH):
            turns = range(first, first + BATCH)
            commands = [
                ("XADD", names[turn % partitions], "NOMKSTREAM", "*", "payload", encode(ORDER))
                for turn in turns
            ]
            ahead, before = wire.send(commands), ahead
            await before
        await ahead
        sending.tell(count, started)


async def send_paced(a_second: int) -> None:
    encode = msgspec.json.Encoder().encode
    async with Client(Settings(url=sending.URL)) as client:
        await pace(a_second, lambda order: client.call("XADD", "raw", "*", "p", encode(order)))


async def take_paced(a_second: int) -> None:
    decode, arrivals = msgspec.json.Decoder(Order).decode, Arrivals(a_second)
    async with Client(Settings(url=sending.URL)) as client, client.lease(Role.QUEUE) as wire:
        await client.call("XGROUP", "CREATE", "raw", GROUP, "0", "MKSTREAM")
        read = ("XREADGROUP", "GROUP", GROUP, "bench", "BLOCK", 1_000, "STREAMS", "raw", ">")
        while not arrivals.complete:
            for stream, entries in await wire.call(*read) or ():
                for id_, fields in entries:
                    arrivals.note(decode(fields[1]))
                    await client.call("XACK", stream, GROUP, id_)


async def pace(a_second: int, send: Callable[[Order], Awaitable[object]]) -> None:
    """Send at even distances. Each message carries when, by the clock all processes share."""
    started = time.monotonic()
    for number in range(sending.count()):
        await asyncio.sleep(started + number / a_second - time.monotonic())
        await send(Order(time.monotonic_ns(), ORDER.customer, ORDER.lines, ORDER.note))


class Arrivals:
    """How long messages were on their way, told when all have come."""

    def __init__(self, a_second: int) -> None:
        self._warm_up = round(WARM_UP_S * a_second)
        self._took_ms: list[float] = []

    @property
    def complete(self) -> bool:
        return len(self._took_ms) == sending.count()

    def note(self, order: Order) -> None:
        self._took_ms.append((time.monotonic_ns() - order.id) / 1e6)
        if self.complete:
            centiles = statistics.quantiles(self._took_ms[self._warm_up :], n=100)
            print(json.dumps({"p50": centiles[49], "p99": centiles[98]}), flush=True)


def _streams(partitions: int) -> list[str]:
    return [f"raw:{number}" for number in range(partitions)]


ROLES = {
    "consume": consume,
    "produce": produce,
    "send-paced": send_paced,
    "take-paced": take_paced,
}

if __name__ == "__main__":
    uvloop.run(ROLES[sys.argv[1]](int(sys.argv[2])))
