"""The ceiling: what a loop by hand on Penstock's wire reaches, with nothing around it.

python loops.py consume <partitions> | produce <partitions> <count>
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import sending

from penstock import Client, Settings
from penstock.redis.node import Role

BATCH = 500
READ_AT_ONCE = 400
"""Messages of one read, over all partitions."""
IN_FLIGHT = 2
GROUP = "bench"


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


def _streams(partitions: int) -> list[str]:
    return [f"raw:{number}" for number in range(partitions)]


if __name__ == "__main__":
    role = {"consume": consume, "produce": produce}[sys.argv[1]]
    uvloop.run(role(int(sys.argv[2])))
