"""A key of another type where a topic has its own: no message is lost, all end once it is gone."""

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import Workplace

from penstock import RetryPolicy
from penstock.errors import CommandRefused
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys, TopicKeys

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def workplace(valkey_server, namespace):
    async with Workplace(valkey_server.url, namespace) as opened:
        yield opened


async def test_failing_messages_outlast_a_foreign_key_under_the_dead_letters(workplace):
    app, ran = await workplace.open(), []
    orders = app.topic("orders", partitions=1, type=int)

    @orders.subscribe("ship", retry=ONCE)
    async def ship(number: int) -> None:
        ran.append(number)
        raise LookupError(number)

    keys, partition = (
        TopicKeys.of(app.redis.keys, "orders"),
        PartitionKeys.of(app.redis.keys, "orders", 0),
    )
    for number in range(5):
        await orders.send(number)
    await app.redis.call("SET", keys.dlq, "foreign")
    worker = workplace.begin(app)
    await eventually(lambda: any("WRONGTYPE" in why for why in worker.readiness().reasons))
    assert await app.redis.call("GET", keys.dlq) == b"foreign"
    assert await app.redis.call("XLEN", partition.stream) == 5

    await app.redis.call("DEL", keys.dlq)

    async def are_buried():
        pending = (await app.redis.call("XPENDING", partition.stream, "ship"))[0]
        return await app.redis.call("XLEN", keys.dlq) == 5 and pending == 0

    await eventually(are_buried)
    assert set(ran) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("broken", ["delayed_bodies", "payloads"])
async def test_delayed_messages_outlast_a_foreign_key(workplace, broken):
    app = await workplace.open()
    orders = app.topic("orders", partitions=1, type=int)
    partition = PartitionKeys.of(app.redis.keys, "orders", 0)
    for number in range(3):
        await orders.send(number, delay=3600)
    name = getattr(partition, broken)
    if await app.redis.call("EXISTS", name):
        await app.redis.call("RENAME", name, f"{name}:kept")
    await app.redis.call("SET", name, "foreign")
    for waiting in await app.redis.call("ZRANGE", partition.delayed, 0, -1):
        await app.redis.call("ZADD", partition.delayed, 1, waiting)
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await move(app, partition)
    assert await app.redis.call("XLEN", partition.stream) == 0
    assert await app.redis.call("ZCARD", partition.delayed) == 3

    await app.redis.call("DEL", name)
    if await app.redis.call("EXISTS", f"{name}:kept"):
        await app.redis.call("RENAME", f"{name}:kept", name)

    async def are_moved():
        await move(app, partition)
        return await app.redis.call("XLEN", partition.stream) == 3

    await eventually(are_moved)


async def move(app, partition):
    return await scripts_of(app.redis).move_due(
        stream=partition.stream,
        delayed=partition.delayed,
        delayed_bodies=partition.delayed_bodies,
        payloads=partition.payloads,
        counters=partition.counters,
        count=10,
        generation=1,
    )
