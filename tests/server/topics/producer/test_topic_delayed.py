"""Delayed messages: stored at once, handed on when the server's clock says so."""

import asyncio
import os
import re
import statistics
import time
from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.lifecycle import check_lifecycle
from tests.kit.patience import patient

from penstock.errors import InvalidMessage
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import Settings, TimeoutSettings, TopicSettings
from penstock.testing.eventually import eventually
from penstock.testing.proxy import FaultProxy
from penstock.topics.delayed.mover import CHECK_PER_PARTITION_S, MOST_AT_ONCE, Mover
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.topic import Topic

LARGE = 2_000
LATEST_MS = 100


def settings_for(url, namespace):
    return Settings(url=url, namespace=namespace, topics=TopicSettings(claim_above=LARGE))


@pytest.fixture(params=["valkey_server", "cluster"])
async def topic_client(request, namespace):
    server = request.getfixturevalue(request.param)
    async with Client(settings_for(server.url, namespace)) as client:
        yield client


@pytest.fixture
async def topic(topic_client):
    made = Topic(topic_client, Codec(topic_client.settings.codec), "later", partitions=4)
    yield made
    await made.close()


async def server_ms(client):
    seconds, micros = map(int, await client.call("TIME"))
    return seconds * 1000 + micros // 1000


async def arrived(client, partitions=4):
    """Ids and payloads of all messages in the streams."""
    found = []
    for index in range(partitions):
        stream = PartitionKeys.of(client.keys, "later", index).stream
        for id_, fields in await client.call("XRANGE", stream, "-", "+"):
            found.append((int(id_.partition(b"-")[0]), fields[1]))
    return found


async def left_waiting(client, partitions=4):
    keys = [PartitionKeys.of(client.keys, "later", index) for index in range(partitions)]
    waiting = [await client.call("ZCARD", key.delayed) for key in keys]
    bodies = [await client.call("HLEN", key.delayed_bodies) for key in keys]
    assert waiting == bodies
    return sum(waiting)


async def eventually_arrived(client, count, within_s=60.0):
    async def all_there():
        found = await arrived(client)
        return found if len(found) >= count else None

    return await eventually(all_there, within_s)


def assert_punctual(lateness_ms):
    """None early; as a rule within the promise."""
    assert min(lateness_ms) >= 0
    assert_not_late(lateness_ms)


def assert_not_late(lateness_ms):
    """As a rule within the promise. A busy machine may stop us once in a while."""
    assert statistics.median(lateness_ms) <= patient(LATEST_MS)
    assert max(lateness_ms) <= patient(1_000)


async def test_messages_arrive_when_they_are_due_not_before_and_at_most_100_ms_late(
    topic_client, topic
):
    began_ms, ended_ms = {}, {}
    delays = {b"1": 0.15, b"2": 0.3, b"3": 0.05, b"4": 0.2, b"5": 0.1}
    for payload, delay in delays.items():
        began_ms[payload] = await server_ms(topic_client)
        id_ = await topic.send(int(payload), delay=delay)
        ended_ms[payload] = await server_ms(topic_client)
        assert id_.startswith("d-")
    found = await eventually_arrived(topic_client, 5)
    for at_ms, payload in found:
        assert at_ms >= began_ms[payload] + delays[payload] * 1000
    # A delay begins when the server stores the message, which is somewhere between the two.
    assert_not_late(
        [at_ms - ended_ms[payload] - delays[payload] * 1000 for at_ms, payload in found]
    )
    assert await left_waiting(topic_client) == 0


async def test_a_moment_is_named_by_a_datetime_or_epoch_seconds(topic_client, topic):
    now_ms = await server_ms(topic_client)
    due_ms = now_ms + 200
    moment = datetime.fromtimestamp(due_ms / 1000, UTC)
    await topic.send("datetime", at=moment)
    await topic.send("seconds", at=due_ms / 1000)
    await topic.send("past", at=moment - timedelta(hours=1))
    found = await eventually_arrived(topic_client, 3)
    due = {b'"past"': now_ms}
    assert_punctual([at_ms - due.get(payload, due_ms) for at_ms, payload in found])


async def test_a_delay_of_nothing_is_a_plain_send(topic_client, topic):
    assert not (await topic.send(1, delay=0)).startswith("d-")
    assert not (await topic.send(1, delay=timedelta(seconds=-5))).startswith("d-")
    assert len(await arrived(topic_client)) == 2


@pytest.mark.parametrize(
    "when",
    [
        {"delay": 1, "at": 2_000_000_000},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 10**12},
        {"delay": "1"},
        {"at": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"at": 10**15},
        {"at": "tomorrow"},
    ],
    ids=str,
)
async def test_a_time_that_cannot_be_meant_is_refused(topic_client, topic, when):
    with pytest.raises(InvalidMessage):
        await topic.send(1, **when)
    assert await arrived(topic_client) == []


async def test_a_delayed_message_keeps_key_headers_and_large_payload(topic_client, topic):
    large = os.urandom(LARGE).hex()
    await topic.send(large, key="ann", headers={"trace": "t"}, delay=0.05)
    stored = []

    async def is_there():
        for index in range(4):
            keys = PartitionKeys.of(topic_client.keys, "later", index)
            found = await topic_client.call("XRANGE", keys.stream, "-", "+")
            stored.extend((keys, *entry) for entry in found)
        return stored

    ((keys, id_, fields),) = await eventually(is_there)
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    assert named[b"key"] == b"ann"
    assert b'"trace":"t"' in named[b"headers"]
    (member,) = await topic_client.call("ZRANGE", keys.payloads, 0, -1)
    name, _, owner = member.partition(b" ")
    assert owner == id_
    assert await topic_client.call("STRLEN", keys.payload(name.decode())) > LARGE


async def test_a_repeat_under_an_idempotency_key_waits_once(topic_client, topic):
    ids = [await topic.send(1, delay=0.1, idempotency_key="k") for _ in range(3)]
    assert len(set(ids)) == 1
    assert await left_waiting(topic_client) == 1
    await eventually_arrived(topic_client, 1)
    assert await topic.send(1, delay=0.1, idempotency_key="k") == ids[0]
    assert len(await arrived(topic_client)) == 1


async def test_whoever_watches_the_topic_moves_what_a_gone_sender_left(topic_client, topic):
    async with Mover(topic_client) as mover:
        mover.watch("later", 4)
        lateness_ms = []
        for turn in range(1, 6):
            sent_ms = await server_ms(topic_client)
            await topic.send(turn, delay=0.2)
            await topic.close()
            found = await eventually_arrived(topic_client, turn)
            lateness_ms.append(max(at_ms for at_ms, _ in found) - sent_ms - 200)
        assert_punctual(lateness_ms)
        assert mover.moved == 5


async def calls(client, name):
    """How often a command was called so far."""
    info = await client.call("INFO", "commandstats")
    found = re.search(rf"cmdstat_{name}:calls=(\d+)", info.decode())
    return int(found[1]) if found else 0


async def test_where_nothing_waits_one_plain_command_looks_at_all_partitions(
    start_server, namespace
):
    partitions, looks = 40, 5
    async with Client(Settings(url=start_server().url, namespace=namespace)) as client:
        topic = Topic(client, Codec(client.settings.codec), "later", partitions=partitions)
        await topic.metadata()
        scripts, before = await calls(client, "evalsha"), await calls(client, "exists")
        began = time.monotonic()
        async with Mover(client) as mover:
            mover.watch("later", partitions)

            async def has_looked():
                return await calls(client, "exists") >= before + looks

            await eventually(has_looked)
            assert await calls(client, "evalsha") == scripts
            assert time.monotonic() - began > (looks - 1) * partitions * CHECK_PER_PARTITION_S
            await topic.send(1, delay=0.05)
            await topic.close()
            await eventually(lambda: mover.moved == 1)


async def test_of_a_deleted_topic_nothing_comes_back(topic_client, topic):
    await topic.send(1, delay=0.1)
    for index in range(4):
        await topic_client.call("DEL", PartitionKeys.of(topic_client.keys, "later", index).stream)
    due_ms = await server_ms(topic_client) + 200
    async with Mover(topic_client) as mover:
        mover.watch("later", 4)
        await eventually(lambda: mover_has_looked(topic_client, due_ms))
        assert mover.moved == 0
    assert await left_waiting(topic_client) == 1
    for index in range(4):
        stream = PartitionKeys.of(topic_client.keys, "later", index).stream
        assert await topic_client.call("EXISTS", stream) == 0


async def mover_has_looked(client, after_ms):
    return await server_ms(client) > after_ms


async def test_many_movers_store_each_message_once(topic_client, topic):
    movers = [Mover(topic_client) for _ in range(4)]
    for mover in movers:
        mover.watch("later", 4)
        await mover.start()
    await asyncio.gather(*(topic.send(n, key=str(n), delay=0.05) for n in range(2_000)))
    found = await eventually_arrived(topic_client, 2_000)
    assert sorted(int(payload) for _, payload in found) == list(range(2_000))
    for mover in movers:
        await mover.stop()


async def test_messages_that_are_due_together_keep_the_order_of_their_key(topic_client, topic):
    due = datetime.fromtimestamp(await server_ms(topic_client) / 1000 + 1, UTC)
    for number in range(MOST_AT_ONCE + 50):
        await topic.send(number, key="ann", at=due)
    found = await eventually_arrived(topic_client, MOST_AT_ONCE + 50)
    assert [int(payload) for _, payload in found] == list(range(MOST_AT_ONCE + 50))


async def test_a_mover_keeps_the_contract_of_services(topic_client):
    def make():
        mover = Mover(topic_client)
        mover.watch("later", 2)
        return mover

    await check_lifecycle(make)


@pytest.mark.faults
async def test_a_mover_survives_a_server_that_goes_and_forgets_its_scripts(
    start_server, fault_proxy, namespace
):
    server = start_server()
    proxy: FaultProxy = fault_proxy(server)
    quick = TimeoutSettings(connect_s=0.5, command_s=0.5)
    async with Client(Settings(url=proxy.url, namespace=namespace, timeouts=quick)) as client:
        topic = Topic(client, Codec(client.settings.codec), "later", partitions=1)
        await topic.send(1, delay=0.2)
        proxy.cut(reset=True)
        proxy.refuse()
        server.command("SCRIPT", "FLUSH")
        await eventually(lambda: len(proxy.attempts) > 2)
        proxy.heal()
        stream = PartitionKeys.of(client.keys, "later", 0).stream
        await eventually(lambda: server.command("XLEN", stream) == 1)
        await topic.close()


async def test_a_mover_ends_with_the_client(valkey_server, namespace):
    async with Client(settings_for(valkey_server.url, namespace)) as client:
        mover = Mover(client)
        mover.watch("later", 1)
        await mover.start()
    await mover.wait()
