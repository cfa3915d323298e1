"""Batches go on exactly once, into queues that may be full and topics that may be gone."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.lifecycle import check_lifecycle
from tests.kit.windows import LONG, events_of, jobs_in, messages_in, window

from penstock import Penstock, block
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.keys import WindowsKeys
from penstock.coordination.windows.window import Window
from penstock.errors import (
    NotOpen,
    OutOfMemory,
    QueueFull,
    SettingError,
    TopicMissing,
)
from penstock.queues.storage.keys import QueuesKeys
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import ServerProcess
from penstock.topics.storage.keys import PartitionKeys

# ---- full queues


async def test_while_a_queue_is_full_batches_stay_open_and_take_what_fits(app):
    queue = app.queue("batches", max_size=1, overflow="reject")
    gather = Window(app.redis, app.codec, "gather", to=queue, max_age=0.001, idle=10, max_items=3)
    await queue.push("in the way")
    closer = WindowCloser(app.redis, app.codec, [gather])
    added = [await gather.add("a", number) for number in range(3)]
    assert {one.batch_id for one in added} == {added[0].batch_id}
    assert {one.closed for one in added} == {None}
    assert await closer.look() == 0
    with pytest.raises(QueueFull):
        await gather.add("a", 3)
    with pytest.raises(QueueFull):
        await gather.close("a")
    assert (await gather.batch("a")).count == 3
    await app.redis.call("LPOP", queue.keyring.waiting)
    assert await closer.look() == 1
    assert [job["items"] for job in await jobs_in(app)] == [[0, 1, 2]]
    counters = await app.redis.call("HGETALL", queue.keyring.counters)
    assert b"rejected" not in counters[::2]


async def test_an_item_that_needs_room_waits_for_it_where_the_queue_says_so(app):
    queue = app.queue("batches", max_size=1, overflow=block(5))
    gather = window(app, max_items=1)
    await queue.push("in the way")
    await gather.add("a", 0)
    waiting = asyncio.create_task(gather.add("a", 1))
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    await app.redis.call("LPOP", queue.keyring.waiting)
    assert (await waiting).size == 1
    impatient = Window(
        app.redis, app.codec, "other", to=app.queue("short", max_size=1, overflow=block(0.02)),
        max_items=1,
    )  # fmt: skip
    await impatient.add("a", 0)
    await impatient.add("a", 1)
    with pytest.raises(QueueFull):
        await impatient.add("a", 2)


@pytest.mark.parametrize("policy", ["dlq", "drop_oldest"])
async def test_a_batch_pushes_the_oldest_job_out_where_the_queue_says_so(app, policy):
    queue = app.queue("batches", max_size=2, overflow=policy, status=True)
    kept = await queue.push({"text": "x" * 5_000, "n": 1})
    gather = window(app)
    for number in range(2):
        await gather.add("a", number)
        await gather.close("a")
    assert [job["items"] for job in await jobs_in(app)] == [[0], [1]]
    aside = await app.redis.call("LLEN", queue.keyring.overflow)
    assert aside == (1 if policy == "dlq" else 0)
    # A compressed job's record is closed by the caller, since the script cannot read it.
    assert (await app.queues.job("batches", kept.job_id)).status == "failed"


async def test_what_is_said_of_the_queue_later_holds_for_batches_too(app):
    gather = window(app, max_items=1)
    closer = WindowCloser(app.redis, app.codec, [gather])
    await gather.add("a", 0)
    app.queue("batches", max_size=1, overflow="reject")
    await gather.add("a", 1)
    with pytest.raises(QueueFull):
        await gather.add("a", 2)
    assert gather.record.queue_size == 1
    await app.redis.call("ZADD", (await gather.target.stores())[0].index.due, 1, "gather%1Fa")
    assert await closer.look() == 0


async def test_batches_count_in_a_queue_limited_by_bytes(app):
    queue = app.queue("batches", max_bytes=20_000, overflow="reject")
    gather = window(app, max_bytes=4_000)
    await queue.push("x" * 900)
    await gather.add("a", "y" * 3_000)
    await gather.close("a")
    stored = await app.redis.call("LRANGE", queue.keyring.waiting, 0, -1)
    told = await app.redis.call("HGET", queue.keyring.state, "bytes")
    assert int(told) == sum(map(len, stored))
    for _ in range(5):
        await gather.add("a", "y" * 3_500)
    with pytest.raises(QueueFull):
        await gather.add("a", "y" * 3_500)
    assert (await gather.batch("a")).count == 1


async def test_batches_go_to_the_side_where_the_queue_is_pushed(app):
    app.queue("batches", push="left")
    gather = window(app, max_items=1)
    await gather.add("a", 0)
    await gather.add("a", 1)
    assert [job["items"] for job in await jobs_in(app)] == [[1], [0]]


# ---- topics


async def test_batches_become_messages_in_the_partition_of_their_key(app, consume):
    topic = app.topic("grouped", partitions=4)
    gather = Window(app.redis, app.codec, "gather", to=topic, max_age=0.2, idle=10)
    keys = [f"k{number}" for number in range(20)]
    for number, key in enumerate(keys):
        await gather.add(key, number)
        await gather.add(key, -number)
    assert len(await gather.open_batches()) == len(keys)
    seen = {}

    async def handle(batch: dict) -> None:
        seen[batch["key"]] = batch

    await consume(topic, handle)
    async with WindowCloser(app.redis, app.codec, [gather]):
        await eventually(lambda: len(seen) == len(keys))
    assert [seen[key]["items"] for key in keys] == [[n, -n] for n in range(20)]
    for partition in range(4):
        for key, batch in await messages_in(app, "grouped", partition):
            assert topic.partitioner.partition(key, 4) == partition
            assert batch["key"] == key


async def test_a_topic_takes_nothing_fast_and_no_batches_as_the_java_library_writes(app):
    gather = Window(app.redis, app.codec, "gather", to=app.topic("grouped", partitions=1))
    with pytest.raises(SettingError, match="queue"):
        await gather.add("a", 1, fast=True)
    with pytest.raises(SettingError, match="interop"):
        Window(app.redis, app.codec, "java", to=app.topic("java", interop=True))


async def test_a_partition_that_is_missing_is_made_again(app):
    topic = app.topic("grouped", partitions=1)
    gather = Window(app.redis, app.codec, "gather", to=topic, **LONG)
    stream = PartitionKeys.of(app.redis.keys, "grouped", 0).stream
    await gather.add("a", 1)
    await app.redis.call("DEL", stream)
    await gather.add("a", 2)
    await app.redis.call("DEL", stream)
    place = (await gather.target.stores())[0]
    await app.redis.call("ZADD", place.index.due, 1, "gather%1Fa")
    closer = WindowCloser(app.redis, app.codec, [gather])
    assert await closer.look() == 0
    assert await closer.look() == 1
    assert [batch["items"] for _, batch in await messages_in(app, "grouped", 0)] == [[1, 2]]


async def test_nothing_brings_back_a_topic_that_was_deleted(app, open_app, place):
    topic = app.topic("grouped", partitions=2)
    gather = Window(app.redis, app.codec, "gather", to=topic, max_age=0.001)
    await gather.add("a", 1)
    await app.topics.delete("grouped")
    with pytest.raises(TopicMissing):
        await gather.add("a", 2)
    stranger = await open_app(place)
    for closer in (
        WindowCloser(app.redis, app.codec, [gather]),
        WindowCloser(stranger.redis, stranger.codec),
    ):
        assert await closer.look() == 0
    assert not await stranger.topics.exists("grouped")


async def test_batches_are_closed_in_partitions_that_came_later(open_app, place):
    app = await open_app(place, refresh_s=0.2)
    topic = app.topic("grouped", partitions=1)
    gather = Window(app.redis, app.codec, "gather", to=topic, max_age=0.001)
    closer = WindowCloser(app.redis, app.codec, [gather])
    await gather.add("a", 0)
    assert await eventually(closer.look) == 1
    await app.topics.grow("grouped", 4)

    async def all_are_used():
        for number in range(16):
            await gather.add(f"k{number}", number)
        await closer.look()
        return all([await messages_in(app, "grouped", partition) for partition in range(4)])

    await eventually(all_are_used)


# ---- events


async def test_what_happens_to_batches_is_told_in_numbered_events(app):
    gather = window(app, max_items=2)
    place = (await gather.target.stores())[0]
    first = await gather.add("a", 1)
    await gather.add("a", 2)
    await gather.add("b", 3, fast=True)
    told = await events_of(place, app)
    assert [(id_, what) for id_, what, _ in told] == [
        ("1-0", "open"),
        ("2-0", "closed"),
        ("3-0", "fast"),
    ]
    assert told[0][2]["key"] == "a"
    assert told[1][2]["batch_id"] == first.batch_id
    assert (told[1][2]["count"], told[1][2]["reason"]) == (2, "max_size")
    state = await app.redis.call("HGETALL", place.index.state)
    assert dict(zip(state[::2], state[1::2], strict=True)) == {
        b"seq": b"3",
        b"closed_max_size": b"1",
        b"fast": b"1",
    }


async def test_readers_follow_what_happens_to_batches(app):
    gather = app.window("gather", to=app.queue("batches"), max_items=2, **LONG)
    await gather.add("a", 1)
    seen = []
    async for event in (await gather.feed()).read(after=0):
        seen.append((event.number, event.type, event.data["key"], event.data["count"]))
        if event.type == "open":
            await gather.add("a", 2)
        else:
            break
    assert seen == [(1, "open", "a", 1), (2, "closed", "a", 2)]
    grouped = app.window("grouped", to=app.topic("grouped", partitions=2), **LONG)
    await grouped.add("k", 1)
    with pytest.raises(SettingError, match="partition"):
        await grouped.feed()
    assert (await (await grouped.feed("k")).snapshot()).number == 1
    with pytest.raises(NotOpen):
        await window(app).feed()


async def test_events_go_on_after_the_last_one_when_its_number_is_lost(app):
    gather = window(app, max_items=1)
    place = (await gather.target.stores())[0]
    await gather.add("a", 1)
    await app.redis.call("DEL", place.index.state)
    await gather.add("a", 2)
    assert [id_ for id_, _, _ in await events_of(place, app)] == ["1-0", "2-0", "3-0", "4-0"]


async def test_a_hint_is_published_for_every_event(valkey_server, open_app):
    app = await open_app(valkey_server)
    gather = window(app)
    place = (await gather.target.stores())[0]
    stock = await app.redis.redis_py()
    async with stock.pubsub() as hints:
        await hints.subscribe(place.index.events)
        await hints.get_message(timeout=5)
        await gather.add("a", 1)
        told = await hints.get_message(ignore_subscribe_messages=True, timeout=5)
    assert told["data"] == b"1"


# ---- closing by others


async def test_a_worker_closes_windows_of_which_it_has_no_code(app, open_app, place):
    gather = window(app, max_age=0.1, items_field="things")
    topic = app.topic("grouped", partitions=2)
    other = Window(app.redis, app.codec, "other", to=topic, max_age=0.1)
    await gather.add("a", 1)
    await other.add("b", 2)
    stranger = await open_app(place)
    async with WindowCloser(stranger.redis, stranger.codec) as closer:
        await eventually(lambda: closer.closed == 2)
    [job] = await jobs_in(app)
    assert job["things"] == [1]
    found = [*await messages_in(app, "grouped", 0), *await messages_in(app, "grouped", 1)]
    assert [(key, batch["items"]) for key, batch in found] == [("b", [2])]


async def test_a_record_that_cannot_be_read_keeps_no_other_window_open(app, namespace, caplog):
    registry = WindowsKeys.of(app.redis.keys).registry
    bad, worse = f"bad queue {namespace}", f"worse queue {namespace}"  # told once in ten seconds
    await app.redis.call("HSET", registry, bad, "{", worse, '{"name": "worse"}')
    gather = window(app, max_age=0.001)
    await gather.add("a", 1)
    assert await eventually(WindowCloser(app.redis, app.codec).look) == 1
    assert bad in caplog.text
    assert worse in caplog.text


async def test_many_closers_close_each_batch_once(app, open_app, place):
    gather = window(app, max_age=0.2)
    keys = [f"k{number}" for number in range(120)]
    added = await asyncio.gather(*(gather.add(key, key) for key in keys))
    others = [await open_app(place) for _ in range(3)]
    closers = [WindowCloser(one.redis, one.codec) for one in (app, *others)]
    for closer in closers:
        await closer.start()
    await eventually(lambda: sum(closer.closed for closer in closers) >= len(keys))
    for closer in closers:
        await closer.stop()
    jobs = await jobs_in(app)
    assert sorted(job["batch_id"] for job in jobs) == sorted(one.batch_id for one in added)
    assert sorted(job["items"][0] for job in jobs) == sorted(keys)


@pytest.mark.faults
async def test_a_node_that_is_away_holds_up_its_own_batches_alone(start_cluster, namespace):
    cluster = start_cluster(primaries=3)
    patient = TimeoutSettings(connect_s=90.0, command_s=90.0)
    settings = Settings(url=cluster.url, namespace=namespace, timeouts=patient)
    async with Penstock(settings=settings) as app:
        gather = Window(
            app.redis, app.codec, "gather", to=app.topic("grouped", partitions=12), max_age=0.5
        )
        keys = [f"k{number}" for number in range(60)]
        async with WindowCloser(app.redis, app.codec, [gather]) as closer:
            await gather.add("warm", 0)
            await eventually(lambda: closer.closed == 1)
            await asyncio.gather(*(gather.add(key, key) for key in keys))
            frozen = cluster.nodes[0]
            frozen.pause()
            try:
                await eventually(lambda: closer.closed >= 20)  # a command to the frozen node: 90 s
            finally:
                frozen.resume()
            await eventually(lambda: closer.closed == 1 + len(keys))


async def test_a_closer_starts_and_stops_as_every_service(valkey_server, open_app):
    app = await open_app(valkey_server)
    await check_lifecycle(lambda: WindowCloser(app.redis, app.codec))


# ---- what others did to the keys


async def test_a_pointer_without_a_batch_counts_as_none(app):
    gather = window(app, max_age=0.001)
    place = (await gather.target.stores())[0]
    await app.redis.call("SET", place.current("gather%1Fa"), "batch-lost")
    added = await gather.add("a", 1)
    assert (added.size, added.closed) == (1, None)
    await app.redis.call("SET", place.current("gather%1Fb"), "batch-lost")
    await app.redis.call("ZADD", place.index.due, 1, "gather%1Fb", 1, "gather%1Fc")
    assert await eventually(WindowCloser(app.redis, app.codec, [gather]).look) == 1
    assert await gather.batch("b") is None
    assert await app.redis.call("ZCARD", place.index.due) == 0
    assert await app.redis.call("EXISTS", place.current("gather%1Fb")) == 0


async def test_items_whose_batch_has_lost_its_facts_are_not_lost(app):
    gather = window(app)
    place = (await gather.target.stores())[0]
    batch = (await gather.add("a", 1)).batch_id
    facts = [place.batch(batch, fact) for fact in ("camera_id", "started_at", "last_activity")]
    await app.redis.call("DEL", *facts)
    await app.redis.call("DEL", place.index.due)
    assert (await gather.add("a", 2)).size == 2
    assert (await gather.batch("a")).count == 2
    assert await app.redis.call("GET", facts[0]) == b"a"
    await app.redis.call("DEL", *facts)
    await gather.close("a")
    assert [job["items"] for job in await jobs_in(app)] == [[1, 2]]


# ---- a full server


@pytest.fixture(params=["valkey", "redis62"])
def small_server(request):
    with ServerProcess(request.param) as server:
        yield server


async def test_who_may_not_publish_may_use_windows_all_the_same(small_server):
    small_server.command("ACL", "SETUSER", "quiet", "on", ">pw", "~*", "+@all", "resetchannels")
    url = f"redis://quiet:pw@127.0.0.1:{small_server.port}"
    async with Penstock(settings=Settings(url=url)) as app:
        gather = window(app, max_items=2)
        await gather.add("a", 1)
        await gather.add("a", 2)
        assert [job["items"] for job in await jobs_in(app)] == [[1, 2]]
        place = (await gather.target.stores())[0]
        assert [what for _, what, _ in await events_of(place, app)] == ["open", "closed"]


async def test_broken_books_keep_no_item_out(small_server):
    async with Penstock(settings=Settings(url=small_server.url)) as app:
        gather = window(app, max_items=2)
        place = (await gather.target.stores())[0]
        for key in (place.index.state, place.index.events):
            await app.redis.call("SET", key, "something else")
        for number in range(4):
            await gather.add("a", number)
        await gather.add("a", 4, fast=True)
        assert [job["items"] for job in await jobs_in(app)] == [[0, 1], [2, 3]]


async def test_a_queue_that_gets_batches_is_known_though_it_was_deleted(app):
    gather = window(app, max_age=0.001)
    await gather.add("a", 1)
    await app.redis.call("SREM", QueuesKeys.of(app.redis.keys).registry, "batches")
    stranger = Window.registered(app.redis, app.codec, gather.record)
    assert await eventually(WindowCloser(app.redis, app.codec, [stranger]).look) == 1
    assert await app.redis.call("SISMEMBER", QueuesKeys.of(app.redis.keys).registry, "batches")


async def test_a_full_server_refuses_items_and_still_closes_batches(small_server):
    async with Penstock(settings=Settings(url=small_server.url)) as app:
        gather = window(app, max_age=0.05)
        await gather.add("a", "x" * 1_000, id="one")
        await gather.add("b", 1)
        used = int(small_server.info("memory")["used_memory"])
        small_server.command("CONFIG", "SET", "maxmemory", str(used // 2))
        before = small_server.command("DBSIZE")
        with pytest.raises(OutOfMemory):
            await gather.add("c", 2, id="two")
        assert small_server.command("DBSIZE") == before
        assert not (await gather.add("a", "x", id="one")).is_new
        closer = WindowCloser(app.redis, app.codec, [gather])

        async def all_are_closed():
            await closer.look()
            return closer.closed == 2

        await eventually(all_are_closed)
        assert sorted(job["key"] for job in await jobs_in(app)) == ["a", "b"]
