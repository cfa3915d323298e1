"""The coordination primitives on every server, with few rights, without memory, and disturbed."""

import asyncio

import msgspec
import pytest
from tests.kit.patience import patient

from penstock import LimitReached, Penstock, SlotsTaken, Unreachable
from penstock.coordination.limits.result import Usage
from penstock.coordination.windows.closer import WindowCloser
from penstock.errors import OutOfMemory
from penstock.redis.node import Role
from penstock.settings import FeedSettings, LimitSettings, Settings, SlotSettings
from penstock.testing.eventually import eventually


def settings_for(url, namespace):
    return Settings(
        url=url,
        namespace=namespace,
        feeds=FeedSettings(poll_s=0.1),
        slots=SlotSettings(recheck_s=0.1),
        limits=LimitSettings(recheck_s=0.1),
    )


def jobs_of(app):
    return app.redis.call("LLEN", app.queue("q").keyring.waiting)


async def nothing():
    """What happens between two steps."""


# ---- the main path of each; `then` is what happens to the server in between


async def once(app, then):
    async with app.once("k", value="path") as mark:
        assert mark.first
        async with app.once("k") as other:
            assert not other.first
        await then()
    assert await app.marks.peek("k") == "path"
    await then()
    assert await app.seen("k")

    async def fail():
        async with app.once("other"):
            await then()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not await app.seen("other")
    assert (await app.marks.enqueue("job", app.queue("q"), {"n": 1}, value="v")).first
    await then()
    assert (await app.marks.enqueue("job", app.queue("q"), {"n": 2})).value == "v"
    assert await jobs_of(app) == 1
    assert await app.marks.forget("job")


async def limits(app, then, algorithm, **options):
    limit = app.limit(f"by-{algorithm}", ["4/min", "100/hour"], algorithm=algorithm, **options)
    assert (await limit.try_acquire()).allowed
    await then()
    reservation = await limit.reserve(2)
    await then()
    assert await reservation.settle(1) == 1
    assert (await limit.peek()).remaining == (1 if options.get("burst") == 3 else 2)
    await then()
    assert (await limit.acquire(timeout_s=0)).allowed
    await limit.reconcile([Usage(4, 60, used=4)])
    await then()
    assert not (await limit.try_acquire()).allowed
    with pytest.raises(LimitReached):
        await limit.acquire(timeout_s=0.01)
    assert 4 < await limit.penalise(5) <= 5
    await then()
    assert (await limit.peek()).reason == "penalty"
    await limit.reset()
    assert (await limit.try_acquire()).allowed


async def exact(app, then):
    await limits(app, then, "exact")


async def compact(app, then):
    await limits(app, then, "compact")


async def gcra(app, then):
    await limits(app, then, "gcra", burst=4)


async def leased(app, then):
    limit = app.limit("leased", "200/min", lease=50)
    granted = 0
    for number in range(300):
        if number % 60 == 0:
            await then()
        granted += (await limit.try_acquire()).granted
    assert 100 <= granted <= 200
    await limit.close()


async def hourly(app, then):
    assert (await app.hourly_limit.increment()).allowed
    await then()
    assert (await app.hourly_limit.increment(2)).count in {2, 3}  # the hour may have turned
    assert (await app.hourly_limit.status()).allowed


async def windows(app, then):
    window = app.window("w", to=app.queue("batches"), max_age=60, max_items=4)
    await window.add("a", 1, id="one")
    await then()
    assert not (await window.add("a", 1, id="one")).is_new
    assert (await window.add("a", 2, id="two")).size == 2
    await then()
    assert (await window.batch("a")).count == 2
    assert [batch.key for batch in await window.open_batches()] == ["a"]
    assert await window.close("a")
    assert (await window.add("b", 3, id="three", fast=True)).fast
    quick = app.window("quick", to=app.queue("batches"), max_age=0.001)
    await quick.add("a", 4, id="four")
    await then()

    async def is_closed():
        return await WindowCloser(app.redis, app.codec, [quick]).look() or not (
            await quick.open_batches()
        )

    await eventually(is_closed)
    jobs = await app.redis.call("LRANGE", app.queue("batches").keyring.waiting, 0, -1)
    assert [msgspec.json.decode(job)["items"] for job in jobs] == [[1, 2], [4]]


async def topic_windows(app, then):
    topic = app.topic("t", partitions=2)
    window = app.window("wt", to=topic, max_age=60)
    await window.add("a", 1, id="one")
    await then()
    await window.add("a", 2, id="two")
    assert await window.close("a")
    assert await window.batch("a") is None


async def runs(app, then):
    run = await app.runs.start("r:1+2", facts={"a": "b"})
    assert run.created
    await then()
    assert not (await app.runs.start("r:1+2")).created
    version = await run.move("running", expect="created")
    assert await run.note_task_start("task")
    await then()
    assert await run.mark_processed("x", "y") == 2
    assert await run.fail("z", ValueError("no"), retry_in_s=0) == 1
    await then()
    assert [failure.item for failure in await run.claim_due()] == ["z"]
    assert (await run.failures()).failures[0].error == "no"
    assert await run.checkpoint({"page": 1}, watermark=5, version=version) == version + 1
    await then()
    assert await run.resolve("z")
    await run.finish()
    record = await app.runs.get("r:1+2")
    assert (record.status, record.processed, record.watermark) == ("completed", 2, 5)
    assert [one.id for one in await app.runs.list(status="completed")] == ["r:1+2"]
    assert (await run.contract_view())["dockets_processed"] == '["x","y"]'
    told = [event.type async for event in run.feed.read(after=0)]
    assert (told[0], told[-1]) == ("started", "finished")


async def slots(app, then):
    gpu = app.slots("gpu", 1)
    slot = await gpu.take()
    await then()
    await slot.check()
    with pytest.raises(SlotsTaken):
        await gpu.take()
    waits = asyncio.create_task(gpu.take(timeout_s=20))

    async def is_in_line():
        return (await gpu.state()).waiting == 1

    await eventually(is_in_line)
    await then()
    assert await slot.release()
    later = await waits
    assert later.fence > slot.fence
    assert [holder.id for holder in await gpu.holders()] == [later.id]
    await then()
    assert await later.release()
    await gpu.set_limit(2)
    async with gpu.hold(), gpu.hold():
        assert (await gpu.state()).taken == 2
    await gpu.reset_limit()


async def feeds(app, then):
    feed = app.feed("f")
    reader = feed.read()
    assert await feed.publish("a", 1, state={"n": 1}) == 1
    assert (await anext(reader)).data == {"n": 1}
    await then()
    assert await feed.publish("b", 2, event_id="two") == 2
    assert await feed.publish("b", 2, event_id="two") == 2
    assert (await anext(reader)).data == 2
    await then()
    assert await feed.publish("c", 3, final=True) == 3
    assert [event.number async for event in reader] == [3]
    assert [event.number async for event in feed.read(after=0)] == [1, 2, 3]
    assert (await feed.snapshot()).final


async def caches(app, then):
    cache = app.cache("c")
    assert await cache.set("k", {"a": [1]})
    await then()
    assert not await cache.set("k", 2, nx=True)
    assert await cache.get("k") == {"a": [1]}

    async def make():
        await then()
        return {"big": "x" * 10_000}

    assert await cache.get_or_set("m", make) == await cache.get("m")
    assert await cache.get_many(["k", "m", "x"]) == {"k": {"a": [1]}, "m": {"big": "x" * 10_000}}
    assert await cache.zadd("z", {"a": 1, "b": 2}, ttl=60) == 2
    await then()
    assert await cache.zrangebyscore("z", 1, "(2") == ["a"]
    assert await cache.zpopmax("z") == [("b", 2.0)]
    assert await cache.expire("k", 5)
    assert await cache.delete("k", "m") == 2


PATHS = [
    *(once, exact, compact, gcra, leased, hourly, windows, topic_windows, runs, slots, feeds),
    caches,
]
each_path = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)


@each_path
async def test_every_server_does_it(any_server, namespace, path):
    async with Penstock(settings=settings_for(any_server.url, namespace)) as app:
        await path(app, nothing)


# ---- few rights


def user_of(server, namespace, *rights):
    name = f"user-{namespace}"
    server.command("ACL", "SETUSER", name, "reset", "on", ">secret", *rights)
    return f"redis://{name}:secret@127.0.0.1:{server.port}"


RIGHTS = ("+@all", "-@admin", "-@dangerous", "+info", "+role", "resetchannels")


@each_path
async def test_the_keys_and_channels_of_its_namespace_are_enough(any_server, namespace, path):
    url = user_of(any_server, namespace, *RIGHTS, f"~{namespace}::*", f"&{namespace}::*")
    async with Penstock(settings=settings_for(url, namespace)) as app:
        await path(app, nothing)


@each_path
async def test_who_may_use_no_channel_is_not_woken_and_looks_by_itself(any_server, namespace, path):
    url = user_of(any_server, namespace, *RIGHTS, f"~{namespace}::*")
    async with Penstock(settings=settings_for(url, namespace)) as app:
        await path(app, nothing)


async def test_nobody_waits_for_hints_that_are_not_allowed(any_server, namespace):
    url = user_of(any_server, namespace, *RIGHTS, f"~{namespace}::*")
    async with Penstock(settings=settings_for(url, namespace)) as app:
        async with asyncio.timeout(patient(0.7)):
            for number in range(3):
                await app.wakeups.watch(f"{namespace}::{number}", lambda: None)
        assert not app.wakeups.is_connected


# ---- disturbed


@pytest.fixture
async def own_server(start_server):
    return start_server("valkey", "--appendonly", "yes", "--appendfsync", "always")


@each_path
async def test_scripts_that_were_flushed_are_brought_again(any_server, namespace, path):
    async def flush():
        any_server.command("SCRIPT", "FLUSH")

    async with Penstock(settings=settings_for(any_server.url, namespace)) as app:
        await path(app, flush)


class Meeting:
    """Lets something happen whenever all who are under way have come to a stop."""

    def __init__(self, parties, happening):
        self._under_way, self._stopped, self._happening = parties, [], happening

    async def stop(self):
        go_on = asyncio.Event()
        self._stopped.append(go_on)
        await self._happen()
        await go_on.wait()

    async def leave(self):
        self._under_way -= 1
        await self._happen()

    async def _happen(self):
        if self._stopped and len(self._stopped) == self._under_way:
            stopped, self._stopped = self._stopped, []
            await self._happening()
            for go_on in stopped:
                go_on.set()


async def test_a_server_that_comes_back_in_between_has_all_that_was_said(own_server, namespace):
    async with Penstock(settings=settings_for(own_server.url, namespace)) as app:

        async def is_back():
            try:
                for role in (Role.DEFAULT, Role.CACHE, Role.RATELIMIT):
                    await app.redis.call("PING", role=role)
            except Unreachable:
                return False
            return True

        async def restart():
            await asyncio.to_thread(own_server.restart)
            await eventually(is_back)

        meeting = Meeting(len(PATHS), restart)

        async def walk(path):
            try:
                await path(app, meeting.stop)
            finally:
                await meeting.leave()

        async with asyncio.TaskGroup() as group:
            for path in PATHS:
                group.create_task(walk(path), name=path.__name__)


# ---- no memory left


@pytest.fixture(params=["valkey", "redis7", "redis62"])
async def tight(request, start_server, namespace):
    """An application, and a switch that takes all memory away from its server or gives it back."""
    server = start_server(request.param)

    def is_full(*, full):
        server.command("CONFIG", "SET", "maxmemory", "1" if full else "0")

    async with Penstock(settings=settings_for(server.url, namespace)) as app:
        yield app, is_full
        is_full(full=False)


async def test_work_that_is_done_is_marked_on_a_full_server(tight):
    app, is_full = tight
    assert not await app.seen("seen")
    async with app.once("done", value="v") as mark:
        is_full(full=True)
        assert mark.first
    assert await app.marks.peek("done") == "v"
    is_full(full=False)

    async def fail():
        async with app.once("failed"):
            is_full(full=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await app.marks.peek("failed") is None
    for refused in (app.seen("new"), app.marks.enqueue("new", app.queue("q"), 1)):
        with pytest.raises(OutOfMemory):
            await refused
    with pytest.raises(OutOfMemory):
        async with app.once("new"):
            pytest.fail("nothing was reserved")
    assert await app.marks.forget("seen")
    is_full(full=False)
    assert await app.marks.peek("new") is None
    assert await jobs_of(app) == 0
    assert not await app.seen("seen")


@pytest.mark.parametrize("algorithm", ["exact", "compact", "gcra"])
async def test_a_limit_admits_no_more_and_loses_no_permit_on_a_full_server(tight, algorithm):
    app, is_full = tight
    limit = app.limit("l", "4/min", algorithm=algorithm, burst=4 if algorithm == "gcra" else None)
    reservation = await limit.reserve(3)
    is_full(full=True)
    granted = sum([(await limit.try_acquire()).granted for _ in range(5)])
    # Before version 7 nobody is let through on a full server.
    is_able = app.redis.server_version >= (7,)
    assert granted == int(is_able)
    assert await limit.penalise(60) > 50
    assert (await limit.peek()).reason == ("penalty" if is_able else "away")
    assert await limit.penalise(0) == 0
    assert await reservation.refund() == 3
    is_full(full=False)
    assert (await limit.peek()).remaining == 4 - granted


async def test_a_run_ends_on_a_full_server(tight):
    app, is_full = tight
    run = await app.runs.start("run")
    await run.move("running")
    is_full(full=True)
    with pytest.raises(OutOfMemory):
        await app.runs.start("another")
    assert await run.mark_processed("a", "b") == 2
    assert await run.fail("c", "no", retry_in_s=0) == 1
    assert [failure.item for failure in await run.claim_due()] == ["c"]
    await run.checkpoint({"page": 2}, watermark=7)
    assert await run.resolve("c")
    await run.finish()
    record = await run.record()
    assert (record.status, record.processed, record.watermark) == ("completed", 2, 7)
    assert [one.id for one in await app.runs.list()] == ["run"]
    is_full(full=False)
    assert (await app.runs.start("another")).created


async def test_slots_are_held_and_given_back_on_a_full_server(tight):
    app, is_full = tight
    gpu = app.slots("gpu", 1)
    slot = await gpu.take()
    is_full(full=True)
    await slot.check()
    assert await slot.release()
    async with gpu.hold():
        assert (await gpu.state()).taken == 1
    assert (await gpu.state()).taken == 0


async def test_a_feed_that_cannot_take_an_event_loses_none_on_a_full_server(tight):
    app, is_full = tight
    feed = app.feed("f")
    assert await feed.publish("a", 1) == 1
    is_full(full=True)
    with pytest.raises(OutOfMemory):
        await feed.publish("b", 2, event_id="b", final=True)
    assert (await anext(feed.read(after=0))).data == 1
    is_full(full=False)
    assert await feed.publish("b", 2, event_id="b", final=True) == 2
    assert [event.data async for event in feed.read(after=0)] == [1, 2]


async def test_a_cache_gives_what_it_has_on_a_full_server(tight):
    app, is_full = tight
    cache = app.cache("c")
    await cache.set("k", 1)
    await cache.zadd("z", {"a": 1, "b": 2})
    is_full(full=True)
    for refused in (cache.set("k", 2), cache.zadd("z", {"c": 3}), cache.zadd("z", {"c": 3}, ttl=9)):
        with pytest.raises(OutOfMemory):
            await refused
    assert await cache.get("k") == 1
    assert await cache.get_or_set("m", lambda: 5) == 5
    assert await cache.get_many(["k", "m"]) == {"k": 1}
    assert await cache.zpopmax("z") == [("b", 2.0)]
    assert await cache.zcard("z") == 1
    assert await cache.expire("k", 60)
    assert await cache.delete("k") == 1


async def test_batches_are_closed_and_hours_counted_on_a_full_server(tight):
    app, is_full = tight
    window = app.window("w", to=app.queue("batches"))
    await window.add("a", 1, id="one")
    is_full(full=True)
    with pytest.raises(OutOfMemory):
        await window.add("a", 2, id="two")
    assert not (await window.add("a", 1, id="one")).is_new
    assert (await window.batch("a")).count == 1
    assert await window.close("a")
    assert (await app.hourly_limit.increment()).allowed
    is_full(full=False)
    assert (await window.add("a", 2, id="two")).is_new
