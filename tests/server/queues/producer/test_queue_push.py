"""Adding raw jobs: what stands on the list, and what a full queue does."""

import asyncio
import json
import math
import random

import pytest

from penstock import Penstock, block
from penstock.errors import (
    CommandRefused,
    ConfigError,
    EncodeError,
    InvalidJob,
    InvalidName,
    QueueFull,
    QueueMismatch,
    SendBatchFailed,
    SettingError,
)
from penstock.queues.options import Gate, GateDecision, WaitForRoom
from penstock.queues.storage.keys import QueuesKeys, lane_name
from penstock.settings import Settings
from penstock.testing.eventually import eventually


async def waiting(queue, lane=""):
    return await queue.client.call("LRANGE", queue.keyring.list_of(lane), 0, -1)


async def counted(queue, name):
    return int(await queue.client.call("HGET", queue.keyring.counters, name) or 0)


async def test_a_job_stands_on_the_list_as_plain_json_text_or_bytes(app):
    queue = app.queue("detections")
    result = await queue.push({"camera_id": "front_door", "file_path": "/a.jpg"})
    await queue.push("any text")
    await queue.push(b"any bytes")
    assert await waiting(queue) == [
        b'{"camera_id":"front_door","file_path":"/a.jpg"}',
        b"any text",
        b"any bytes",
    ]
    assert (result.success, result.queue_length, result.had_backpressure) == (True, 1, False)
    assert (result.error, result.warning, result.dropped_count, result.moved_to_dlq_count) == (
        *(None, None, 0, 0),
    )


async def test_the_queue_is_registered_and_its_jobs_are_counted(app):
    queue = app.queue("detections")
    await queue.push({})
    await queue.push_many([{}, {}])
    registry = QueuesKeys.of(app.redis.keys).registry
    assert await app.redis.call("SMEMBERS", registry) == [b"detections"]
    assert await counted(queue, "added") == 3


async def test_a_queue_that_is_pushed_from_the_left_keeps_the_oldest_at_the_right(app, open_queues):
    queue = app.queue("rag:ingest:queue", push="left")
    for number in range(3):
        await queue.push({"n": number})
    assert [json.loads(job)["n"] for job in await waiting(queue)] == [2, 1, 0]
    other = await open_queues()
    with pytest.raises(QueueMismatch):
        await other.queue("rag:ingest:queue", push="right").push({})
    adapting = other.queue("rag:ingest:queue")
    with pytest.raises(ConfigError, match="push"):
        other.queue("rag:ingest:queue", push="left")
    assert await adapting.client.call("LLEN", adapting.keyring.waiting) == 3


async def test_whoever_does_not_care_pushes_where_the_others_push(app, open_queues):
    await app.queue("jobs", push="left").push("old")
    queue = (await open_queues()).queue("jobs")
    await queue.push("new")
    assert await waiting(queue) == [b"new", b"old"]


async def test_priorities_and_groups_have_lists_of_their_own(app):
    queue = app.queue("jobs")
    await queue.push("now", priority="high")
    await queue.push("one", group="tenant a")
    await queue.push("two", group="tenant a")
    assert await waiting(queue, "high") == [b"now"]
    lane = lane_name("tenant a")
    assert len(await waiting(queue, lane)) == 2
    assert await app.redis.call("LRANGE", queue.keyring.ring, 0, -1) == [lane.encode()]


# ---- full queues


async def test_a_full_queue_rejects_by_default_and_counts_it(app):
    queue = app.queue("jobs", max_size=2)
    await queue.push_many(["a", "b"])
    with pytest.raises(QueueFull) as refused:
        await queue.push("c")
    assert (refused.value.queue, refused.value.length, refused.value.max_size) == ("jobs", 2, 2)
    told = await queue.add_safe("c")
    assert (told.success, told.queue_length, told.had_backpressure) == (False, 2, True)
    assert "full" in told.error
    assert await waiting(queue) == [b"a", b"b"]
    assert await counted(queue, "rejected") == 2


async def test_a_queue_that_is_nearly_full_warns(app):
    queue = app.queue("jobs", max_size=10)
    assert not (await queue.push_many(list("abcdefg"))).had_backpressure
    result = await queue.push("h")
    assert result.success
    assert result.had_backpressure
    assert "8 jobs of 10" in result.warning


async def test_the_oldest_are_moved_to_the_overflow_in_the_shape_of_dead_letters(app):
    queue = app.queue("jobs", max_size=2, overflow="dlq")
    await queue.push_many([{"n": 1}, "plain"])
    result = await queue.push({"n": 3})
    assert (result.moved_to_dlq_count, result.queue_length) == (1, 2)
    assert result.had_backpressure
    await queue.push({"n": 4})
    assert await waiting(queue) == [b'{"n":3}', b'{"n":4}']
    letters = await app.redis.call("LRANGE", queue.keyring.overflow, 0, -1)
    assert [json.loads(letter)["original_job"] for letter in letters] == [{"n": 1}, "plain"]
    assert json.loads(letters[0])["queue_name"] == "jobs"
    assert await counted(queue, "overflowed") == 2


async def test_the_overflow_is_bounded_and_then_nothing_is_lost(open_queues):
    queue = (await open_queues(max_overflow=1)).queue("jobs", max_size=1, overflow="dlq")
    await queue.push("a")
    await queue.push("b")
    with pytest.raises(QueueFull):
        await queue.push("c")
    assert await waiting(queue) == [b"b"]
    assert await queue.client.call("LLEN", queue.keyring.overflow) == 1


@pytest.mark.parametrize("side", ["right", "left"])
async def test_the_oldest_are_dropped_and_counted_where_that_is_asked_for(app, side):
    queue = app.queue("jobs", max_size=2, overflow="drop_oldest", push=side)
    await queue.push_many(["a", "b"])
    result = await queue.push("c")
    assert (result.dropped_count, result.queue_length) == (1, 2)
    assert sorted(await waiting(queue)) == [b"b", b"c"]
    assert await counted(queue, "dropped") == 1


async def test_more_jobs_than_a_queue_may_have_at_all_cost_nobody_anything(app):
    queue = app.queue("jobs", max_size=2, overflow="drop_oldest")
    await queue.push_many(["a", "b"])
    with pytest.raises(QueueFull):
        await queue.push_many(["c", "d", "e"])
    assert await waiting(queue) == [b"a", b"b"]


async def test_a_pusher_that_blocks_gets_the_room_that_a_worker_makes(app):
    queue = app.queue("jobs", max_size=1, overflow=block(20))
    await queue.push("a")
    pushing = asyncio.create_task(queue.push("b"))
    many = asyncio.create_task(queue.push_many(["c"]))
    await asyncio.sleep(0)
    for _ in range(2):
        await app.redis.call("LPOP", queue.keyring.waiting)
        await eventually(lambda: _length_is(queue, 1))
        await asyncio.sleep(0)
    await app.redis.call("LPOP", queue.keyring.waiting)
    assert (await pushing).success
    assert (await many).success
    assert await counted(queue, "rejected") == 0


async def _length_is(queue, length):
    return await queue.client.call("LLEN", queue.keyring.waiting) == length


async def test_a_pusher_that_has_blocked_for_its_time_is_refused_once(app):
    queue = app.queue("jobs", max_size=1, overflow=block(0.1))
    await queue.push("a")
    with pytest.raises(QueueFull):
        await queue.push("b")
    with pytest.raises(QueueFull):
        await queue.push("b", delay=0, unique="u")
    assert await waiting(queue) == [b"a"]
    assert await counted(queue, "rejected") == 2


async def test_bytes_are_limited_over_all_lanes(app):
    queue = app.queue("jobs", max_bytes=10, max_size=0)
    await queue.push("12345")
    await queue.push("1234", priority="high")
    with pytest.raises(QueueFull, match="10 bytes"):
        await queue.push("12")
    await queue.push("1")
    with pytest.raises(QueueFull):
        await queue.push("123456", overflow="drop_oldest", max_size=0, priority="low")
    result = await queue.push("123456", overflow="drop_oldest")
    assert result.dropped_count == 2
    assert await app.redis.call("HGET", queue.keyring.state, "bytes") == b"10"


async def test_jobs_of_a_producer_without_a_limit_count_for_those_with_one(app, open_queues):
    limited = app.queue("jobs", max_bytes=10)
    await limited.push("1")
    await (await open_queues()).queue("jobs").push("123456789")
    with pytest.raises(QueueFull):
        await limited.push("1")


@pytest.mark.parametrize("policy", ["reject", "dlq", "drop_oldest"])
async def test_fifty_concurrent_producers_never_exceed_the_limit_and_lose_nothing_uncounted(
    open_queues, policy
):
    apps = [await open_queues() for _ in range(5)]
    queues = [app.queue("jobs", max_size=100, overflow=policy) for app in apps]
    results = await asyncio.gather(
        *(
            queues[producer % 5].add_safe({"producer": producer, "n": number})
            for number in range(10)
            for producer in range(50)
        )
    )
    queue = queues[0]
    stored = await waiting(queue)
    assert len(stored) == 100
    assert max(result.queue_length for result in results) <= 100
    accepted = sum(result.success for result in results)
    moved = sum(result.moved_to_dlq_count for result in results)
    dropped = sum(result.dropped_count for result in results)
    aside = await queue.client.call("LLEN", queue.keyring.overflow)
    expected = {"reject": (100, 0, 0), "dlq": (500, 400, 0), "drop_oldest": (500, 0, 400)}
    assert (accepted, moved, dropped) == expected[policy]
    assert aside == moved
    assert await counted(queue, "added") == accepted
    assert await counted(queue, "rejected") == 500 - accepted
    assert await counted(queue, "dropped") == dropped
    assert len({bytes(job) for job in stored}) == 100


async def test_fifty_concurrent_producers_of_batches_store_each_whole_or_not_at_all(open_queues):
    apps = [await open_queues() for _ in range(5)]
    queues = [app.queue("jobs", max_size=95) for app in apps]

    async def push(producer):
        try:
            await queues[producer % 5].push_many([f"{producer} {n}" for n in range(10)])
        except QueueFull:
            return 0
        return 10

    stored = sum(await asyncio.gather(*map(push, range(50))))
    assert stored == 90
    jobs = await waiting(queues[0])
    assert [jobs[n : n + 10] for n in range(0, 90, 10)] == [
        [b"%b %d" % (jobs[n].split()[0], k) for k in range(10)] for n in range(0, 90, 10)
    ]


async def test_a_list_far_above_the_limit_is_brought_down_step_by_step(app):
    queue = app.queue("jobs", max_size=10, overflow="drop_oldest")
    await app.redis.call("RPUSH", queue.keyring.waiting, *map(str, range(5000)))
    result = await queue.push("new")
    assert 0 < result.dropped_count < 2000
    while (await queue.push("new")).queue_length > 10:
        pass
    assert await app.redis.call("LLEN", queue.keyring.waiting) == 10


# ---- many


async def test_many_jobs_go_in_chunks_and_keep_their_order(app):
    queue = app.queue("jobs", max_size=0)
    result = await queue.push_many([{"n": n} for n in range(1234)])
    assert (result.success, result.queue_length) == (True, 1234)
    assert [json.loads(job)["n"] for job in await waiting(queue)] == list(range(1234))


async def test_one_bad_job_of_many_stores_none(app):
    queue = app.queue("jobs")
    with pytest.raises(EncodeError):
        await queue.push_many([{"n": n} for n in range(600)] + [{"n": math.nan}])
    assert await waiting(queue) == []


async def test_what_is_stored_of_many_is_told_job_by_job(app):
    queue = app.queue("jobs", max_size=700)
    with pytest.raises(SendBatchFailed) as failed:
        await queue.push_many([{"n": n} for n in range(1500)])
    outcomes = failed.value.outcomes
    assert [isinstance(outcome, str) for outcome in outcomes] == [True] * 500 + [False] * 1000
    assert isinstance(outcomes[-1], QueueFull)
    assert len(await waiting(queue)) == 500


async def test_no_jobs_at_all_are_added_without_a_word(app):
    assert (await app.queue("jobs").push_many([])).success


async def test_large_jobs_are_compressed_and_the_largest_are_refused(open_queues):
    queue = (await open_queues(max_job_bytes=2000)).queue("jobs")
    await queue.push({"text": "a" * 5000})
    assert (await waiting(queue))[0].startswith(b"Z:")
    noise = random.Random(4).randbytes(4000).hex()  # noqa: S311
    with pytest.raises(InvalidJob, match=r"queues\.max_job_bytes allows 2000"):
        await queue.push_many(["small", {"text": noise}])
    assert len(await waiting(queue)) == 1


# ---- the seed's names


async def test_add_to_queue_safe_and_pressure_speak_as_the_seed_does(app):
    result = await app.add_to_queue_safe(
        queue_name="detection_queue", data={"a": 1}, max_size=2, overflow_policy="dlq"
    )
    assert result.success
    for _ in range(2):
        result = await app.add_to_queue_safe("detection_queue", {"a": 1}, 2, "dlq")
    assert (result.queue_length, result.moved_to_dlq_count) == (2, 1)
    metrics = await app.get_queue_pressure(queue_name="detection_queue", max_size=2, timeout=5.0)
    assert (metrics.current_length, metrics.max_size, metrics.fill_ratio) == (2, 2, 1.0)
    assert metrics.is_at_pressure_threshold
    assert metrics.is_full
    assert metrics.overflow_policy == "reject"
    roomy = await app.get_queue_pressure("detection_queue")
    assert (roomy.max_size, roomy.is_full, roomy.is_at_pressure_threshold) == (10000, False, False)


async def test_an_unknown_policy_means_reject_in_the_seed_and_an_error_elsewhere(app):
    result = await app.add_to_queue_safe("jobs", "a", 1, "explode")
    assert result.success
    assert "reject was used" in result.warning
    result = await app.add_to_queue_safe("jobs", "b", 1, "explode")
    assert (result.success, result.queue_length) == (False, 1)
    with pytest.raises(ConfigError, match="explode"):
        await app.queue("jobs").push("b", overflow="explode")
    with pytest.raises(ConfigError):
        app.queue("others", overflow="explode")


# ---- what cannot be


@pytest.mark.parametrize(
    "name",
    [
        *("", "  ", "a" * 257, "a:b", "{a}b", "{}", "a\nb", "a\x00", "a*", "a[b]", "../a", "-a"),
        *(".a", "a/b", "\u202ea", "e\u0301", "\ud800", "\U0001f600", "dlq", "%2e%2e", "１"),
    ],
)
async def test_names_that_no_queue_can_have(app, name):
    with pytest.raises(InvalidName):
        app.queue(name)


@pytest.mark.parametrize("name", [b"bytes", 5, None])
async def test_names_that_are_no_text(app, name):
    with pytest.raises(InvalidName):
        app.queue(name)


@pytest.mark.parametrize(
    "options",
    [
        {"push": "up"},
        {"status": 1},
        {"max_size": -1},
        {"max_size": True},
        {"max_size": 10**10},
        {"max_bytes": 1.5},
        {"levels": (1, 2)},
        {"levels": (1, 0, 1)},
        {"levels": "fair"},
        {"limit": -1},
        {"lane_limit": "3"},
        {"retry": 3},
        {"timeout_s": 0},
        {"timeout_s": math.nan},
        {"timeout_s": 1e309},
        {"concurrency": 0},
        {"concurrency": 10**6},
        {"status_fields": ["rag_id"]},
    ],
)
async def test_options_that_no_queue_can_have(app, options):
    with pytest.raises(SettingError):
        app.queue("jobs", **options)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "1", None, True])
def test_times_that_nobody_can_block_for(seconds):
    with pytest.raises(SettingError):
        block(seconds)


def test_block_reads_as_it_is_written():
    assert str(block(2.5)) == "block(2.5)"
    assert block(1) == WaitForRoom(1)


async def test_options_are_said_once_or_twice_the_same(app):
    queue = app.queue("jobs", max_size=5)
    assert app.queue("jobs") is queue
    assert app.queue("jobs", max_size=5) is queue
    with pytest.raises(ConfigError, match="max_size"):
        app.queue("jobs", max_size=6)


async def test_options_may_follow_the_first_mention_of_a_queue(app):
    queue = app.queue("jobs")
    await queue.push("a")
    assert app.queue("jobs", max_size=1) is queue
    with pytest.raises(QueueFull):
        await queue.push("b")


@pytest.mark.parametrize("broken", ["waiting", "counters", "state", "overflow"])
@pytest.mark.parametrize("policy", ["reject", "dlq", "drop_oldest"])
async def test_a_key_of_a_wrong_type_is_found_before_anything_is_written(app, broken, policy):
    queue = app.queue("jobs", max_size=1, overflow=policy)
    if broken != "waiting":
        await queue.push("first")
    key = getattr(queue.keyring, broken)
    await app.redis.call("DEL", key)
    await app.redis.call("SET", key, "not mine")
    if broken == "overflow" and policy != "dlq":
        return
    if broken == "state":
        queue = app.queue("jobs")
    with pytest.raises((CommandRefused, QueueFull)):
        await queue.push("second", priority="high" if broken == "state" else None)
    if broken != "waiting":
        assert await waiting(queue) == [b"first"]
        assert await waiting(queue, "high") == []
    assert await app.redis.call("GET", key) == b"not mine"


async def test_counters_that_are_no_numbers_are_found_before_anything_is_written(app):
    queue = app.queue("jobs", max_size=1, overflow="drop_oldest")
    await queue.push("first")
    for name in ("added", "dropped"):
        await app.redis.call("HSET", queue.keyring.counters, name, "many")
        with pytest.raises(CommandRefused):
            await queue.push("second")
        assert await waiting(queue) == [b"first"]
        await app.redis.call("HSET", queue.keyring.counters, name, 1)


async def test_the_seam_for_limits_is_a_protocol():
    class Closed:
        async def admit(self, queue: str, wanted: int) -> GateDecision:
            return GateDecision(0, retry_after_s=1.5)

        async def give_back(self, queue: str, count: int) -> None: ...

    gate: Gate = Closed()
    assert (await gate.admit("jobs", 5)).granted == 0


async def test_every_server_adds_refuses_drops_moves_and_cancels_alike(any_server, namespace):
    async with Penstock(settings=Settings(url=any_server.url, namespace=namespace)) as app:
        for policy, kept in (("dlq", b"c"), ("drop_oldest", b"c"), ("reject", b"a")):
            queue = app.queue(f"jobs-{policy}", max_size=1, overflow=policy)
            for job in ("a", "b", "c"):
                await queue.add_safe(job)
                await queue.add_safe(job, group="g", unique=job)
            assert await waiting(queue) == [kept]
            await app.redis.call("HSET", queue.keyring.counters, "added", "many")
            with pytest.raises((CommandRefused, QueueFull)):
                await queue.push("d")
            assert await waiting(queue) == [kept]
        job = await app.send("t", [1], queue="tracked", idempotency_key="k", delay=60)
        assert await job.cancel()
        assert await job.wait(timeout_s=60) == "cancelled"
