"""Windows: items are gathered by key, and each batch goes on exactly once."""

from __future__ import annotations

import asyncio
import json
import math
import time
from datetime import timedelta

import pytest

from penstock import Penstock, block
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.errors import (
    InvalidItem,
    InvalidName,
    NotOpen,
    OutcomeUnknown,
    OutOfMemory,
    QueueFull,
    SettingError,
    TopicMissing,
)
from penstock.redis.script import load_script
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.lifecycle import check_lifecycle
from penstock.testing.link import Rule, RuleKind
from penstock.testing.servers import ServerProcess

LONG = {"max_age": 3600, "idle": 3600}
ODD_KEYS = ["a:b", "{a}", "a b\n", "*?[x]", "50%", "тест", "a/b", '"', "x" * 300, "current", "%41"]


def window(app, name="gather", queue="batches", **options):
    return Window(app.redis, app.codec, name, to=app.queue(queue), **{**LONG, **options})


async def jobs_in(app, queue="batches", lane=""):
    key = app.queue(queue).keyring.list_of(lane)
    return [json.loads(job) for job in await app.redis.call("LRANGE", key, 0, -1)]


async def messages_in(app, topic, partition):
    entries = await app.redis.call(
        "XRANGE", app.redis.keys.partition(topic, partition).stream, "-", "+"
    )
    fields = [dict(zip(entry[1][::2], entry[1][1::2], strict=True)) for entry in entries]
    batches = [one for one in fields if b"payload" in one]  # no marks of a topic that has grown
    return [(one[b"key"].decode(), json.loads(one[b"payload"])) for one in batches]


async def events_of(place, app):
    entries = await app.redis.call("XRANGE", place.index.events, "-", "+")
    found = []
    for id_, fields in entries:
        told = dict(zip(fields[::2], fields[1::2], strict=True))
        found.append((id_.decode(), told[b"type"].decode(), json.loads(told[b"data"])))
    return found


async def is_gone(app, batch_id):
    """Whether nothing is left of a batch."""
    keys = app.redis.keys.batch("batches", batch_id)
    names = (keys.camera_id, keys.detections, keys.started_at, keys.last_activity, keys.bytes)
    return await app.redis.call("EXISTS", *names) == 0


# ---- gathering


async def test_items_become_one_job_when_their_batch_is_due(app):
    gather = window(app, max_age=0.3, idle=10)
    first = await gather.add("a", {"n": 1})
    second = await gather.add("a", [2, "zwei", None])
    assert first.batch_id == second.batch_id
    assert (first.size, second.size) == (1, 2)
    async with WindowCloser(app.redis, app.codec, [gather]) as closer:
        [job] = await eventually(lambda: jobs_in(app), 3)
    assert closer.closed == 1
    assert job["batch_id"] == first.batch_id
    assert job["key"] == "a"
    assert job["items"] == [{"n": 1}, [2, "zwei", None]]
    assert (job["count"], job["reason"]) == (2, "max_age")
    assert 300 <= job["ended_ms"] - job["started_ms"] < 1300
    assert await gather.open_batches() == []
    assert await is_gone(app, first.batch_id)


async def test_adds_at_the_same_time_share_one_batch(app):
    gather = window(app)
    added = await asyncio.gather(*(gather.add("a", number) for number in range(50)))
    assert {one.batch_id for one in added} == {added[0].batch_id}
    assert sorted(one.size for one in added) == list(range(1, 51))
    assert await gather.close("a") == added[0].batch_id
    [job] = await jobs_in(app)
    assert sorted(job["items"]) == list(range(50))


async def test_keys_are_gathered_apart_whatever_characters_they_have(app):
    gather, other = window(app), window(app, "other")
    for key in ODD_KEYS:
        await gather.add(key, key)
        await other.add(key, f"other {key}")
    assert sorted(one.key for one in await gather.open_batches()) == sorted(ODD_KEYS)
    for key in ODD_KEYS:
        assert await gather.close(key)
    assert [(job["key"], job["items"]) for job in await jobs_in(app)] == [
        (key, [key]) for key in ODD_KEYS
    ]
    assert len(await other.open_batches()) == len(ODD_KEYS)


async def test_the_last_item_that_fits_closes_the_batch(app):
    gather = window(app, max_items=3)
    added = [await gather.add("a", number) for number in range(7)]
    first, second = added[0].batch_id, added[3].batch_id
    assert [one.closed for one in added] == [None, None, first, None, None, second, None]
    assert [one.size for one in added] == [1, 2, 3, 1, 2, 3, 1]
    jobs = await jobs_in(app)
    assert [job["items"] for job in jobs] == [[0, 1, 2], [3, 4, 5]]
    assert {job["reason"] for job in jobs} == {"max_size"}
    assert (await gather.batch("a")).count == 1


async def test_every_item_is_a_batch_where_one_fits(app):
    gather = window(app, max_items=1)
    added = [await gather.add("a", number) for number in range(3)]
    assert [one.closed for one in added] == [one.batch_id for one in added]
    assert await gather.batch("a") is None
    assert [job["items"] for job in await jobs_in(app)] == [[0], [1], [2]]


async def test_an_item_that_does_not_fit_closes_the_batch_before_it(app):
    gather = window(app, max_bytes=100)
    first = await gather.add("a", "x" * 60)
    second = await gather.add("a", "y" * 60)
    assert (first.closed, second.closed) == (None, first.batch_id)
    [job] = await jobs_in(app)
    assert (job["items"], job["reason"]) == (["x" * 60], "max_bytes")
    assert (await gather.batch("a")).bytes == 63


async def test_a_batch_is_closed_by_hand_once(app):
    gather = window(app)
    added = await gather.add("a", 1)
    assert await gather.close("a", reason="end-of-day") == added.batch_id
    assert await gather.close("a") is None
    assert await gather.close("never") is None
    [job] = await jobs_in(app)
    assert job["reason"] == "end-of-day"


async def test_open_batches_tell_how_they_stand(app):
    gather = window(app, max_age=timedelta(seconds=60), idle=20)
    for key, count in (("a", 2), ("b", 3)):
        for number in range(count):
            await gather.add(key, number)
    first, second = await gather.open_batches()
    assert [(one.key, one.count, one.bytes) for one in (first, second)] == [
        ("a", 2, 4),
        ("b", 3, 6),
    ]
    assert first.due_ms == first.last_ms + 20_000
    assert first.started_ms <= first.last_ms
    assert first == await gather.batch("a")
    assert await gather.open_batches(limit=1) == [first]
    assert await gather.batch("c") is None


# ---- ids


async def test_an_item_with_an_id_is_added_once(app):
    gather = window(app)
    first = await gather.add("a", 1, id="one")
    again = await gather.add("a", 1, id="one")
    assert (again.is_new, again.batch_id, again.size) == (False, first.batch_id, 1)
    assert (await gather.add("b", 1, id="one")).is_new
    await gather.close("a")
    late = await gather.add("a", 1, id="one")
    assert (late.is_new, late.batch_id) == (False, "")
    await gather.add("a", 2, id="two")
    assert (await gather.add("a", 1, id="one")).batch_id == ""
    await gather.close("a")
    assert [job["items"] for job in await jobs_in(app)] == [[1], [2]]


class OfScript(Rule):
    """Something that happens to the calls of one script."""

    def __init__(self, name, kind, times):
        super().__init__("*", kind, times)
        script = load_script(name)
        self._words_of_script = {
            one.encode() for one in (script.digest, script.plain_digest, script.text)
        }

    def takes(self, request):
        return len(request) > 1 and request[1] in self._words_of_script and super().takes(request)


@pytest.mark.parametrize("kind", [RuleKind.SWALLOW, RuleKind.CUT])
async def test_a_lost_answer_is_asked_for_again_where_there_is_an_id(
    valkey_server, fault_proxy, namespace, kind
):
    proxy = fault_proxy(valkey_server)
    quick = TimeoutSettings(connect_s=1.0, command_s=0.3)
    settings = Settings(url=proxy.url, namespace=namespace, timeouts=quick)
    async with Penstock(settings=settings) as app:
        gather = window(app)
        await gather.add("a", 0)
        rule = proxy.add(OfScript("add_to_window", kind, 2))
        added = await gather.add("a", 1, id="one")
        assert (rule.hits, added.size) == (2, 2)
        proxy.add(OfScript("add_to_window", kind, 1))
        with pytest.raises(OutcomeUnknown):
            await gather.add("a", 2)


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
    await app.redis.call("ZADD", (await gather.target.places())[0].index.due, 1, "gather%1Fa")
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


# ---- the fast path


async def test_a_fast_item_is_in_the_high_lane_at_once(app):
    gather = window(app)
    await gather.add("a", 1)
    added = await gather.add("a", {"n": 2}, id="d-2", fast=True)
    assert (added.fast, added.batch_id, added.size) == (True, "fast_path_d-2", 1)
    assert not (await gather.add("a", {"n": 2}, id="d-2")).is_new
    [job] = await jobs_in(app, lane="high")
    assert (job["batch_id"], job["key"], job["items"]) == ("fast_path_d-2", "a", [{"n": 2}])
    assert (job["fast_path"], job["reason"], job["count"]) == (True, "fast_path", 1)
    assert job["started_ms"] == job["ended_ms"]
    assert (await gather.batch("a")).count == 1


async def test_a_fast_item_goes_into_the_batch_if_the_high_lane_is_full(app):
    queue = app.queue("batches", max_size=1, overflow="drop_oldest")
    gather = window(app)
    assert (await gather.add("a", 1, fast=True)).fast
    added = await gather.add("a", 2, fast=True)
    assert (added.fast, added.size) == (False, 1)
    assert await app.redis.call("LLEN", queue.keyring.list_of("high")) == 1


async def test_workers_take_fast_batches_first_and_failures_fall_back(app):
    queue, seen = app.queue("batches"), []
    gather = window(app)

    @queue.handler(concurrency=1)
    async def analyse(job: dict) -> None:
        async with gather.falling_back(job):
            seen.append((job["items"], job["reason"]))
            if job["reason"] == "fast_path" and job["items"] == ["bad"]:
                raise ValueError("the model is away")

    await gather.add("a", "slow")
    await gather.close("a")
    await gather.add("a", "bad", id="b", fast=True)
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await eventually(lambda: len(seen) == 2)
    assert seen == [(["bad"], "fast_path"), (["slow"], "asked")]
    await eventually(lambda: gather.batch("a"))
    await gather.close("a")
    await eventually(lambda: seen[2:] == [(["bad"], "asked")])
    await worker.stop()
    assert await running == 0


async def test_falling_back_lets_the_failures_of_other_jobs_through(app):
    gather = window(app)
    with pytest.raises(ValueError, match="as it is"):
        async with gather.falling_back({"batch_id": "b", "key": "a", "items": [1]}):
            raise ValueError("as it is")
    for _ in range(2):
        job = {"batch_id": "fast_path_1", "key": "a", "items": [1], "fast_path": True}
        async with gather.falling_back(job):
            raise ValueError("falls back, once")
    assert (await gather.batch("a")).count == 1


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
    stream = app.redis.keys.partition("grouped", 0).stream
    await gather.add("a", 1)
    await app.redis.call("DEL", stream)
    await gather.add("a", 2)
    await app.redis.call("DEL", stream)
    place = (await gather.target.places())[0]
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

    await eventually(all_are_used, 10)


# ---- events


async def test_what_happens_to_batches_is_told_in_numbered_events(app):
    gather = window(app, max_items=2)
    place = (await gather.target.places())[0]
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
    place = (await gather.target.places())[0]
    await gather.add("a", 1)
    await app.redis.call("DEL", place.index.state)
    await gather.add("a", 2)
    assert [id_ for id_, _, _ in await events_of(place, app)] == ["1-0", "2-0", "3-0", "4-0"]


async def test_a_hint_is_published_for_every_event(valkey_server, open_app):
    app = await open_app(valkey_server)
    gather = window(app)
    place = (await gather.target.places())[0]
    stock = await app.redis.stock()
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
    registry = app.redis.keys.windows().registry
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


async def test_a_node_that_is_away_holds_up_its_own_batches_alone(start_cluster, namespace):
    cluster = start_cluster(primaries=3)
    quick = TimeoutSettings(connect_s=1.0, command_s=1.0)
    settings = Settings(url=cluster.url, namespace=namespace, timeouts=quick)
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
            begun = time.monotonic()
            try:
                await eventually(lambda: closer.closed >= 20, 3)
                assert time.monotonic() - begun < 2.0
            finally:
                frozen.resume()
            await eventually(lambda: closer.closed == 1 + len(keys), 15)


async def test_a_closer_starts_and_stops_as_every_service(valkey_server, open_app):
    app = await open_app(valkey_server)
    await check_lifecycle(lambda: WindowCloser(app.redis, app.codec))


# ---- what others did to the keys


async def test_a_pointer_without_a_batch_counts_as_none(app):
    gather = window(app, max_age=0.001)
    place = (await gather.target.places())[0]
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
    place = (await gather.target.places())[0]
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


# ---- what is refused before anything is sent


@pytest.mark.parametrize("key", ["", "a\x1fb", 7, None, "\ud800", "x" * 600])
async def test_keys_that_cannot_be_are_refused(app, key):
    with pytest.raises((InvalidItem, InvalidName)):
        await window(app).add(key, 1)


@pytest.mark.parametrize("item", [math.nan, object(), "x" * 300_000, "\ud800", {1, math.inf}])
async def test_items_that_cannot_be_are_refused(app, item):
    gather = window(app)
    with pytest.raises(InvalidItem):
        await gather.add("a", item)
    assert await gather.batch("a") is None


async def test_a_batch_nests_no_deeper_than_what_can_be_read(app):
    gather = window(app)
    deep = json.loads("[" * 126 + "]" * 126)
    await gather.add("a", deep)
    await gather.close("a")
    stored = await app.redis.call("LPOP", app.queue("batches").keyring.waiting)
    assert app.codec.decode(stored, dict)["items"] == [deep]
    with pytest.raises(InvalidItem):
        await gather.add("a", [deep])


@pytest.mark.parametrize("id_", ["", "x" * 257, 7, "\ud800"])
async def test_ids_that_cannot_be_are_refused(app, id_):
    with pytest.raises(InvalidItem):
        await window(app).add("a", 1, id=id_)


@pytest.mark.parametrize(
    "options",
    [
        {"max_age": 0},
        {"max_age": "90"},
        {"idle": -1},
        {"idle": math.inf},
        {"max_items": 0},
        {"max_items": 10_001},
        {"max_items": True},
        {"max_bytes": 0},
        {"max_bytes": 600_000},
        {"key_field": "batch_id"},
        {"items_field": "key"},
        {"items_field": "ä"},
    ],
)
async def test_options_that_cannot_be_are_refused(app, options):
    with pytest.raises(SettingError):
        window(app, **options)


async def test_names_and_targets_that_cannot_be_are_refused(app):
    with pytest.raises(InvalidName):
        window(app, "a:b")
    with pytest.raises(SettingError):
        Window(app.redis, app.codec, "gather", to="a queue by name")
    with pytest.raises(InvalidName):
        await window(app).close("a", reason="a b")


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
        place = (await gather.target.places())[0]
        assert [what for _, what, _ in await events_of(place, app)] == ["open", "closed"]


async def test_broken_books_keep_no_item_out(small_server):
    async with Penstock(settings=Settings(url=small_server.url)) as app:
        gather = window(app, max_items=2)
        place = (await gather.target.places())[0]
        for key in (place.index.state, place.index.events):
            await app.redis.call("SET", key, "something else")
        for number in range(4):
            await gather.add("a", number)
        await gather.add("a", 4, fast=True)
        assert [job["items"] for job in await jobs_in(app)] == [[0, 1], [2, 3]]


async def test_a_queue_that_gets_batches_is_known_though_it_was_deleted(app):
    gather = window(app, max_age=0.001)
    await gather.add("a", 1)
    await app.redis.call("SREM", app.redis.keys.queues().registry, "batches")
    stranger = Window.registered(app.redis, app.codec, gather.record)
    assert await eventually(WindowCloser(app.redis, app.codec, [stranger]).look) == 1
    assert await app.redis.call("SISMEMBER", app.redis.keys.queues().registry, "batches")


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
