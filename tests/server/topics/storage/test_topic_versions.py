"""An earlier version works beside this one, on the same topic and group.

It knows no renewed fences: to it, the fence of an epoch is the only one. What it says to the server
is written here with plain commands, so that the contract stays when its code is gone.
"""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from tests.kit.model.desk import CONSUMER, GROUP, LEASE_MS, Desk

from penstock import Fixed, Message, RetryPolicy
from penstock.errors import CommandRefused
from penstock.redis.node import Role
from penstock.testing.eventually import eventually
from penstock.topics.storage.keys import PartitionKeys, TopicKeys

STALE = -1
FAILURE = {
    "error_class": "ValueError",
    "message": "as ordered",
    "stack": "",
    "fingerprint": "0123456789abcdef",
    "at_ms": 1_763_262_000_000,
    "attempt": 1,
}
"""A failed attempt as the earlier version stores it, in a list of the first and the last."""


@pytest.fixture
async def desk(any_server, open_client, namespace):
    return Desk(await open_client(any_server.url, namespace=namespace))


class Earlier:
    """An owner of the earlier version; each method is one of its scripts."""

    def __init__(self, client, keys, group=GROUP, name="earlier") -> None:
        self._call, self._keys, self._group, self.name = client.call, keys, group, name
        self.lease = keys.lease(group)

    async def acquire(self, ttl_ms=LEASE_MS) -> int:
        call, epochs = self._call, self._keys.epochs
        last = int(await call("HGET", epochs, self._group))
        if await call("EXISTS", self.lease):
            return 0
        seconds, micros = map(int, await call("TIME"))
        epoch = max(last + 1, seconds * 1_000_000 + micros)
        await self._tear_down(last)
        await call("HSET", epochs, self._group, epoch)
        await call("SET", self.lease, self.name, "PX", ttl_ms)
        fence = self._keys.fence(self._group, epoch)
        await call("XGROUP", "CREATE", fence, self._group, "$", "MKSTREAM")
        await call("PEXPIRE", fence, ttl_ms)
        return epoch

    async def release(self, epoch: int) -> None:
        assert await self._is_ours(epoch)
        await self._call("DEL", self.lease)
        await self._tear_down(epoch)

    async def settle(self, epoch: int, ids: list[str]) -> int:
        if not await self._is_ours(epoch):
            return STALE
        return await self._call("XACK", self._keys.stream, self._group, *ids)

    async def _is_ours(self, epoch: int) -> bool:
        return await self._call("HGET", self._keys.epochs, self._group) == str(epoch).encode()

    async def _tear_down(self, epoch: int) -> None:
        fence = self._keys.fence(self._group, epoch)
        if await self._call("PEXPIRE", fence, 1000):
            await self._call("XGROUP", "DESTROY", fence, self._group)


# ---- fences


async def test_a_renewed_fence_stands_no_longer_than_the_lease(desk):
    """Who does not know of it tears down only the first one, and waits for the lease alone."""
    await desk.open()
    epoch = await desk.acquire("anna")
    await desk.client.call("PEXPIRE", desk.keys.lease(GROUP), LEASE_MS // 2)
    assert await desk.refence(epoch, epoch + 1)
    lease_ms = await desk.client.call("PTTL", desk.keys.lease(GROUP))
    fence_ms = await desk.client.call("PTTL", desk.keys.fence(GROUP, epoch + 1))
    assert 0 < fence_ms <= lease_ms


async def test_nobody_gets_a_new_fence_while_the_lease_is_anothers(desk):
    await desk.open()
    epoch = await desk.acquire("anna")
    await desk.client.call("SET", desk.keys.lease(GROUP), "ben")
    before = await desk.stored()
    assert not await desk.refence(epoch, epoch + 1)
    assert await desk.stored() == before


async def test_it_takes_over_from_an_owner_with_a_renewed_fence_and_gives_back(desk):
    ids, earlier = await desk.open(4), Earlier(desk.client, desk.keys)
    epoch = await desk.acquire("anna")
    assert await desk.read(epoch, 1) == ids[:1]
    assert await desk.refence(epoch, epoch + 1)
    assert await desk.read(epoch + 1, 1) == ids[1:2]
    assert await earlier.acquire() == 0
    await run_out(desk, epoch + 1)
    second = await earlier.acquire()
    assert second > epoch + 1
    before = await desk.stored()
    for number in (epoch, epoch + 1):
        with pytest.raises(CommandRefused, match="NOGROUP"):
            await desk.read(number)
    assert await desk.settle(epoch, ids) == STALE
    assert not await desk.renew(epoch)
    assert not await desk.refence(epoch, epoch + 2)
    assert not await desk.release(epoch, ids)
    assert await desk.stored() == before
    assert await desk.read(second) == ids[2:]
    assert await earlier.settle(second, ids[:3]) == 3
    await earlier.release(second)
    third = await desk.acquire("ben")
    assert third > second
    assert await earlier.settle(second, ids) == STALE
    assert [row[0].decode() for row in await desk.pending(third)] == ids[3:]
    facts = await desk.client.call("HGETALL", desk.keys.epochs)
    assert facts == [GROUP.encode(), str(third).encode()], "nothing is left of the renewed fence"


async def run_out(desk, fence_number):
    """Let the lease end, and with it the fence that was renewed together with it."""
    keys = (desk.keys.lease(GROUP), desk.keys.fence(GROUP, fence_number))
    for key in keys:
        await desk.client.call("PEXPIRE", key, 1)

    async def is_over():
        return not await desk.client.call("EXISTS", *keys)

    await eventually(is_over)


@pytest.mark.parametrize("loss", ["taken over", "reset", "deleted"])
async def test_its_fence_falls_though_a_renewed_one_was_noted_before(desk, loss):
    """It leaves the note of an owner before it as it was."""
    await desk.open(1)
    earlier = Earlier(desk.client, desk.keys)
    epoch = await desk.acquire("anna")
    await desk.refence(epoch, epoch + 1)
    await run_out(desk, epoch + 1)
    # Its epoch is ahead of the server's clock, and its lease seems to hold for very long: the clock
    # was set back by an hour.
    await desk.client.call("HSET", desk.keys.epochs, GROUP, epoch + 3_600_000_000)
    second = await earlier.acquire(ttl_ms=2 * LEASE_MS)
    command = desk.read_command(second, 10, block_ms=5_000)
    await desk.client.call(*desk.read_command(second, 10))
    waiting = asyncio.create_task(desk.client.call(*command, role=Role.QUEUE, timeout_s=10))
    await eventually(lambda: is_blocked(desk))
    if loss == "taken over":
        assert await desk.acquire("ben", dead_owner="earlier") > second
    elif loss == "reset":
        assert await desk.reset("0") == 1
        assert await desk.acquire("ben") > second
    else:
        assert await desk.drop()
        assert await desk.client.call("EXISTS", desk.keys.epochs) == 0
        assert await desk.client.call("EXISTS", desk.keys.fence(GROUP, second)) == 0
    with pytest.raises(CommandRefused, match=r"NOGROUP|UNBLOCKED"):
        await waiting
    with pytest.raises(CommandRefused, match="NOGROUP"):
        await desk.read(second)


async def is_blocked(desk):
    return b"cmd=xreadgroup" in await desk.client.call("CLIENT", "LIST") and (
        b"blocked_clients:1" in await desk.client.call("INFO", "clients")
    )


async def test_it_takes_what_an_owner_with_a_renewed_fence_has_given_up(desk):
    ids, earlier = await desk.open(2), Earlier(desk.client, desk.keys)
    epoch = await desk.acquire("anna")
    await desk.refence(epoch, epoch + 1)
    assert await desk.read(epoch + 1) == ids
    assert await desk.release(epoch, ids[1:])
    second = await earlier.acquire()
    assert second > epoch + 1
    rows = await desk.client.call("XPENDING", desk.keys.stream, GROUP, "-", "+", 10)
    assert [(row[0].decode(), row[1].decode(), row[3]) for row in rows] == [
        (ids[0], CONSUMER, 1),
        (ids[1], CONSUMER, 0),
    ]


# ---- consumers


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_what_it_left_is_taken_over_in_order(open_app, place, consume, ordering):
    """Its process was killed: one message had failed, one was under way, the others waited."""
    app = await open_app(place)
    orders = app.topic("orders", partitions=1, type=int)
    sent = [await orders.send(n, key="k") for n in range(6)]
    call, keys, topic = app.redis.call, PartitionKeys.of(app.redis.keys, "orders", 0), orders.name
    await call("XGROUP", "CREATE", keys.stream, "group", 0)
    await call("HSET", keys.epochs, "group", 1_763_262_000_000_000)
    await call("HSET", keys.epochs, "group:fence", 1_763_262_000_000_001)
    earlier = Earlier(app.redis, keys, "group", "host-4711-0a1b2c3d")
    epoch = await earlier.acquire()
    of_topic = TopicKeys.of(app.redis.keys, topic)
    now_ms = round(time.time() * 1000)
    await call("ZADD", of_topic.members("group"), now_ms, earlier.name)
    await call("HSET", of_topic.member_info("group"), earlier.name, '{"host":"host","pid":4711}')
    fence = keys.fence("group", epoch)
    head = ("XREADGROUP", "GROUP", "group", CONSUMER, "COUNT", 4, "STREAMS")
    [(_, entries)] = await call(*head, keys.stream, fence, ">", ">")
    ids = [id_ for id_, _ in entries]
    await call("ZADD", keys.retry("group"), now_ms, ids[0])
    await call("HSET", keys.failures("group"), ids[0], json.dumps([FAILURE]))
    await call("PEXPIRE", earlier.lease, 100)
    seen: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.id, message.attempt))

    await consume(orders, handle, ordering=ordering, retry=RetryPolicy(5, Fixed(0.01)))
    await eventually(lambda: len(seen) == 6)
    assert seen == [*((id_, 2) for id_ in sent[:4]), *((id_, 1) for id_ in sent[4:])]


async def test_what_this_version_leaves_is_what_it_expects(open_app, place, consume):
    """Words it can read: an owner's name, what members say, pending messages and failures."""
    app = await open_app(place)
    orders = app.topic("orders", partitions=1, type=int)

    async def handle(_: int) -> None:
        raise ValueError("as ordered")

    consumer = await consume(orders, handle, retry=RetryPolicy(5, Fixed(60)))
    await eventually(lambda: [held.readable for held in consumer._serving] == [True])
    [held] = consumer._serving
    held.suspect_strays()
    await eventually(lambda: held.readable)
    await orders.send(1, key="k")
    await eventually(lambda: consumer.counts.retried)
    call, keys = app.redis.call, PartitionKeys.of(app.redis.keys, "orders", 0)
    of_topic = TopicKeys.of(app.redis.keys, "orders")
    [member] = await call("ZRANGE", of_topic.members("group"), 0, -1)
    about = await call("HGET", of_topic.member_info("group"), member)
    # It passes over members of the JSON that it does not know, and fields that are no member's.
    assert set(json.loads(about)) <= {"host", "pid", "cap", "pin", "versions"}
    assert await call("GET", keys.lease("group")) == member
    assert int(await call("HGET", keys.epochs, "group")) == held.epoch
    [[id_, owner, _, deliveries]] = await call("XPENDING", keys.stream, "group", "-", "+", 10)
    assert (owner.decode(), deliveries) == (CONSUMER, 1)
    [(_, fields)] = await call("XRANGE", keys.stream, "-", "+")
    assert fields[::2] == [b"payload", b"key"]
    [failure] = json.loads(await call("HGET", keys.failures("group"), id_))
    assert {name: type(value) for name, value in failure.items()} == {
        name: type(value) for name, value in FAILURE.items()
    }
    assert await call("ZSCORE", keys.retry("group"), id_)
