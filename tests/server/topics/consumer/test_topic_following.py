"""Looking on while messages come in."""

import asyncio

import pytest

from penstock.errors import InvalidMessage, TopicMissing
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
from penstock.topics.admin.topic_admin import TopicAdmin
from penstock.topics.storage.keys import PartitionKeys

pytestmark = pytest.mark.settings(topics={"refresh_s": 0.05})


@pytest.fixture
def admin(client):
    return TopicAdmin(client, Codec(CodecSettings()))


async def add(client, index, *fields):
    stream = PartitionKeys.of(client.keys, "orders", index).stream
    return (await client.call("XADD", stream, "*", *fields)).decode()


async def take(following, count):
    """So many messages, and the lists that they came in."""
    shown = []
    async with asyncio.timeout(60):
        while len(shown) < count:
            shown += await anext(following)
    return shown


async def test_what_is_there_comes_first_in_the_order_of_ids(client, admin):
    await admin.create("orders", 3)
    ids = [
        f"{number % 3}-{await add(client, number % 3, 'payload', str(number))}"
        for number in range(250)
    ]
    following = admin.follow("orders", start="earliest")
    shown = await take(following, 250)
    assert sorted(view.id for view in shown) == sorted(ids)
    for index in range(3):
        own = [int(view.payload.text) for view in shown if view.partition == index]
        assert own == list(range(index, 250, 3))
    assert await anext(following) == []
    await following.aclose()


async def test_from_now_on_means_only_what_comes_later(client, admin):
    await admin.create("orders", 2)
    await add(client, 0, "payload", "before")
    following = admin.follow("orders")
    assert await anext(following) == []
    await add(client, 0, "payload", "after", "key", "k")
    await add(client, 1, "payload", "other")
    shown = await take(following, 2)
    assert {view.payload.text for view in shown} == {"after", "other"}
    await following.aclose()


async def test_one_partition_alone(client, admin):
    await admin.create("orders", 2)
    await add(client, 0, "payload", "0")
    await add(client, 1, "payload", "1")
    following = admin.follow("orders", 1, start="0")
    assert [view.payload.text for view in await anext(following)] == ["1"]
    assert await anext(following) == []
    await following.aclose()
    for wrong in (2, -1):
        with pytest.raises(InvalidMessage, match="partitions 0 to 1"):
            await anext(admin.follow("orders", wrong))


async def test_partitions_that_come_by_growth_are_followed(client, admin):
    await admin.create("orders", 1)
    following = admin.follow("orders")
    assert await anext(following) == []
    await admin.grow("orders", 2)
    await add(client, 1, "payload", "new")
    shown = await take(following, 2)
    assert {(view.partition, view.barrier, view.payload.text) for view in shown} == {
        (0, 2, ""),
        (1, None, "new"),
    }
    await following.aclose()


async def test_a_topic_that_is_not_there_or_goes(client, admin):
    with pytest.raises(TopicMissing):
        await anext(admin.follow("orders"))
    await admin.create("orders", 1)
    following = admin.follow("orders")
    assert await anext(following) == []
    await admin.delete("orders")
    with pytest.raises(TopicMissing):
        await take(following, 1)


async def test_bytes_that_are_no_text_are_shown_as_they_are(client, admin):
    await admin.create("orders", 1)
    await add(client, 0, "payload", b"\xff\x00")
    [view] = (await admin.browse("orders")).messages
    assert (view.payload.text, view.payload.raw) == ("\\xff\x00", b"\xff\x00")
