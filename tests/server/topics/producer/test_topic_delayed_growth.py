"""Delayed messages whose topic has grown when they are due."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial
from zlib import crc32

import msgspec
import pytest
from tests.kit.scripts import scripts_of

from penstock.errors import OutcomeUnknown
from penstock.redis.codec import Codec
from penstock.redis.prepared_call import run_together
from penstock.testing.eventually import eventually
from penstock.topics.admin.growth import grow_topic
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.delayed.mover import Mover
from penstock.topics.delayed.rehoming import Rehoming
from penstock.topics.message import BARRIER, HEADERS, KEY, Message, field_of
from penstock.topics.partitioners import RoundRobin
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.subscription import Subscription
from penstock.topics.topic import Topic

LARGE = 2_000
pytestmark = pytest.mark.settings(
    topics={"claim_above": LARGE, "refresh_s": 0.05, "lease_ttl_s": 1.5, "balance_s": 0.05}
)
BEFORE, AFTER = 2, 5
LONG_S = 3_600


def make_topic(client, **options):
    return Topic(client, Codec(client.settings.codec), "later", partitions=BEFORE, **options)


@pytest.fixture
async def topic(client):
    made = make_topic(client)
    yield made
    await made.close()


async def grow(client, partitions=AFTER):
    """Grow without waiting for producers: none of them sends meanwhile."""
    meta = TopicKeys.of(client.keys, "later").meta
    await scripts_of(client).begin_growth(meta=meta, partitions=partitions, hold_ms=0)
    await grow_topic(client, "later", partitions)


@asynccontextmanager
async def time_passes(client, partitioner=None):
    """Let everything be due that waits; a process that consumes the topic is there meanwhile."""
    for index in range(BEFORE):
        waiting = PartitionKeys.of(client.keys, "later", index).delayed
        for place, id_ in enumerate(await client.call("ZRANGE", waiting, 0, -1), start=1):
            await client.call("ZADD", waiting, place, id_)
    async with Mover(client) as mover:
        mover.watch("later", AFTER, partitioner)
        yield


async def arrived(client):
    """Partition and fields of every message in the streams."""
    found = []
    for index in range(AFTER):
        stream = PartitionKeys.of(client.keys, "later", index).stream
        entries = await client.call("XRANGE", stream, "-", "+")
        found += [(index, fields) for _, fields in entries if fields[0] != BARRIER]
    return found


async def all_arrived(client, count):
    async def are_there():
        found = await arrived(client)
        return found if len(found) >= count and not await left_waiting(client) else None

    found = await eventually(are_there)
    assert len(found) == count
    return found


async def left_waiting(client):
    keys = [PartitionKeys.of(client.keys, "later", index) for index in range(AFTER)]
    waiting = [await client.call("ZCARD", key.delayed) for key in keys]
    bodies = [await client.call("HLEN", key.delayed_bodies) for key in keys]
    assert len(waiting) == len(bodies)
    return sum(waiting) + sum(bodies)


def home_of(key):
    return crc32(key) % AFTER


async def test_what_becomes_due_after_growth_goes_where_its_key_belongs_then(client, topic):
    for number in range(40):
        await topic.send(number, key=f"key-{number % 20}", delay=LONG_S)
    await grow(client)
    async with time_passes(client):
        found = await all_arrived(client, 40)
    places = {field_of(fields, KEY): index for index, fields in found}
    assert places == {key: home_of(key) for key in places}
    assert set(places.values()) > {0, 1}
    for key in places:
        numbers = [int(fields[1]) for _, fields in found if field_of(fields, KEY) == key]
        assert numbers == sorted(numbers)


async def test_a_large_payload_goes_along(client, topic):
    large = os.urandom(LARGE).hex()
    key = next(f"k{n}" for n in range(99) if home_of(b"k%d" % n) >= BEFORE)
    await topic.send(large, key=key, headers={"trace": "t"}, delay=LONG_S)
    await grow(client)
    async with time_passes(client):
        [(index, fields)] = await all_arrived(client, 1)
    assert index == home_of(key.encode())
    seen = []

    async def handle(message: Message):
        seen.append((message.payload, message.headers))

    consumer = Consumer(topic, handle, Subscription(group="group"))
    async with consumer:
        await eventually(lambda: seen == [(large, {"trace": "t"})])
    assert field_of(fields, HEADERS)
    for part in range(BEFORE):
        keys = PartitionKeys.of(client.keys, "later", part)
        assert await client.call("ZCARD", keys.payloads) == 0


async def test_without_a_key_it_stays_and_a_named_partition_is_meant_by_the_new_number(
    client, topic
):
    await topic.send("any", delay=LONG_S)
    await topic.send("named", headers={"x-force-partition-id": "9"}, delay=LONG_S)
    before = [
        await client.call("ZCARD", PartitionKeys.of(client.keys, "later", index).delayed)
        for index in range(BEFORE)
    ]
    await grow(client)
    async with time_passes(client):
        found = {fields[1]: index for index, fields in await all_arrived(client, 2)}
    assert found[b'"named"'] == 9 % AFTER
    assert found[b'"any"'] == (0 if before[0] > (9 % BEFORE == 0) else 1)


class ByLength:
    def partition(self, key, partitions):
        return len(key or "") % partitions


async def test_the_partitioner_of_the_topic_places_it(client):
    topic = make_topic(client, partitioner=ByLength())
    await topic.send(1, key="1234", delay=LONG_S)
    await grow(client)
    async with time_passes(client, topic.partitioner):
        assert [index for index, _ in await all_arrived(client, 1)] == [4]
    await topic.close()


async def place_of_only(client):
    """The partition in which a message waits."""
    [place] = [
        index
        for index in range(AFTER)
        if await client.call("ZCARD", PartitionKeys.of(client.keys, "later", index).delayed)
    ]
    return place


async def test_what_a_partitioner_placed_that_is_not_known_here_stays_where_it_is(client):
    topic = make_topic(client, partitioner=ByLength())
    assert crc32(b"e") % BEFORE == 0
    assert crc32(b"e") % AFTER not in {0, 1}
    await topic.send(1, key="e", delay=LONG_S)
    assert await place_of_only(client) == 1
    await topic.close()
    await grow(client)
    async with time_passes(client):
        assert [index for index, _ in await all_arrived(client, 1)] == [1]


async def test_what_was_placed_by_turns_stays_where_it_is(client):
    topic = make_topic(client, partitioner=RoundRobin())
    await topic.send(1, key="ann", delay=LONG_S)
    place = await place_of_only(client)
    await grow(client)
    async with time_passes(client, topic.partitioner):
        assert [index for index, _ in await all_arrived(client, 1)] == [place]
    await topic.close()


async def test_many_movers_bring_each_message_home_once(client, topic):
    movers = [Mover(client) for _ in range(3)]
    for mover in movers:
        mover.watch("later", AFTER)
        await mover.start()
    await asyncio.gather(*(topic.send(n, key=f"key-{n}", delay=LONG_S) for n in range(300)))
    await grow(client)
    async with time_passes(client):
        found = await all_arrived(client, 300)
    assert sorted(int(fields[1]) for _, fields in found) == list(range(300))
    assert all(index == home_of(field_of(fields, KEY)) for index, fields in found)
    for mover in movers:
        await mover.stop()


async def test_one_that_is_sent_while_its_partition_is_asked_is_not_forgotten(client, monkeypatch):
    async with Mover(client) as mover:
        topic, sent = make_topic(client, mover=mover), []

        async def asked(client, calls):
            replies = await run_together(client, calls)
            if len(sent) < 3:  # after the server has answered that nothing else waits
                sent.append(await topic.send(len(sent) + 1, key="ann", delay=0.01))
            return replies

        monkeypatch.setattr("penstock.topics.delayed.mover.run_together", asked)
        await topic.send(0, key="ann", delay=0.01)
        assert len(await all_arrived(client, 4)) == 4
        await topic.close()


async def test_one_that_was_copied_and_not_yet_dropped_comes_once(client, topic, monkeypatch):
    for number in range(20):
        await topic.send(number, key=f"key-{number}", delay=LONG_S)
    drop, cut = scripts_of(client).drop_delayed, []

    async def cut_off(**told):
        if len(cut) < 2:
            cut.append(told)
            raise OutcomeUnknown("the connection died")
        return await drop(**told)

    monkeypatch.setattr(scripts_of(client), "drop_delayed", cut_off)
    await grow(client)
    async with time_passes(client):
        found = await all_arrived(client, 20)
    assert len(cut) == 2
    assert sorted(int(fields[1]) for _, fields in found) == list(range(20))


async def test_one_that_belongs_by_turns_to_two_partitions_is_kept(client, topic):
    by_turns = {3: 2, 4: 0, 5: 2}
    key = next(
        f"k{n}"
        for n in range(999)
        if {count: crc32(b"k%d" % n) % count for count in (2, *by_turns)} == {2: 0, **by_turns}
    )
    await topic.send("late", key=key, delay=1.9)  # it moves to its new partition while it waits
    waiting = [PartitionKeys.of(client.keys, "later", index).delayed for index in range(AFTER)]
    for count, home in by_turns.items():
        await grow(client, count)
        async with Mover(client) as mover:
            mover.watch("later", count)
            is_home = partial(client.call, "ZCARD", waiting[home])
            await eventually(is_home)
            [id_] = await client.call("ZRANGE", waiting[home], 0, -1)
        seconds, micros = map(int, await client.call("TIME"))
        soon = seconds * 1000 + micros // 1000 + 1_900
        await client.call("ZADD", waiting[home], soon, id_)
    async with Mover(client) as mover:
        mover.watch("later", AFTER)
        await client.call("ZADD", waiting[2], 1, id_)
        assert [index for index, _ in await all_arrived(client, 1)] == [2]


async def test_a_topic_that_was_made_again_with_fewer_partitions_gets_its_own(client):
    admin, keys = TopicAdmin(client, Codec(client.settings.codec)), [f"key-{n}" for n in range(20)]
    async with Mover(client) as mover:
        topic = make_topic(client, mover=mover)
        await topic.metadata()
        await grow(client)
        await topic.send("of a topic that has grown", delay=0.01)
        await all_arrived(client, 1)
        await admin.delete("later")
        await admin.create("later", BEFORE)
        again = make_topic(client, mover=mover)
        for key in keys:
            await again.send(key, key=key, delay=0.01)
        found = await all_arrived(client, len(keys))
        await topic.close()
        await again.close()
    assert all(index == crc32(field_of(fields, KEY)) % BEFORE for index, fields in found)


ODD_BODIES = [
    ["name", KEY.decode(), "{key}", "headers", {"a": 1}, "payload", "1"],
    ["name", KEY.decode(), "{key}", "headers", True, "payload", "1"],
    ["a name\n", KEY.decode(), "{key}", "payload", "1"],
    ["n" * 5_000, KEY.decode(), "{key}", "payload", "1"],
    ["", KEY.decode(), "{key}", "payload", 1.5],
    {1: "", 2: KEY.decode(), 3: "{key}"},
    7,
]


@pytest.mark.parametrize("odd", ODD_BODIES, ids=range(len(ODD_BODIES)))
async def test_what_others_wrote_among_delayed_messages_holds_up_none(client, topic, odd):
    key = next(f"k{n}" for n in range(99) if home_of(b"k%d" % n) >= BEFORE)
    await topic.send("good", key=key, delay=LONG_S)
    stored = PartitionKeys.of(client.keys, "later", crc32(key.encode()) % BEFORE)
    body = msgspec.msgpack.encode(odd).replace(b"\xa5{key}", b"\xa2" + key.encode())
    await client.call("HSET", stored.delayed_bodies, "odd", body)
    await client.call("ZADD", stored.delayed, 1, "odd")
    await grow(client)
    async with time_passes(client):
        found = await all_arrived(client, 2)
    assert (home_of(key.encode()), b'"good"') in [(index, fields[1]) for index, fields in found]


async def test_nothing_passes_the_marker_while_the_topic_grows(client, topic, monkeypatch):
    keys = [f"key-{number}" for number in range(10)]
    for key in keys:
        await topic.send(key, key=key, delay=LONG_S)
    go_on, mark = asyncio.Event(), scripts_of(client).mark_barrier

    async def hesitating(**told):
        marker = await mark(**told)
        await go_on.wait()
        return marker

    with monkeypatch.context() as patch:
        patch.setattr(scripts_of(client), "mark_barrier", hesitating)
        patch.setattr("penstock.topics.admin.growth.OverdueGrowth.complete", not_overdue)
        growing = asyncio.create_task(grow(client))
        assert {crc32(key.encode()) % BEFORE for key in keys} == {0, 1}
        await eventually(
            lambda: client.call("XLEN", PartitionKeys.of(client.keys, "later", 0).stream)
        )
        async with time_passes(client):

            async def is_moved_where_there_is_no_marker():
                return (
                    await client.call("ZCARD", PartitionKeys.of(client.keys, "later", 1).delayed)
                    == 0
                )

            await eventually(is_moved_where_there_is_no_marker)
            assert {index for index, _ in await arrived(client)} == {1}
            go_on.set()
            await growing
            found = await all_arrived(client, 10)
    assert all(index == home_of(field_of(fields, KEY)) for index, fields in found if index != 1)


async def not_overdue(self, facts):
    return False


async def test_a_key_keeps_its_order_from_before_a_growth_to_after_it(client, topic):
    admin, seen = TopicAdmin(client, Codec(client.settings.codec)), {}

    async def handle(message: Message):
        seen.setdefault(message.key, []).append(message.payload)

    consumer = Consumer(topic, handle, Subscription(group="group", ordering="key"))
    keys = [f"key-{number}" for number in range(20)]
    async with consumer:
        for key in keys:
            await topic.send(1, key=key)
            await topic.send(2, key=key, delay=LONG_S)
        await admin.grow("later", AFTER)

        async with time_passes(client):
            await all_arrived(client, 40)
        for key in keys:
            await topic.send(3, key=key)
        await eventually(lambda: sum(map(len, seen.values())) == 60)
    assert seen == {key: [1, 2, 3] for key in keys}


async def test_one_who_knows_an_earlier_number_of_partitions_loses_nothing(client, topic):
    """It would send home what another has brought back, and take that for done."""
    key = next(
        f"k{n}"
        for n in range(999)
        if [crc32(b"k%d" % n) % count for count in (2, 3, 4)] == [0, 1, 0]
    )
    await topic.send("late", key=key, delay=LONG_S)
    await grow(client, 3)
    late = Rehoming(client)
    outdated = await late.know("later")
    await grow(client, 4)
    current = await Rehoming(client).know("later")
    waiting = [PartitionKeys.of(client.keys, "later", index) for index in range(4)]

    async def rows(index):
        keys = waiting[index]
        due = await scripts_of(client).read_due(
            stream=keys.stream,
            delayed=keys.delayed,
            delayed_bodies=keys.delayed_bodies,
            counters=keys.counters,
            count=10,
            ahead_ms=10**9,
        )
        return due.rows

    for _ in range(2):
        assert await late.move(outdated, 0, await rows(0)) is None
        assert await late.move(current, 1, await rows(1)) == ([], [])
    assert [len(await rows(index)) for index in range(4)] == [1, 0, 0, 0]
