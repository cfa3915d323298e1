"""What is read at once, and what is in hand, is bounded by bytes as well as by number."""

import asyncio
import os

import pytest

from penstock import DeadLetter, Penstock
from penstock.delivery.message_sizes import MessageSizes
from penstock.errors import CommandRefused
from penstock.settings import Settings, TopicSettings, WorkerSettings
from penstock.testing.eventually import eventually
from penstock.topics.consumer.consumer import Consumer
from penstock.topics.storage.keys import PartitionKeys
from penstock.topics.subscription import Subscription

KIB = 1024
LARGE = 100 * KIB


@pytest.fixture
async def open_topic(start_server):
    """`await open_topic(partitions=2, fetch_bytes=…)`: a topic on a server that logs commands."""
    apps = []

    async def open_one(partitions=1, **topics):
        server = start_server("valkey", "--slowlog-log-slower-than", "0")
        server.command("CONFIG", "SET", "slowlog-max-len", "100000")
        settings = Settings(
            url=server.url,
            topics=TopicSettings(**topics),
            worker=WorkerSettings(poll_s=0.2),
        )
        app = await Penstock(settings=settings).__aenter__()
        apps.append(app)
        topic = app.topic("files", partitions=partitions, type=bytes)
        await topic.metadata()
        return server, app, topic

    yield open_one
    for app in apps:
        await app.close()


async def add(app, count, size, partition=0):
    """As a foreign producer does, who keeps large payloads in the stream."""
    stream = PartitionKeys.of(app.redis.keys, "files", partition).stream
    for _ in range(count):
        await app.redis.call("XADD", stream, "*", "payload", b"x" * size)


def commands(server, name):
    """The words of each command of this name that the server has run."""
    logged = [entry[3] for entry in server.command("SLOWLOG", "GET", "-1")]
    return [words for words in reversed(logged) if str(words[0]).upper() == name]


def reads(server):
    """The COUNT of each read."""
    return [int(words[5]) for words in commands(server, "XREADGROUP")]


async def in_hand(app, group="group", partitions=1):
    streams = [
        PartitionKeys.of(app.redis.keys, "files", index).stream for index in range(partitions)
    ]
    replies = await app.redis.pipeline([("XPENDING", stream, group) for stream in streams])
    return sum(reply[0] for reply in replies if not isinstance(reply, CommandRefused))


async def test_large_messages_are_read_in_small_numbers(open_topic):
    server, app, topic = await open_topic(fetch_bytes=5 * LARGE)
    await add(app, 60, LARGE)
    seen = []

    async def handle(payload: bytes) -> None:
        seen.append(len(payload))

    async with Consumer(topic, handle, Subscription(group="group")):
        await eventually(lambda: len(seen) == 60)
    assert max(reads(server)) <= 5
    assert max(reads(server)) >= 4  # and no smaller than need be


async def test_partitions_share_the_bytes_of_a_read(open_topic):
    server, app, topic = await open_topic(partitions=6, fetch_bytes=6 * LARGE)
    for partition in range(6):
        await add(app, 10, LARGE, partition)
    seen = []

    async def handle(payload: bytes) -> None:
        seen.append(len(payload))

    async with Consumer(topic, handle, Subscription(group="group")):
        await eventually(lambda: len(seen) == 60)
    assert max(reads(server)) <= 3  # at most two of each, before sizes are known


async def test_small_messages_are_read_in_large_numbers(open_topic):
    server, _, topic = await open_topic()
    await topic.send_batch([b"x" * 100] * 20_000)
    seen = 0

    async def handle(payload: bytes) -> None:
        nonlocal seen
        seen += 1

    async with Consumer(topic, handle, Subscription(group="group")):
        await eventually(lambda: seen == 20_000)
    assert max(reads(server)) > 1_000


async def test_a_slow_consumer_holds_no_more_bytes_than_it_may(open_topic):
    _, app, topic = await open_topic(fetch_bytes=5 * LARGE, max_inflight_bytes=12 * LARGE)
    await add(app, 100, LARGE)
    go_on, seen = asyncio.Event(), []

    async def handle(payload: bytes) -> None:
        await go_on.wait()
        seen.append(payload)

    async def settled_down():
        before = await in_hand(app)
        await asyncio.sleep(0.1)
        return before > 5 and before == await in_hand(app)

    options = {"ordering": "none", "concurrency": 2}
    async with Consumer(topic, handle, Subscription(group="group", **options)):
        await eventually(settled_down)
        assert 10 <= await in_hand(app) <= 17
        go_on.set()
        await eventually(lambda: len(seen) == 100)


async def test_one_subscription_that_holds_all_bytes_does_not_stop_another(open_topic):
    _, app, topic = await open_topic(fetch_bytes=2 * LARGE, max_inflight_bytes=3 * LARGE)
    await add(app, 10, LARGE)
    go_on, stuck, seen = asyncio.Event(), [], []

    async def wait(payload: bytes) -> None:
        stuck.append(payload)
        await go_on.wait()

    async def handle(payload: bytes) -> None:
        seen.append(payload)

    async with Consumer(topic, wait, Subscription(group="stuck", ordering="none", concurrency=9)):
        await eventually(lambda: len(stuck) > 2)
        async with Consumer(topic, handle, Subscription(group="group")):
            await eventually(lambda: len(seen) == 10)
        go_on.set()
        await eventually(lambda: len(stuck) == 10)


async def test_a_batch_has_no_more_bytes_than_a_read(open_topic):
    _, app, topic = await open_topic(fetch_bytes=5 * LARGE)
    await add(app, 40, LARGE)
    batches = []

    async def handle(payloads: list[bytes]) -> None:
        batches.append(len(payloads))

    async with Consumer(topic, handle, Subscription(group="group", batch=50)):
        await eventually(lambda: sum(batches) == 40)
    assert max(batches) <= 5


async def test_what_an_earlier_owner_left_comes_in_small_pages(open_topic):
    _, app, topic = await open_topic(fetch_bytes=5 * LARGE)
    await add(app, 60, LARGE)
    stream = PartitionKeys.of(app.redis.keys, "files", 0).stream
    await app.redis.call("XGROUP", "CREATE", stream, "group", "0")
    await app.redis.call(
        *("XREADGROUP", "GROUP", "group", "penstock", "COUNT", 60, "STREAMS", stream, ">")
    )
    seen = []

    async def handle(payload: bytes) -> None:
        seen.append(payload)

    wire = await app.redis.wire()
    before, most = wire.received, 0
    async with Consumer(topic, handle, Subscription(group="group")):
        while len(seen) < 60:
            await asyncio.sleep(0)
            most, before = max(most, wire.received - before), wire.received
    assert most < 6 * LARGE


async def test_browsing_large_messages_gives_short_pages(open_topic):
    _, app, _ = await open_topic(partitions=2, fetch_bytes=8 * LARGE)
    await add(app, 20, LARGE, 0)
    await add(app, 20, LARGE, 1)
    cursor, shown = None, []
    while True:
        page = await app.topics.browse("files", limit=30, cursor=cursor)
        assert len(page.messages) <= 4
        shown += [message.id for message in page.messages]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(set(shown)) == len(shown) == 40


async def test_payloads_beside_the_stream_are_shown_a_few_at_a_time(open_topic):
    _, app, topic = await open_topic(fetch_bytes=5 * LARGE)
    bodies = [bytes([65 + number]) + os.urandom(LARGE) for number in range(20)]
    for body in bodies:
        await topic.send(body)
    wire = await app.redis.wire()
    received, most = wire.received, 0

    async def look():
        return (await app.topics.browse("files", limit=20)).messages

    looking = asyncio.create_task(look())
    while not looking.done():
        await asyncio.sleep(0)
        most, received = max(most, wire.received - received), wire.received
    assert [one.payload.size for one in await looking] == [len(body) for body in bodies]
    assert most < 7 * LARGE


async def test_letters_are_listed_and_replayed_a_few_at_a_time(open_topic):
    server, app, topic = await open_topic(fetch_bytes=5 * LARGE)
    await add(app, 30, LARGE)

    async def refuse(payload: bytes) -> None:
        raise DeadLetter

    consumer = Consumer(topic, refuse, Subscription(group="group"))
    async with consumer:
        await eventually(lambda: consumer.counts.dead == 30)
    assert len((await topic.dead_letters.list()).letters) == 30
    assert (await topic.dead_letters.replay()).replayed == 30
    ranges = [
        int(words[-1])
        for words in commands(server, "XRANGE")
        if len(words) == 6 and ":dlq" in str(words[1])
    ]
    assert 4 <= max(ranges) <= 5


def test_the_largest_of_late_count_for_a_while():
    sizes = MessageSizes(1_000)
    assert sizes.fitting() == 1_000
    sizes.note(500, 5)
    assert sizes.fitting() == 10
    assert sizes.fitting(300) == 3
    assert sizes.fitting(-300) == 1
    sizes.note(10, 10)
    assert 10 < sizes.fitting() < 20
    assert MessageSizes(1_000, first=4).fitting() == 4
    for _ in range(40):
        sizes.note(10, 10)
    assert sizes.fitting() == 1_000
