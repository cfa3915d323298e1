"""A plain stream from before the topic is moved into it."""

from itertools import chain
from zlib import crc32

import pytest
from tests.kit.cut_calls import cut_after

from penstock.errors import InvalidName, TopicError
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.topics.admin.adoption import legacy_key
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.message import field_of
from penstock.topics.storage.keys import PartitionKeys


@pytest.fixture
def admin(client):
    return TopicAdmin(client, Codec(CodecSettings()))


async def fill(client, count, key="k{}", keys=5):
    legacy = legacy_key(client, "orders")
    ids = []
    for number in range(count):
        fields = ("payload", number, "key", key.format(number % keys), "retryCount", "0")
        ids.append(await client.call("XADD", legacy, "*", *(fields if key else fields[:2])))
    return ids


async def stored(client, partitions):
    """Payloads by partition, in their order."""
    found = []
    for index in range(partitions):
        stream = PartitionKeys.of(client.keys, "orders", index).stream
        entries = await client.call("XRANGE", stream, "-", "+")
        found.append([int(field_of(fields, b"payload")) for _, fields in entries])
    return found


async def test_a_stream_without_groups_is_moved_whole_and_in_order_by_key(client, admin):
    await fill(client, 250)
    done = await admin.adopt("orders", 4)
    assert (done.moved, done.repeated, done.settled, done.groups) == (250, 0, 0, [])
    found = await stored(client, 4)
    for number in range(250):
        home = crc32(b"k%d" % (number % 5)) % 4
        assert number in found[home]
    assert all(numbers == sorted(numbers) for numbers in found)
    assert await client.call("EXISTS", legacy_key(client, "orders")) == 0
    [line] = await admin.list()
    assert (line.name, line.partitions) == ("orders", 4)


async def test_all_fields_are_kept(client, admin):
    await fill(client, 1)
    await admin.adopt("orders", 1)
    stream = PartitionKeys.of(client.keys, "orders", 0).stream
    [[_, fields]] = await client.call("XRANGE", stream, "-", "+")
    assert fields == [b"payload", b"0", b"key", b"k0", b"retryCount", b"0"]


async def test_only_what_some_group_has_not_settled_is_moved(client, admin):
    legacy = legacy_key(client, "orders")
    ids = await fill(client, 10)
    for group, read, acked in (("fast", 8, (0, 1, 2, 3, 4, 5, 6, 7)), ("slow", 5, (0, 2, 3, 4))):
        await client.call("XGROUP", "CREATE", legacy, group, "0")
        await client.call("XREADGROUP", "GROUP", group, "c", "COUNT", read, "STREAMS", legacy, ">")
        await client.call("XACK", legacy, group, *(ids[number] for number in acked))
    done = await admin.adopt("orders", 2)
    assert (done.moved, done.settled, done.groups) == (6, 4, ["fast", "slow"])
    assert sorted(chain(*await stored(client, 2))) == [1, 5, 6, 7, 8, 9]
    assert [group.lag for group in await admin.groups("orders")] == [6, 6]


async def test_messages_without_a_key_are_spread_and_none_is_lost(client, admin):
    await fill(client, 60, key="")
    assert (await admin.adopt("orders", 3)).moved == 60
    found = await stored(client, 3)
    assert sorted(chain(*found)) == list(range(60))
    assert all(found)


@pytest.mark.parametrize("calls", [6, 9, 12, 60, 120, 160, 219])
async def test_an_adoption_that_was_cut_off_is_completed_without_loss_or_doubles(
    client, admin, calls
):
    legacy = legacy_key(client, "orders")
    await fill(client, 205)
    await client.call("XGROUP", "CREATE", legacy, "billing", "0")
    with cut_after(calls, client):
        await admin.adopt("orders", 2)
    await admin.adopt("orders", 2)
    found = await stored(client, 2)
    assert sorted(chain(*found)) == list(range(205))
    assert (await admin.lag("orders", "billing")).lag == 205
    assert await client.call("EXISTS", legacy) == 0


async def test_what_is_no_stream_is_left_alone(client, admin):
    legacy = legacy_key(client, "orders")
    with pytest.raises(TopicError, match="no stream"):
        await admin.adopt("orders")
    await client.call("RPUSH", legacy, "job")
    with pytest.raises(TopicError, match="a list"):
        await admin.adopt("orders")
    assert await client.call("LLEN", legacy) == 1
    assert not await admin.exists("orders")


async def test_a_group_name_that_we_cannot_keep_stops_it_before_anything_is_moved(client, admin):
    await fill(client, 3)
    await client.call("XGROUP", "CREATE", legacy_key(client, "orders"), "a:b", "0")
    with pytest.raises(InvalidName):
        await admin.adopt("orders")
    assert await client.call("XLEN", legacy_key(client, "orders")) == 3
    assert not await admin.exists("orders")


async def test_a_topic_that_has_messages_gets_the_old_ones_too(client, admin):
    await admin.create("orders", 1)
    stream = PartitionKeys.of(client.keys, "orders", 0).stream
    await client.call("XADD", stream, "*", "payload", "100")
    await fill(client, 2)
    await admin.adopt("orders")
    assert await stored(client, 1) == [[100, 0, 1]]
