"""Topics as people see and change them: made, listed, shown, trimmed, browsed, deleted."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.kit.cut_calls import cut_after
from tests.kit.scripts import scripts_of

from penstock.errors import (
    CommandRefused,
    InvalidMessage,
    InvalidName,
    OutcomeUnknown,
    TopicMismatch,
    TopicMissing,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.node import Role
from penstock.settings import CodecSettings, Settings, TimeoutSettings
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.dead_letters.letter import bury
from penstock.topics.message import Message, Source
from penstock.topics.storage.group_registration import register_group
from penstock.topics.storage.keys import PartitionKeys, TopicKeys, TopicsKeys
from penstock.topics.storage.metadata import Retention, open_partitions, read_metadata
from penstock.topics.storage.scripts import PublishKeys


@pytest.fixture
def admin(client):
    return TopicAdmin(client, Codec(CodecSettings()))


def stream(client, index, topic="orders"):
    return PartitionKeys.of(client.keys, topic, index).stream


async def add(client, index, *fields, id_="*"):
    return (await client.call("XADD", stream(client, index), id_, *fields)).decode()


async def register(client, group, start="0"):
    await register_group(client, await read_metadata(client, "orders"), group, start)


async def all_keys(client, namespace):
    """Every key of the test, on every node."""
    found = set()
    for node in await client.primaries():
        wire = await node.wire(Role.DEFAULT)
        cursor = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", f"{namespace}::*", "COUNT", 1000)
            [[cursor, keys]] = await wire.call_many([command])
            found.update(keys)
            if cursor == b"0":
                break
    return found


async def test_a_topic_is_made_once_listed_and_shown(client, admin):
    assert await admin.list() == []
    assert not await admin.exists("orders")
    made = await admin.create("orders", 3, Retention(max_length=100))
    assert made.created
    assert not (await admin.create("orders", 3)).created
    with pytest.raises(TopicMismatch):
        await admin.create("orders", 4)
    assert await admin.exists("orders")
    [line] = await admin.list()
    assert (line.name, line.partitions, line.generation) == ("orders", 3, 1)
    view = await admin.describe("orders")
    assert [part.index for part in view.partitions] == [0, 1, 2]
    assert view.options.retention == Retention(max_length=100)
    assert (view.length, view.dead_letters, view.groups) == (0, 0, [])
    assert view.created_ms
    assert view.partitions[0].first_id is None


async def test_a_description_tells_what_is_in_each_partition(client, admin):
    await admin.create("orders", 2)
    first, last = [await add(client, 1, "payload", "x" * 100) for _ in range(2)]
    keys = PartitionKeys.of(client.keys, "orders", 1)
    await client.call("ZADD", keys.delayed, 1, "d-1")
    await client.call("HSET", keys.counters, "lost", 7)
    await register(client, "billing")
    await client.call("XGROUP", "CREATE", keys.stream, "foreign", "0")
    await client.call("XADD", TopicKeys.of(client.keys, "orders").dlq, "*", "payload", "1")
    view = await admin.describe("orders")
    part = view.partitions[1]
    assert (part.length, part.first_id, part.last_id) == (2, f"1-{first}", f"1-{last}")
    assert part.bytes > 200
    assert (part.delayed, part.lost, view.delayed, view.lost) == (1, 7, 1, 7)
    assert (view.length, view.dead_letters) == (2, 1)
    assert view.groups == ["billing", "foreign"]


async def test_what_is_not_there_is_said_to_be_missing(client, admin):
    for look in (
        admin.describe("nowhere"),
        admin.browse("nowhere"),
        admin.trim("nowhere"),
        admin.set_retention("nowhere", Retention(max_length=1)),
        admin.groups("nowhere"),
        admin.pending("nowhere", "billing"),
        admin.grow("nowhere", 3),
    ):
        with pytest.raises(TopicMissing):
            await look
    assert not await admin.delete("nowhere")
    assert await admin.list() == []


@pytest.mark.parametrize("name", ["", "a:b", "a{b}", "a b", "a*", "x" * 300])
async def test_names_that_would_harm_keys_are_refused(valkey_server, namespace, name):
    async with Client(Settings(url=valkey_server.url, namespace=namespace)) as client:
        admin = TopicAdmin(client, Codec(CodecSettings()))
        for act in (admin.create(name), admin.describe(name), admin.delete(name)):
            with pytest.raises(InvalidName):
                await act


async def test_a_server_that_cannot_be_asked_is_an_error_not_an_empty_list(start_server, namespace):
    server = start_server()
    settings = Settings(
        url=server.url, namespace=namespace, timeouts=TimeoutSettings(connect_s=0.5, command_s=0.5)
    )
    async with Client(settings) as client:
        admin = TopicAdmin(client, Codec(CodecSettings()))
        await admin.create("orders", 2)
        server.kill()
        for look in (admin.list(), admin.describe("orders"), admin.exists("orders")):
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await look


async def test_a_registered_name_without_facts_is_shown_as_not_whole(client, admin):
    await client.call("SADD", TopicsKeys.of(client.keys).registry, "half", "not a name")
    await admin.create("orders")
    lines = {line.name: line.partitions for line in await admin.list()}
    assert lines == {"half": 0, "not a name": 0, "orders": 1}


async def test_the_retention_of_a_topic_can_be_changed(client, admin):
    await admin.create("orders", 1, Retention(max_length=5))
    await admin.set_retention("orders", Retention(max_age_s=60))
    view = await admin.describe("orders")
    assert view.options.retention == Retention(max_age_s=60)
    assert view.updated_ms


# --- trimming


async def test_trimming_keeps_what_a_group_still_needs(client, admin):
    await admin.create("orders", 2)
    await register(client, "billing")
    for index in range(2):
        for number in range(1000):
            await add(client, index, "payload", number)
    read = ("XREADGROUP", "GROUP", "billing", "penstock", "COUNT", 400, "STREAMS")
    [[_, delivered]] = await client.call(*read, stream(client, 0), ">")
    await client.call("XACK", stream(client, 0), "billing", *(id_ for id_, _ in delivered[:300]))
    done = await admin.trim("orders", max_length=10)
    assert (done.dropped, done.lost) == (300, 0)
    assert [part.length for part in (await admin.describe("orders")).partitions] == [700, 1000]


async def test_a_hard_trim_drops_what_is_needed_and_counts_it(client, admin):
    await admin.create("orders", 1)
    await register(client, "billing")
    for number in range(50):
        await add(client, 0, "payload", number)
    with pytest.raises(ValueError, match="max_length"):
        await admin.trim("orders", hard=True)
    done = await admin.trim("orders", max_length=10, hard=True)
    assert (done.dropped, done.lost) == (40, 40)
    assert (await admin.describe("orders")).lost == 40


async def test_trimming_without_limits_applies_the_topics_own_retention(client, admin):
    await admin.create("orders", 1, Retention(max_length=5))
    for number in range(20):
        await add(client, 0, "payload", number)
    assert (await admin.trim("orders")).dropped == 15
    assert (await admin.trim("orders", max_age_s=3600)).dropped == 0


# --- browsing


async def test_messages_of_all_partitions_are_merged_by_id_and_paged(client, admin):
    await admin.create("orders", 3)
    wanted = []
    for number in range(1, 30):
        partition = number % 3
        await add(client, partition, "payload", number, id_=f"{number // 4 + 1}-{number}")
        wanted.append(str(number))
    # The same id in two partitions is told apart by the partition.
    await add(client, 0, "payload", "30", id_="100-1")
    await add(client, 1, "payload", "31", id_="100-1")
    wanted += ["30", "31"]
    for reverse in (False, True):
        seen, cursor = [], None
        while True:
            page = await admin.browse("orders", limit=7, reverse=reverse, cursor=cursor)
            seen += [message.payload.text for message in page.messages]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == (wanted[::-1] if reverse else wanted)
    for reverse, first, then in ((False, 30, "31"), (True, 1, "30")):
        page = await admin.browse("orders", limit=first, reverse=reverse)
        page = await admin.browse("orders", limit=1, reverse=reverse, cursor=page.cursor)
        assert [message.payload.text for message in page.messages] == [then]
    assert [message.payload.text for message in await admin.recent("orders", 2)] == ["31", "30"]
    one = await admin.browse("orders", 1, start="2", end="3")
    assert {message.partition for message in one.messages} == {1}
    assert {message.sent_ms for message in one.messages} == {2, 3}


async def test_messages_are_found_by_time(client, admin):
    await admin.create("orders", 2)
    moment = datetime(2026, 7, 1, 8, tzinfo=UTC)
    ms = int(moment.timestamp() * 1000)
    for offset in (-1, 0, 1):
        await add(client, offset % 2, "payload", offset, id_=f"{ms + offset}-5")
    page = await admin.browse("orders", start=moment, end=moment + timedelta(milliseconds=1))
    assert [message.payload.text for message in page.messages] == ["0", "1"]
    with pytest.raises(ValueError, match="time zone"):
        await admin.browse("orders", start=datetime(2026, 7, 1))  # noqa: DTZ001
    with pytest.raises(CommandRefused):
        await admin.browse("orders", start="yesterday")
    with pytest.raises(InvalidMessage):
        await admin.browse("orders", 2)
    with pytest.raises(InvalidMessage):
        await admin.browse("orders", cursor="x")


async def test_a_message_is_shown_whole_unpacked_and_readable(client, admin):
    await admin.create("orders", 1)
    codec = Codec(CodecSettings())
    await add(client, 0, "payload", codec.encode(["x" * 5000]), "key", "k", "headers", '{"a":"b"}')
    await add(client, 0, "payload", b"\xff\x00", "targetGroup", "billing")
    await add(client, 0, "colour", "blue")
    await add(client, 0, "barrier", 2)
    packed, binary, foreign, barrier = (await admin.browse("orders")).messages
    assert packed.payload.text == '["' + "x" * 5000 + '"]'
    assert (packed.key, packed.headers, packed.payload.size) == ("k", {"a": "b"}, 5004)
    assert not binary.payload.is_text
    assert binary.target_group == "billing"
    assert foreign.payload.is_missing
    assert foreign.fields == {"colour": "blue"}
    assert barrier.barrier == 2
    [short] = (await admin.browse("orders", limit=1, max_bytes=10)).messages
    assert (short.payload.text, short.payload.is_cut) == ('["xxxxxxxx', True)


async def test_large_payloads_are_shown_or_flagged_as_gone(client, admin):
    await admin.create("orders", 1)
    keys = PartitionKeys.of(client.keys, "orders", 0)
    await client.call("SET", keys.payload("there"), b"z" * 200_000)
    for name in ("there", "gone"):
        reference = {"x-payload-storage-type": "hash", "x-payload-hash-ref": keys.payload(name)}
        await add(client, 0, "headers", msgspec.json.encode(reference))
    there, gone = (await admin.browse("orders", max_bytes=100)).messages
    assert (there.payload.text, there.payload.size) == ("z" * 100, 200_000)
    assert there.payload.is_cut
    assert there.headers == {}
    assert gone.payload.is_missing


# --- deleting


async def fill(client):
    """Leave something under every key that a topic can have."""
    registered = ("billing", "mail")
    for group in registered:
        await register(client, group)
    keys = TopicKeys.of(client.keys, "orders")
    await scripts_of(client).beat_member(
        members=keys.members("billing"),
        member_info=keys.member_info("billing"),
        meta=keys.meta,
        member="me",
        about=b"{}",
        ttl_ms=10_000,
    )
    for index in range(3):
        part = PartitionKeys.of(client.keys, "orders", index)
        for number in range(2):
            await scripts_of(client).publish_message(
                keys=PublishKeys.of(part, f"body{number}"),
                idempotency_key=f"once{number}",
                remember_ms=60_000,
                payload_name=f"body{number}",
                body=b"large",
                waiting_id=f"d-{number}" if number else "",
                wait_ms=60_000,
                fields=("payload", "1"),
            )
        epoch = await client.call("HINCRBY", part.epochs, "billing", 1)
        await client.call("SET", part.lease("billing"), "me", "PX", 60_000)
        fence = part.fence("billing", epoch)
        await client.call("XGROUP", "CREATE", fence, "billing", "$", "MKSTREAM")
        await client.call("ZADD", part.retry("billing"), 1, "1-1")
        await client.call("HSET", part.failures("billing"), "1-1", "[]")
        await client.call("HSET", part.commit, "billing", "1-1")
        await client.call("HSET", part.counters, "lost", 1)
        await client.call("XGROUP", "CREATE", part.stream, "foreign", "0")
        await client.call("SET", part.lease("foreign"), "java", "PX", 60_000)
    source = Source(topic="orders", partition=0, group="billing", decode=bytes)
    await bury(client, Message(source, b"1-1", [b"payload", b"1"]), reason="fatal", attempts=1)
    await client.call("XADD", keys.audit, "*", "who", "me")
    item = keys.java_retry_item("7")
    await client.call("HSET", item, "topic", "orders")
    await client.call("ZADD", keys.java_retry, 1, item)
    await client.call("HSET", keys.java_retry_lock, "me", 1)
    java_payload = PartitionKeys.of(client.keys, "orders", 1).payload("java")
    await client.call("SET", java_payload, "large")
    await client.call("SADD", keys.payload_index, java_payload)
    await client.call("ZADD", TopicsKeys.of(client.keys).payload_times, 1, java_payload)


async def test_deleting_a_topic_leaves_no_key_behind(client, admin, namespace):
    await admin.create("orders", 3)
    await fill(client)
    assert len(await all_keys(client, namespace)) > 50
    assert await admin.delete("orders")
    assert await all_keys(client, namespace) == set()
    assert not await admin.delete("orders")
    with pytest.raises(TopicMissing):
        await admin.describe("orders")


async def test_deleting_a_topic_leaves_its_neighbours_alone(client, admin):
    await admin.create("orders", 2)
    await admin.create("orders.archive", 2)
    victim = PartitionKeys.of(client.keys, "orders.archive", 0).payload("body")
    await client.call("SET", victim, "large")
    # A list that names what belongs to others is not believed.
    await client.call("SADD", TopicKeys.of(client.keys, "orders").payload_index, victim)
    await client.call("ZADD", TopicKeys.of(client.keys, "orders").java_retry, 1, victim)
    await admin.delete("orders")
    assert [line.name for line in await admin.list()] == ["orders.archive"]
    assert await client.call("EXISTS", victim) == 1
    assert len((await admin.describe("orders.archive")).partitions) == 2


@pytest.mark.parametrize("calls", [1, 4, 8, 12, 16, 20, 24, 28])
async def test_a_deletion_that_was_cut_off_is_completed_by_the_next(
    client, admin, namespace, calls
):
    await admin.create("orders", 3)
    await fill(client)
    with cut_after(calls, client):
        await admin.delete("orders")
    assert [line.name for line in await admin.list()] == ["orders"]
    assert await admin.delete("orders")
    assert await all_keys(client, namespace) == set()


async def test_a_topic_deleted_while_it_grows_leaves_nothing_either(client, admin, namespace):
    await admin.create("orders", 2)
    meta = TopicKeys.of(client.keys, "orders").meta
    await scripts_of(client).begin_growth(meta=meta, partitions=4, hold_ms=0)
    await open_partitions(client, "orders", range(3, 4))
    await admin.delete("orders")
    assert await all_keys(client, namespace) == set()


async def test_a_group_that_comes_back_while_the_topic_is_deleted_does_not_stay(
    client, admin, namespace, monkeypatch
):
    await admin.create("orders", 2)
    facts = await read_metadata(client, "orders")
    drop = scripts_of(client).drop_partition
    came_back = False

    async def too_early(**keys):
        nonlocal came_back
        if not came_back:
            came_back = True
            await register_group(client, facts, "billing", "0")
            part = PartitionKeys.of(client.keys, "orders", 0)
            await scripts_of(client).acquire_partition(
                lease=part.lease("billing"),
                epochs=part.epochs,
                group="billing",
                owner="me",
                ttl_ms=60_000,
                fences=part.fence("billing", 0).removesuffix("0"),
                dead_owner="",
            )
        return await drop(**keys)

    monkeypatch.setattr(scripts_of(client), "drop_partition", too_early)
    await admin.delete("orders")
    assert came_back
    assert await all_keys(client, namespace) == set()
