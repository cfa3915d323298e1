"""How many lanes, delayed jobs and queues there may be: what is refused, and what is not."""

import asyncio

import pytest
from tests.kit.scripts import scripts_of
from tests.kit.workplace import stored

from penstock import block
from penstock.errors import QueueFull, SendBatchFailed, TooMany
from penstock.queues.storage.keys import QueuesKeys
from penstock.testing.eventually import eventually


async def lanes_of(queue):
    """Fair lanes in the index, and in the ring."""
    index = await queue.client.call("SMEMBERS", queue.keyring.lanes)
    ring = await queue.client.call("LRANGE", queue.keyring.ring, 0, -1)
    return set(index), ring


async def rejected(queue):
    return int(await queue.client.call("HGET", queue.keyring.counters, "rejected") or 0)


# ---- lanes


async def send_raw(queue, group, **options):
    return await queue.push("x", group=group, **options)


async def send_unique(queue, group, **options):
    """The same by `submit_jobs`."""
    return await queue.push("x", group=group, unique=f"only {group}", **options)


SENDS = pytest.mark.parametrize("send", [send_raw, send_unique])


@SENDS
@pytest.mark.parametrize("overflow", ["reject", "dlq", "drop_oldest", block(0.05)])
async def test_a_lane_too_many_is_refused_whatever_a_full_list_does(workplace, send, overflow):
    queue = (await workplace.open(max_lanes=3)).queue("jobs", overflow=overflow)
    for group in "abc":
        await send(queue, group)
    with pytest.raises(QueueFull, match=r"queues\.max_lanes allows 3 fair lanes") as refused:
        await send(queue, "d")
    error = refused.value
    assert (error.queue, error.what, error.limit, error.setting) == (
        *("jobs", "fair lanes with jobs", 3, "queues.max_lanes"),
    )
    result = await queue.add_safe("x", group="d")
    assert (result.success, result.queue_length) == (False, 0)
    assert await rejected(queue) == 2
    assert await lanes_of(queue) == ({b"a", b"b", b"c"}, [b"a", b"b", b"c"])
    assert await queue.client.call("EXISTS", queue.keyring.list_of("d")) == 0
    assert await queue.client.call("EXISTS", queue.keyring.overflow) == 0
    assert await queue.client.call("EXISTS", queue.keyring.unique("only d")) == 0


@SENDS
async def test_lanes_that_are_open_and_jobs_without_a_group_are_taken(workplace, send):
    queue = (await workplace.open(max_lanes=2)).queue("jobs")
    for group in "aabbab":
        await queue.push("more", group=group)
    await send(queue, "b")
    await queue.push("plain")
    for priority in ("high", "normal", "low"):
        await queue.push("first", priority=priority)
    assert (await lanes_of(queue))[1] == [b"a", b"b"]


@SENDS
async def test_a_lane_that_is_empty_makes_room_for_another(workplace, send):
    app = await workplace.open(max_lanes=1)
    queue = app.queue("jobs")
    await send(queue, "a")
    waiting = asyncio.create_task(send(queue, "b", overflow=block(60)))
    with pytest.raises(QueueFull):
        await send(queue, "c")
    ran = []

    @queue.handler
    async def note(job: str) -> None:
        ran.append(job)

    await workplace.start(app)
    assert (await waiting).success
    await eventually(lambda: len(ran) == 2)
    assert (await lanes_of(queue)) == (set(), [])


@SENDS
async def test_no_limit_is_no_limit(workplace, send):
    queue = (await workplace.open(max_lanes=0)).queue("jobs")
    for number in range(50):
        await send(queue, f"g{number}")
    assert len((await lanes_of(queue))[1]) == 50


async def test_a_bulk_send_to_a_new_lane_is_refused_whole(workplace):
    queue = (await workplace.open(max_lanes=1)).queue("jobs")
    await queue.push_many(["x"] * 1_200, group="a")
    with pytest.raises(QueueFull, match="max_lanes"):
        await queue.push_many(["x"] * 1_200, group="b")
    assert await queue.client.call("EXISTS", queue.keyring.list_of("b")) == 0


async def test_a_bulk_send_of_tracked_jobs_says_of_each_that_its_lane_was_refused(workplace):
    app = await workplace.open(max_lanes=1)

    @app.task(queue="jobs", status=True)
    async def note(number: int) -> None: ...

    await note.with_options(group="a").send_many([(1,), (2,)])
    with pytest.raises(SendBatchFailed) as failed:
        await note.with_options(group="b").send_many([(1,), (2,)])
    assert {one.setting for one in failed.value.outcomes} == {"queues.max_lanes"}
    assert await app.redis.call("ZCARD", note.queue.keyring.jobs("queued")) == 2


async def test_many_producers_together_open_no_lane_too_many(workplace):
    apps = [await workplace.open(max_lanes=20) for _ in range(3)]
    tries = [
        (send_raw, send_unique)[number % 2](apps[number % 3].queue("jobs"), f"g{number}")
        for number in range(300)
    ]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, QueueFull) for one in results) == 280
    index, ring = await lanes_of(apps[0].queue("jobs"))
    assert (len(index), len(ring)) == (20, 20)


async def test_lanes_whose_jobs_another_program_took_are_not_counted_for_ever(workplace):
    queue = (await workplace.open(max_lanes=3)).queue("jobs")
    for group in "abc":
        await queue.push("x", group=group)
    await queue.client.call("DEL", queue.keyring.list_of("a"))
    await queue.push("x", group="d")
    assert (await lanes_of(queue))[0] == {b"b", b"c", b"d"}


async def test_the_mark_of_a_complete_index_is_no_lane(workplace):
    queue = (await workplace.open(max_lanes=2)).queue("jobs")
    await queue.client.call("SADD", queue.keyring.lanes, "")
    for group in "ab":
        await queue.push("x", group=group)
    with pytest.raises(QueueFull):
        await queue.push("x", group="c")
    assert (await lanes_of(queue))[0] == {b"", b"a", b"b"}


async def test_a_foreign_key_in_place_of_the_index_refuses_no_job(workplace):
    queue = (await workplace.open(max_lanes=1)).queue("jobs")
    await queue.client.call("SET", queue.keyring.lanes, "foreign")
    for group in "ab":
        await queue.push("x", group=group)
    assert await queue.client.call("LRANGE", queue.keyring.ring, 0, -1) == [b"a", b"b"]


async def test_what_was_taken_before_comes_back_to_a_lane_of_its_own(workplace):
    """Retries and delayed jobs: a refusal would lose them."""
    app = await workplace.open(max_lanes=1)
    queue = app.queue("jobs")
    await queue.push("later", group="b", delay=0.01)
    await queue.push("now", group="a")
    facts = await app.queues.facts("jobs")
    assert (facts.delayed, facts.waiting) == (1, 1)
    assert await app.queues.pause("jobs", "a")

    ran = asyncio.Event()

    @queue.handler
    async def note(job: str) -> None:
        assert job == "later"
        ran.set()

    await workplace.start(app)
    await asyncio.wait_for(ran.wait(), 60)


@SENDS
@pytest.mark.parametrize("overflow", ["drop_oldest", "dlq"])
async def test_a_lane_that_loses_all_its_jobs_for_a_new_one_has_one_turn(workplace, send, overflow):
    queue = (await workplace.open(max_lanes=1)).queue("jobs", max_size=1, overflow=overflow)
    for number in range(5):
        await send_raw(queue, "a")
        await queue.push("y", group="a", unique=f"u{number}")
        await send(queue, "a")
    assert await lanes_of(queue) == ({b"a"}, [b"a"])


async def test_so_does_a_lane_of_a_schedule(workplace):
    queue = (await workplace.open()).queue("jobs")
    await queue.push("x", group="a")
    for number in range(3):
        await scripts_of(queue.client).fire_tick(
            keys=queue.keyring, unique=queue.keyring.unique("u"), name="s", text="", found="",
            due=0, next_tick=0, lane="a", policy="drop_oldest", max_size=2, max_bytes=0,
            max_overflow=0, keep_ms=1, is_unique=False, fields=None,
            jobs=[part for at in "xy" for part in (f"{number}{at}", f"{number}{at}", "{}")],
        )  # fmt: skip
    assert await lanes_of(queue) == ({b"a"}, [b"a"])
    assert len(await stored(queue, "a")) == 2


@SENDS
async def test_the_bytes_of_all_lanes_together_are_bounded(workplace, send):
    queue = (await workplace.open()).queue("jobs", max_bytes=500)
    results = await asyncio.gather(
        *(send(queue, f"g{number}") for number in range(100)), return_exceptions=True
    )
    assert sum(isinstance(one, QueueFull) for one in results) > 50
    lanes = [lane.decode() for lane in (await lanes_of(queue))[0]]
    assert len(lanes) > 1
    jobs = [job for lane in lanes for job in await stored(queue, lane)]
    assert len(b"".join(jobs)) <= 500


# ---- delayed jobs


async def test_delayed_jobs_have_a_limit_of_their_own(workplace):
    queue = (await workplace.open(max_delayed=3)).queue("jobs", max_size=0)
    for number in range(3):
        await queue.push(number, delay=3_600)
    with pytest.raises(QueueFull, match=r"queues\.max_delayed allows 3 delayed jobs") as refused:
        await queue.push(3, delay=3_600)
    assert (refused.value.what, refused.value.limit) == ("delayed jobs", 3)
    with pytest.raises(SendBatchFailed) as failed:
        await queue.push_many([3, 4], delay=3_600)
    assert {one.setting for one in failed.value.outcomes} == {"queues.max_delayed"}
    await queue.push("now")
    assert await queue.client.call("ZCARD", queue.keyring.delayed) == 3
    assert await queue.client.call("HLEN", queue.keyring.delayed_bodies) == 3
    assert await rejected(queue) == 3


async def test_the_limit_of_the_list_still_holds_for_delayed_jobs(workplace):
    queue = (await workplace.open(max_delayed=100)).queue("jobs", max_size=2)
    await queue.push_many([1, 2], delay=3_600)
    with pytest.raises(QueueFull) as refused:
        await queue.push(3, delay=3_600)
    assert (refused.value.what, refused.value.limit) == ("waiting jobs", 2)


async def test_a_bulk_send_of_delayed_jobs_that_fits_in_part_is_taken_in_part(workplace):
    queue = (await workplace.open(max_delayed=3)).queue("jobs")
    with pytest.raises(SendBatchFailed) as failed:
        await queue.push_many(list(range(5)), delay=3_600)
    assert [isinstance(one, str) for one in failed.value.outcomes] == [True] * 3 + [False] * 2


# ---- queues


async def test_a_queue_too_many_is_refused_and_leaves_nothing(workplace):
    app = await workplace.open(max_queues=2)
    for name in ("one", "two"):
        await app.queue(name).push("x")
    three = app.queue("three", push="left", limit=3)
    for attempt in (
        three.push("x"),
        three.push("x", unique="u"),
        three.push_many(["x"] * 3),
        app.queues.move("one", "three"),
    ):
        with pytest.raises(TooMany, match=r"at most 2 queues .* queues\.max_queues"):
            await attempt
    result = await app.add_to_queue_safe("three", "x")
    assert not result.success
    assert "queues.max_queues" in result.error
    registry = QueuesKeys.of(app.redis.keys).registry
    assert await app.redis.call("SMEMBERS", registry) in ([b"one", b"two"], [b"two", b"one"])
    keys = three.keyring
    assert await app.redis.call("EXISTS", keys.waiting, keys.state, keys.counters) == 0
    await app.queue("one").push("y")
    await app.queues.delete("two")
    await three.push("x")


async def test_queues_that_are_known_go_on_when_the_limit_is_lowered(workplace):
    app = await workplace.open()
    for name in ("one", "two", "three"):
        await app.queue(name).push("x")
    lowered = await workplace.open(max_queues=1)
    for name in ("one", "two", "three"):
        await lowered.queue(name).push("x")
    with pytest.raises(TooMany):
        await lowered.queue("four").push("x")


async def test_a_worker_of_a_queue_too_many_is_not_ready_and_says_why(workplace):
    app = await workplace.open(max_queues=1)
    await app.queue("one").push("x")

    @app.queue("two").handler
    async def note(job: str) -> None: ...

    worker = workplace.begin(app)
    await eventually(lambda: "queues.max_queues" in str(worker.readiness()))
