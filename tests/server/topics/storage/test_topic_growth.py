"""A topic gets more partitions while it is used."""

import asyncio
import itertools
import time
from zlib import crc32

import msgspec
import pytest
from tests.kit.cut_calls import cut_after
from tests.kit.scripts import scripts_of

from penstock.errors import (
    InvalidMessage,
    TopicError,
    TopicMismatch,
    TopicMissing,
)
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.testing.eventually import eventually
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.consumer.growth_barrier import read_markers
from penstock.topics.dead_letters.dead_letters import DeadLetters
from penstock.topics.dead_letters.letter import bury
from penstock.topics.message import BARRIER, Message, Source, field_of
from penstock.topics.producer.metadata_cache import MetadataCache
from penstock.topics.storage.group_registration import register_group
from penstock.topics.storage.keys import PartitionKeys, TopicKeys
from penstock.topics.storage.metadata import read_metadata
from penstock.topics.subscription import Subscription
from penstock.topics.topic import Topic

QUICK = {"refresh_s": 0.1, "balance_s": 0.05, "lease_ttl_s": 1.5}

pytestmark = pytest.mark.settings(topics=QUICK)


@pytest.fixture
async def admin(client):
    admin = TopicAdmin(client, Codec(CodecSettings()))
    await admin.create("orders", 2)
    return admin


def part(client, index):
    return PartitionKeys.of(client.keys, "orders", index)


async def entries(client, index):
    return await client.call("XRANGE", part(client, index).stream, "-", "+")


async def test_growing_adds_partitions_that_every_group_reads_from_the_beginning(client, admin):
    facts = await read_metadata(client, "orders")
    await register_group(client, facts, "billing", "0")
    await register_group(client, facts, "late", "$")
    await client.call("XGROUP", "CREATE", part(client, 0).stream, "foreign", "$")
    await admin.grow("orders", 5)
    grown = await read_metadata(client, "orders")
    assert (grown.partitions, grown.generation, grown.growing_to) == (5, 2, 0)
    view = await admin.describe("orders")
    assert [part.is_missing for part in view.partitions] == [False] * 5
    assert view.updated_ms
    for index in range(2, 5):
        await client.call("XADD", part(client, index).stream, "*", "payload", "1")
    for group in ("billing", "late", "foreign"):
        lines = (await admin.lag("orders", group)).partitions
        assert [line.lag for line in lines[2:]] == [1, 1, 1]


async def test_each_old_partition_has_one_marker_and_the_facts_name_it(client, admin):
    before = [await client.call("XADD", part(client, 0).stream, "*", "payload", "1")]
    await admin.grow("orders", 4)
    meta = await client.call("HGETALL", TopicKeys.of(client.keys, "orders").meta)
    markers = read_markers(meta)
    assert list(markers) == [2]
    assert sorted(markers[2]) == [0, 1]
    found = [await entries(client, index) for index in range(4)]
    assert [id_ for id_, _ in found[0]] == [*before, markers[2][0]]
    [[id_, fields]] = found[1]
    assert (id_, field_of(fields, BARRIER)) == (markers[2][1], b"2")
    assert found[2:] == [[], []]


async def test_a_topic_can_grow_again(client, admin):
    await admin.grow("orders", 3)
    await admin.grow("orders", 4)
    facts = await read_metadata(client, "orders")
    assert (facts.partitions, facts.generation) == (4, 3)
    meta = await client.call("HGETALL", TopicKeys.of(client.keys, "orders").meta)
    assert {generation: sorted(ids) for generation, ids in read_markers(meta).items()} == {
        2: [0, 1],
        3: [0, 1, 2],
    }


@pytest.mark.parametrize("partitions", [2, 1])
async def test_equal_or_fewer_partitions_are_refused(client, admin, partitions):
    with pytest.raises(TopicError, match="not less"):
        await admin.grow("orders", partitions)
    assert (await read_metadata(client, "orders")).growing_to == 0


@pytest.mark.parametrize("partitions", [0, -1, 10**6, True, 3.0, "4"])
async def test_numbers_that_no_topic_can_have_are_refused(client, admin, partitions):
    with pytest.raises(InvalidMessage):
        await admin.grow("orders", partitions)


async def test_producers_are_told_in_time_and_given_three_refreshes(client, admin):
    started = time.monotonic()
    growing = asyncio.create_task(admin.grow("orders", 4))
    facts = await eventually(lambda: growing_facts(client))
    assert (facts.partitions, facts.growing_to) == (2, 4)
    assert 0 < facts.switch_ms <= 300
    # While producers may still place by the old number there is no marker yet.
    assert await entries(client, 0) == []
    await growing
    assert time.monotonic() - started >= 0.3


async def growing_facts(client):
    facts = await read_metadata(client, "orders")
    return facts if facts.growing_to else None


async def test_no_message_placed_by_the_old_number_stands_behind_the_marker(client, admin):
    """Producers that follow the facts write all the time while the topic grows twice."""
    stop = asyncio.Event()

    async def produce(number):
        known = MetadataCache(client, "orders")
        sent = 0
        try:
            while not stop.is_set():
                facts = await known.get()
                index = (number + sent) % facts.partitions
                fields = ("payload", facts.generation)
                await client.call("XADD", part(client, index).stream, "NOMKSTREAM", "*", *fields)
                sent += 1
                await asyncio.sleep(0.001)
        finally:
            await known.close()
        return sent

    producers = [asyncio.create_task(produce(number)) for number in range(3)]
    await admin.grow("orders", 3)
    await admin.grow("orders", 6)
    await eventually(lambda: entries(client, 5))
    stop.set()
    sent = sum(await asyncio.gather(*producers))
    found = 0
    for index in range(6):
        generation = 1
        for _, fields in await entries(client, index):
            if (marker := field_of(fields, BARRIER)) is not None:
                generation = int(marker)
                continue
            found += 1
            written = int(field_of(fields, b"payload"))
            assert written >= generation
            # A partition that was there before shows the marker before anything newer.
            assert index >= 2 or written == generation
    assert found == sent


async def cut_off(client, admin, calls):
    """Begin to grow to 4 partitions; it fails after so many calls of the server."""
    await register_group(client, await read_metadata(client, "orders"), "billing", "0")
    # Refused; but now the node has the script, and the first call is not spent on loading it.
    meta = TopicKeys.of(client.keys, "orders").meta
    await scripts_of(client).begin_growth(meta=meta, partitions=1, hold_ms=0)
    with cut_after(calls, client):
        await admin.grow("orders", 4, force=True)  # does not look for Java consumers first
    with pytest.raises(TopicError, match="growing to 4"):
        await admin.grow("orders", 5)


async def has_grown_once(client):
    facts = await read_metadata(client, "orders")
    if facts.growing_to:
        return False
    assert (facts.partitions, facts.generation) == (4, 2)
    assert [len(await entries(client, index)) for index in range(4)] == [1, 1, 0, 0]
    return True


@pytest.mark.parametrize("calls", [1, 7])
async def test_a_growth_that_was_cut_off_is_completed_by_the_same_call(client, admin, calls):
    await cut_off(client, admin, calls)
    await admin.grow("orders", 4)
    assert await has_grown_once(client)


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 6, 7, 8, 9])
async def test_a_growth_that_was_cut_off_is_completed_by_producers_that_wait(client, admin, calls):
    producers = [MetadataCache(client, "orders") for _ in range(3)]
    for known in producers:
        assert (await known.get()).partitions == 2
    await cut_off(client, admin, calls)

    async def next_send(known):
        return (await known.get()).partitions == 4  # else by the old number, which is still right

    for known in producers:
        assert await eventually(lambda known=known: next_send(known))
    assert await has_grown_once(client)
    for known in producers:
        await known.close()


async def test_a_growth_that_was_only_announced_is_completed_by_consumers(client, admin):
    topic = Topic(client, Codec(CodecSettings()), "orders")

    async def handle(message):
        del message

    consumers = [Consumer(topic, handle, Subscription(group="billing")) for _ in range(3)]
    for consumer in consumers:
        await consumer.start()
    meta = TopicKeys.of(client.keys, "orders").meta
    await scripts_of(client).begin_growth(meta=meta, partitions=4, hold_ms=100)
    await eventually(lambda: has_grown_once(client))
    owned = {0, 1, 2, 3}
    await eventually(lambda: {one for each in consumers for one in each.partitions} == owned)
    for consumer in consumers:
        await consumer.stop()
    await topic.close()


async def test_a_program_that_declares_the_announced_number_completes_the_growth(client, admin):
    meta = TopicKeys.of(client.keys, "orders").meta
    await scripts_of(client).begin_growth(meta=meta, partitions=4, hold_ms=0)  # and is gone
    codec, seen = Codec(CodecSettings()), []
    topic, other = (Topic(client, codec, "orders", partitions=count) for count in (4, 3))

    async def handle(payload):
        seen.append(payload)

    with pytest.raises(TopicMismatch):
        await other.send("no", key="ann")
    async with Consumer(topic, handle, Subscription(group="billing")):
        await topic.send("yes", key="ann")
        await eventually(lambda: seen == ["yes"])
    facts = await read_metadata(client, "orders")
    assert (facts.partitions, facts.generation, facts.growing_to) == (4, 2, 0)
    await topic.close()


async def test_one_who_completes_a_growth_late_does_not_disturb_the_next_one(
    client, admin, monkeypatch
):
    finish, late = scripts_of(client).finish_growth, asyncio.Event()

    async def delayed(**told):
        if told["generation"] == 2 and not late.is_set():
            late.set()
            await admin.grow("orders", 4)
            await admin.grow("orders", 6)
        return await finish(**told)

    monkeypatch.setattr(scripts_of(client), "finish_growth", delayed)
    await admin.grow("orders", 4)
    facts = await read_metadata(client, "orders")
    assert (facts.partitions, facts.generation, facts.growing_to) == (6, 3, 0)


async def test_two_that_grow_a_topic_alike_do_it_once(client, admin):
    await asyncio.gather(admin.grow("orders", 4), admin.grow("orders", 4))
    facts = await read_metadata(client, "orders")
    assert (facts.partitions, facts.generation) == (4, 2)
    assert [len(await entries(client, index)) for index in range(2)] == [1, 1]


async def test_one_who_waits_while_another_completes_the_same_growth_is_content(
    client, admin, monkeypatch
):
    begin, calls = scripts_of(client).begin_growth, itertools.count()

    async def overtaken(**facts):
        if next(calls) == 1:
            await admin.grow("orders", 4)
        return await begin(**facts)

    monkeypatch.setattr(scripts_of(client), "begin_growth", overtaken)
    await admin.grow("orders", 4)
    facts = await read_metadata(client, "orders")
    assert (facts.partitions, facts.generation, facts.growing_to) == (4, 2, 0)


async def test_a_topic_that_is_deleted_while_it_grows_stays_deleted(client, admin):
    growing = asyncio.create_task(admin.grow("orders", 4))
    await eventually(lambda: growing_facts(client))
    await admin.delete("orders")
    with pytest.raises(TopicMissing):
        await growing
    assert await admin.list() == []


async def test_a_group_that_comes_while_the_topic_grows_reads_the_new_partitions(
    client, admin, monkeypatch
):
    facts = await read_metadata(client, "orders")
    mark = scripts_of(client).mark_barrier

    async def in_between(**keys):
        await register_group(client, facts, "newcomer", "$")
        return await mark(**keys)

    monkeypatch.setattr(scripts_of(client), "mark_barrier", in_between)
    await admin.grow("orders", 3)
    await client.call("XADD", part(client, 2).stream, "*", "payload", "1")
    assert (await admin.lag("orders", "newcomer")).partitions[2].is_missing is False
    assert (await admin.lag("orders", "newcomer")).partitions[2].lag == 1


async def test_a_replay_that_meets_a_growth_sends_the_rest_where_its_keys_belong_then(
    client, admin
):
    """Behind the markers stands nothing that was placed by the old number."""
    await register_group(client, await read_metadata(client, "orders"), "billing", "0")
    for number in range(60):
        key = f"k{number % 12}"
        home = crc32(key.encode()) % 2
        source = Source("orders", home, "billing", msgspec.json.decode)
        fields = [b"payload", b"%d" % number, b"key", key.encode()]
        dead = Message(source, f"1700000000000-{number}".encode(), fields)
        await bury(client, dead, reason="exhausted", attempts=3, failures=())
    letters = DeadLetters(client, Codec(CodecSettings()), "orders")
    replay = asyncio.create_task(letters.replay(rate=100))
    await eventually(lambda: entries(client, 0))
    await admin.grow("orders", 5)
    assert (await replay).replayed == 60
    before, behind = [], []
    for index in range(5):
        told = before if index < 2 else behind
        for _, fields in await entries(client, index):
            if field_of(fields, BARRIER):
                told = behind
                continue
            key = field_of(fields, b"key")
            told.append((key, int(field_of(fields, b"payload"))))
            assert crc32(key) % (2 if told is before else 5) == index
    assert before
    assert behind
    order = dict.fromkeys(key for key, _ in before + behind)
    for key in order:
        numbers = [number for other, number in before + behind if other == key]
        assert numbers == sorted(numbers)
    assert len(before) + len(behind) == 60
