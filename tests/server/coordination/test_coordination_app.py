"""The primitives as an application offers them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.kit.patience import patient

from penstock.queues.storage.keys import QueueKeys
from penstock.testing.eventually import eventually


async def test_an_application_offers_every_primitive(app):
    async with app.once("a", value="first") as mark:
        assert mark.first
    assert await app.seen("a")
    assert await app.marks.peek("a") == "first"
    limit = app.limit("api", "2/hour")
    assert limit is app.limit("api", "2/hour")
    assert limit is not app.limit("api", "3/hour")
    assert await limit.try_acquire()
    assert list(await app.limits.all()) == ["api"]
    assert (await app.hourly_limit.increment()).allowed
    async with app.slots("gpu", 1).hold() as slot:
        assert slot.fence > 0
    cache = app.cache("camera")
    assert cache is app.cache("camera")
    await cache.set("front_door", {"on": True})
    assert await cache.get("front_door") == {"on": True}
    run = await app.runs.start("run-1")
    assert (await run.record()).status == "created"
    feed = app.feed("news")
    assert await feed.publish("said", {"n": 1}, final=True) == 1
    assert [event.number async for event in feed.read(after=0)] == [1]
    batches = app.window("batch", to=app.queue("analysis_queue"), max_items=1)
    added = await batches.add("front_door", 17)
    assert added.closed == added.batch_id


async def test_an_application_that_was_closed_opens_again(app):
    slots, limit = app.slots("gpu", 1), app.limit("fast", "1000/hour", lease=10)
    feed = app.feed("news")
    async with slots.hold():
        assert await limit.try_acquire()
        await feed.publish("said", 1)
    await app.close()
    await app.open()
    async with slots.hold(timeout_s=5):
        assert await limit.try_acquire()
        await feed.publish("said", 2, final=True)
    assert [event.data async for event in feed.read(after=0)] == [1, 2]


async def test_a_worker_closes_batches_that_are_due(workplace):
    app, got = await workplace.open(), []
    queue = app.queue("analysis_queue")
    batches = app.window("batch", to=queue, max_age=0.3, idle=0.3)

    @queue.handler
    async def analyse(batch: dict) -> None:
        got.append(batch)

    await workplace.start(app)
    await batches.add("front_door", 1)
    await batches.add("front_door", 2)
    await eventually(lambda: got)
    assert got[0]["detection_ids"] == [1, 2]
    assert got[0]["camera_id"] == "front_door"


async def test_a_penalty_reaches_processes_with_permits_in_hand_at_once(open_app, place):
    one, other = await open_app(place), await open_app(place)
    limit, leased = one.limit("api", "100000/hour"), other.limit("api", "100000/hour", lease=100)
    assert await leased.try_acquire()
    await limit.penalise(60)

    async with asyncio.timeout(patient(0.5)):
        while (await leased.try_acquire()).allowed:
            pass


async def test_a_worker_without_windows_closes_what_others_have_left_open(workplace):
    gone = await workplace.open()
    await gone.window("batch", to=gone.queue("analysis_queue"), max_age=0.2).add("front_door", 1)
    app = await workplace.open()

    @app.task(queue="other")
    async def something() -> None: ...

    await workplace.start(app)

    async def is_queued():
        return (
            await app.redis.call("LLEN", QueueKeys.of(app.redis.keys, "analysis_queue").waiting)
            == 1
        )

    await eventually(is_queued)


async def test_what_fails_to_close_leaves_nothing_else_open(app, monkeypatch):
    closed = []

    async def fail():
        raise RuntimeError("it does not close")

    async def close(part):
        closed.append(part)

    limit, slots = app.limit("closing", "5/min"), app.slots("closing", 1)
    monkeypatch.setattr(limit, "close", fail)
    for name in ("wakeups", "leases"):
        part = getattr(app, name)
        monkeypatch.setattr(part, "close", partial(close, name))
    monkeypatch.setattr(slots, "close", partial(close, "slots"))
    with pytest.raises(RuntimeError, match="does not close"):
        await app.close_coordination()
    assert closed == ["slots", "wakeups", "leases"]
    monkeypatch.undo()
