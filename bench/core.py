"""Suite `core`: what the door to the server costs."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from redis.asyncio import Redis

from allocator import processor_time_ratio
from figures import Figure, ratio
from penstock import Settings
from penstock.redis import Client, Codec
from penstock.redis.embedded.binary import find_jemalloc
from penstock.redis.wire import Wire
from penstock.settings import CodecSettings

SUITE = "core"
BATCH = 500
PAYLOAD = b"x" * 200


class Order(msgspec.Struct):
    """About 200 bytes of JSON, as the other suites use."""

    id: int
    customer: str
    lines: list[str]
    note: str


ORDER = Order(1, "customer-0000001", ["article-1", "article-2"], "n" * 120)


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    rounds = 5 if quick else 15
    size = 4_000 if quick else 20_000
    with tempfile.TemporaryDirectory(prefix="bench") as home:
        async with _both(home) as (ours, wire, stock):
            await stock.set("key", PAYLOAD)

            value = await ratio(
                _one_by_one(lambda: ours.call("GET", "key"), size),
                _one_by_one(lambda: stock.get("key"), size),
                rounds,
            )
            yield Figure(SUITE, "GET, one by one: ours / redis-py", value, "x", 0.9, ">=")

            value = await ratio(
                _at_once(lambda: ours.call("GET", "key"), size * 5),
                _at_once(lambda: stock.get("key"), size),
                rounds,
            )
            yield Figure(SUITE, "GET, 100 at once: ours / redis-py", value, "x", 3, ">=")

            value = await ratio(_wire_adds(wire, size * 5), _stock_adds(stock, size), rounds)
            yield Figure(SUITE, f"XADD, pipelines of {BATCH}: wire / redis-py", value, "x", 4, ">=")

            value = await ratio(
                _reads(lambda: wire.call("XRANGE", "stream", "-", "+", "COUNT", BATCH), size * 5),
                _reads(lambda: stock.xrange("stream", count=BATCH), size * 5),
                rounds,
            )
            yield Figure(SUITE, f"XRANGE, {BATCH} entries: wire / redis-py", value, "x", 1.2, ">=")

    codec = Codec(CodecSettings())
    value = await ratio(
        _trips(codec.encoder(Order), codec.decoder(Order), size * 5),
        _trips(msgspec.json.Encoder().encode, msgspec.json.Decoder(Order).decode, size * 5),
        rounds,
    )
    yield Figure(SUITE, "200-byte payload, both ways: codec / msgspec", value, "x", 0.65, ">=")
    if find_jemalloc():
        value = await processor_time_ratio(size, 3)
        what = "embedded server's processor time: jemalloc / libc"
        yield Figure(SUITE, what, value, "x", 1.0, "<=")
    yield Figure(SUITE, "import penstock", _import_ms(rounds), "ms", 150, "<=")
    yield Figure(SUITE, "embedded server, from nothing", await _start_ms(rounds), "ms", 500, "<=")


@asynccontextmanager
async def _both(home: str) -> AsyncIterator[tuple[Client, Wire, Redis]]:
    async with Client(Settings(home=home)) as ours:
        stock = Redis(unix_socket_path=ours.address.endpoints[0].path)
        try:
            yield ours, await ours.wire(), stock
        finally:
            await stock.aclose()


def _per_second(count: int, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[float]]:
    """A measurement: how many of `count` things `work` does in a second."""

    async def measure() -> float:
        started = time.perf_counter()
        await work()
        return count / (time.perf_counter() - started)

    return measure


def _one_by_one(
    call: Callable[[], Awaitable[object]], count: int
) -> Callable[[], Awaitable[float]]:
    async def work() -> None:
        for _ in range(count):
            await call()

    return _per_second(count, work)


def _at_once(call: Callable[[], Awaitable[object]], count: int) -> Callable[[], Awaitable[float]]:
    async def some() -> None:
        for _ in range(count // 100):
            await call()

    async def work() -> None:
        await asyncio.gather(*(some() for _ in range(100)))

    return _per_second(count, work)


def _wire_adds(wire: Wire, count: int) -> Callable[[], Awaitable[float]]:
    commands = [("XADD", "stream", "MAXLEN", "~", 10_000, "*", "payload", PAYLOAD)] * BATCH

    async def work() -> None:
        ahead = wire.send(commands)
        for _ in range(count // BATCH - 1):
            ahead, before = wire.send(commands), ahead
            await before
        await ahead

    return _per_second(count, work)


def _stock_adds(stock: Redis, count: int) -> Callable[[], Awaitable[float]]:
    async def work() -> None:
        for _ in range(count // BATCH):
            pipeline = stock.pipeline(transaction=False)
            for _ in range(BATCH):
                pipeline.xadd("stream", {"payload": PAYLOAD}, maxlen=10_000, approximate=True)
            await pipeline.execute()

    return _per_second(count, work)


def _reads(read: Callable[[], Awaitable[object]], count: int) -> Callable[[], Awaitable[float]]:
    async def work() -> None:
        for _ in range(count // BATCH):
            await read()

    return _per_second(count, work)


def _trips(
    encode: Callable[[Order], bytes], decode: Callable[[bytes], Order], count: int
) -> Callable[[], Awaitable[float]]:
    async def work() -> None:
        for _ in range(count):
            decode(encode(ORDER))

    return _per_second(count, work)


def _import_ms(rounds: int) -> float:
    program = (
        "import time; t = time.perf_counter(); import penstock; print(time.perf_counter() - t)"
    )
    took = [
        float(
            subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        )
        for _ in range(rounds)
    ]
    return statistics.median(took) * 1000


async def _start_ms(rounds: int) -> float:
    took: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="bench") as home:
            started = time.perf_counter()
            async with Client(Settings(home=home)) as client:
                took.append(time.perf_counter() - started)
                embedded = client.embedded
            if embedded is not None:
                await asyncio.to_thread(embedded.stop)
    return statistics.median(took) * 1000
