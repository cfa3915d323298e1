"""By hand on Penstock's wire: what bare lists reach, and what a claim costs by itself.

python queue_loops.py push <queue> <count>
                      claim <queue>,<queue> <claims>
                      send-paced | take-paced <a second> <count>
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial

import msgspec
import uvloop

from loops import BATCH, ORDER, Arrivals, Order, pace, sending
from penstock import Settings
from penstock.queues.storage.keys import QueueKeyring
from penstock.queues.storage.scripts import QueueScripts
from penstock.redis import Client
from penstock.redis.node import Role

QUEUE = "raw"
AT_ONCE = 100
"""Jobs of one claim."""


class Task(msgspec.Struct):
    """A job as Penstock stores it, so that the loop carries as many bytes."""

    id: str
    task: str
    args: tuple[Order]
    kwargs: dict[str, object]


async def push(queue: str) -> None:
    """Encode and push in pipelines, the next while the one before is on its way."""
    count = sending.count()
    async with Client(Settings(url=sending.URL)) as client:
        started = time.perf_counter()
        await _push(client, queue, count)
        sending.tell(count, started)


async def claim(queues: str) -> None:
    """Claim from several queues in turns, and acknowledge what was claimed before.

    As many jobs wait in each all the time. Tells for each how long a claim took, in ms.
    """
    took_ms: dict[str, list[float]] = {queue: [] for queue in queues.split(",")}
    async with Client(Settings(url=sending.URL)) as client:
        keys = {queue: QueueKeyring.of(client.keys, queue) for queue in took_ms}
        call = partial(QueueScripts.of(client).claim_jobs, worker="bench", most=AT_ONCE)
        for queue in took_ms:
            await QueueScripts.of(client).join_queue(keys=keys[queue], worker="bench")
        for first in range(0, sending.count() * AT_ONCE, AT_ONCE):
            done = [str(number) for number in range(max(0, first - AT_ONCE), first)]
            for queue, took in took_ms.items():
                await _push(client, queue, AT_ONCE)
                started = time.perf_counter()
                await call(keys=keys[queue], first=first, done=done)
                took.append((time.perf_counter() - started) * 1_000)
    print(json.dumps({queue: statistics.median(took) for queue, took in took_ms.items()}))


async def send_paced(a_second: str) -> None:
    encode = msgspec.json.Encoder().encode
    async with Client(Settings(url=sending.URL)) as client:
        await pace(int(a_second), lambda order: client.call("RPUSH", QUEUE, encode(order)))


async def take_paced(a_second: str) -> None:
    decode, arrivals = msgspec.json.Decoder(Order).decode, Arrivals(int(a_second))
    async with Client(Settings(url=sending.URL)) as client, client.lease(Role.QUEUE) as wire:
        while not arrivals.complete:
            if found := await wire.call("BLPOP", QUEUE, 1):
                arrivals.note(decode(found[1]))


async def _push(client: Client, queue: str, count: int) -> None:
    encode, wire = msgspec.json.Encoder().encode, await client.wire()
    ahead = wire.send([])
    for first in range(0, count, BATCH):
        ids = (f"{number:032x}" for number in range(first, min(first + BATCH, count)))
        commands = [("RPUSH", queue, encode(Task(id_, "handle", (ORDER,), {}))) for id_ in ids]
        ahead, before = wire.send(commands), ahead
        await before
    await ahead


ROLES = {
    "push": push,
    "claim": claim,
    "send-paced": send_paced,
    "take-paced": take_paced,
}

if __name__ == "__main__":
    uvloop.run(ROLES[sys.argv[1]](sys.argv[2]))
