"""What is to happen once: one is first, a failure leaves no mark, and a mark lasts its time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from tests.kit.once import once_of
from tests.kit.workplace import stored

from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.once.once import Once
from penstock.errors import (
    InvalidItem,
    InvalidJob,
    InvalidName,
    QueueFull,
    ReservationLost,
    SettingError,
)
from penstock.settings import OnceSettings, Settings
from penstock.testing.eventually import eventually

SHA = "a1b2c3d4" * 8


class Failed(Exception):
    pass


@pytest.fixture
async def open_once(place, namespace):
    """`await open_once(hold_s=…)` is another process, as far as the server can tell."""
    async with AsyncExitStack() as opened:

        async def open_one(**once) -> Once:
            settings = Settings(url=place.url, namespace=namespace, once=OnceSettings(**once))
            return await opened.enter_async_context(once_of(settings))

        yield open_one


@pytest.fixture
async def once(open_once):
    return await open_once()


def keys_of(once, key=SHA):
    return DedupeKeys.of(once.app.redis.keys, key)


async def ttl_ms(once, key=SHA):
    return await once.app.redis.call("PTTL", keys_of(once, key).mark)


# ---- reserve


async def test_the_first_does_the_work_and_the_next_hears_what_it_was(once):
    async with once.reserve(SHA, value="/a.jpg") as mark:
        assert (mark.first, mark.value, bool(mark), mark.lost) == (True, "/a.jpg", True, False)
    async with once.reserve(SHA, value="/b.jpg") as mark:
        assert (mark.first, mark.value, bool(mark)) == (False, "/a.jpg", False)
    assert await once.peek(SHA) == "/a.jpg"


async def test_a_mark_lasts_five_minutes_unless_told_otherwise(once):
    async with once.reserve(SHA):
        assert 50_000 < await ttl_ms(once) <= 60_000
    assert 295_000 < await ttl_ms(once) <= 300_000
    async with once.reserve("other", ttl=timedelta(hours=2)):
        pass
    assert 7_195_000 < await ttl_ms(once, "other") <= 7_200_000


async def test_while_one_is_at_work_the_others_are_not_first(open_once):
    once, other = await open_once(), await open_once()
    async with once.reserve(SHA, value="/a.jpg") as mark:
        assert mark.first
        async with other.reserve(SHA) as second:
            assert (second.first, second.value) == (False, "/a.jpg")
        assert await other.seen(SHA)
    assert await other.peek(SHA) == "/a.jpg"


@pytest.mark.parametrize("error", [Failed, asyncio.CancelledError, KeyboardInterrupt])
async def test_an_error_in_the_block_leaves_no_mark(once, error):
    with pytest.raises(error):
        async with once.reserve(SHA):
            raise error
    assert await once.peek(SHA) is None
    async with once.reserve(SHA) as mark:
        assert mark.first


async def test_a_cancelled_block_releases(once):
    inside = asyncio.Event()

    async def work():
        async with once.reserve(SHA):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await once.peek(SHA) is None


async def test_a_failure_is_told_though_the_server_cannot_be_told_of_it(once):
    with pytest.raises(Failed):  # noqa: PT012
        async with once.reserve(SHA):
            await once.app.close()
            raise Failed


async def test_who_is_cancelled_while_it_reserves_holds_nothing(once):
    for steps in range(12):
        task = asyncio.create_task(once.reserve(f"key-{steps}").__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            assert await once.peek(f"key-{steps}") is None, steps


async def test_the_failure_of_one_that_is_not_first_leaves_the_mark(once):
    async with once.reserve(SHA, value="/a.jpg"):
        pass
    with pytest.raises(Failed):
        async with once.reserve(SHA):
            raise Failed
    assert await once.peek(SHA) == "/a.jpg"


async def test_of_many_at_once_exactly_one_is_first(open_once):
    onces = [await open_once() for _ in range(5)]
    meet = asyncio.Barrier(50)

    async def one(number):
        await meet.wait()
        async with onces[number % 5].reserve(SHA, value=str(number)) as mark:
            return mark.first

    assert sum(await asyncio.gather(*map(one, range(50)))) == 1


async def test_a_reservation_is_renewed_while_its_block_runs(open_once):
    once, other = await open_once(hold_s=0.3), await open_once()
    async with once.reserve(SHA) as mark:
        seen_fall = await ttl_ms(once)

        async def renewed_thrice(state={"last": seen_fall, "rises": 0}):  # noqa: B006
            now = await ttl_ms(once)
            state["rises"] += now > state["last"]
            state["last"] = now
            return state["rises"] >= 3

        await eventually(renewed_thrice)
        assert not mark.lost
        async with other.reserve(SHA) as second:
            assert not second.first
    assert await ttl_ms(once) > 1_000


async def test_who_was_overtaken_is_told_and_sets_no_mark(open_once):
    once, other = await open_once(), await open_once()
    with pytest.raises(ReservationLost) as lost:  # noqa: PT012
        async with once.reserve(SHA, value="/a.jpg"):
            await once.forget(SHA)  # as if it had run out
            async with other.reserve(SHA, value="/b.jpg") as mark:
                assert mark.first
    assert SHA in str(lost.value)
    assert await once.peek(SHA) == "/b.jpg"


async def test_who_was_overtaken_releases_nothing_of_the_other(open_once):
    once, other = await open_once(), await open_once()
    async with AsyncExitStack() as held:
        with pytest.raises(Failed):  # noqa: PT012
            async with once.reserve(SHA, value="/a.jpg"):
                await once.forget(SHA)
                await held.enter_async_context(other.reserve(SHA, value="/b.jpg"))
                raise Failed
        assert await once.peek(SHA) == "/b.jpg"
    assert await once.peek(SHA) == "/b.jpg"


async def test_what_ran_out_and_was_taken_by_nobody_is_marked_all_the_same(once):
    async with once.reserve(SHA, value="/a.jpg"):
        await once.forget(SHA)
    assert await once.peek(SHA) == "/a.jpg"


async def test_a_mark_deleted_by_others_does_not_let_a_second_one_in(open_once):
    once, other = await open_once(), await open_once()
    async with once.reserve(SHA, value="/a.jpg"):
        await once.app.redis.call("DEL", keys_of(once).mark)
        async with other.reserve(SHA) as mark:
            assert (mark.first, mark.value) == (False, "")
    assert await once.peek(SHA) == "/a.jpg"


async def test_a_lost_renewal_shows_within_the_block(open_once):
    once = await open_once(hold_s=0.3)
    with pytest.raises(ReservationLost):  # noqa: PT012
        async with once.reserve(SHA) as mark:
            await once.app.redis.call("SET", keys_of(once).holder, "another", "PX", 60_000)
            await eventually(lambda: mark.lost)


async def test_a_replay_is_first_whoever_was_and_marks_anew(once):
    assert not await once.seen(SHA, "/a.jpg", ttl=10)
    async with once.reserve(SHA, value="/b.jpg", replay=True) as mark:
        assert (mark.first, mark.value) == (True, "/b.jpg")
    assert await once.peek(SHA) == "/b.jpg"
    assert await ttl_ms(once) > 10_000


async def test_a_failed_replay_leaves_the_mark_as_it_was(once):
    assert not await once.seen(SHA, "/a.jpg", ttl=10)
    with pytest.raises(Failed):
        async with once.reserve(SHA, value="/b.jpg", replay=True):
            raise Failed
    assert await once.peek(SHA) == "/a.jpg"


async def test_the_same_key_in_another_scope_is_another_mark(once):
    assert not await once.seen(SHA, scope="front_door")
    assert not await once.seen(SHA, scope="back_door")
    assert not await once.seen(SHA)
    assert await once.seen(SHA, scope="front_door")
    async with once.reserve(SHA, scope="front_door") as mark:
        assert not mark.first
    assert await once.forget(SHA, scope="front_door")
    assert await once.peek(SHA, scope="back_door") == ""
    assert not await once.seen("b:c", scope="a")
    assert not await once.seen("c", scope="a:b"), "not the same as `b:c` in `a`"


# ---- seen, peek, forget


async def test_of_many_who_ask_whether_it_was_seen_one_hears_no(open_once):
    onces = [await open_once() for _ in range(5)]
    answers = await asyncio.gather(*(onces[n % 5].seen(SHA, f"/{n}.jpg") for n in range(50)))
    assert answers.count(False) == 1
    assert await onces[0].peek(SHA) == f"/{answers.index(False)}.jpg"


async def test_one_who_looks_before_it_marks_would_be_found(open_once):
    once = await open_once()

    async def look_then_mark(number):
        if await once.peek(SHA) is not None:
            return True
        await once.app.redis.call("SET", keys_of(once).mark, str(number), "PX", 60_000)
        return False

    answers = await asyncio.gather(*map(look_then_mark, range(50)))
    assert answers.count(False) > 1, "what the test above counts tells the two apart"


async def test_a_mark_ends_with_its_time(once):
    assert not await once.seen(SHA, ttl=0.05)

    async def is_free():
        return await once.peek(SHA) is None

    await eventually(is_free)
    assert not await once.seen(SHA)


async def test_what_is_forgotten_may_happen_again(once):
    assert not await once.forget(SHA)
    async with once.reserve(SHA):
        pass
    assert await once.forget(SHA)
    assert await once.peek(SHA) is None
    assert not await once.forget(SHA)
    async with once.reserve(SHA) as mark:
        assert mark.first


async def test_any_path_comes_back_as_it_was(once):
    for path in ("", "/Front Door/ä.jpg", "/not\udcffutf8", "x" * 5_000):
        await once.forget(SHA)
        assert not await once.seen(SHA, path)
        assert await once.peek(SHA) == path
        async with once.reserve(SHA) as mark:
            assert mark.value == path


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), "5", timedelta(0), 1e12, 0.0001])
async def test_a_time_that_is_none_is_refused(once, ttl):
    with pytest.raises(SettingError, match="ttl"):
        once.reserve(SHA, ttl=ttl)
    with pytest.raises(SettingError, match="ttl"):
        await once.seen(SHA, ttl=ttl)
    assert await once.peek(SHA) is None


@pytest.mark.parametrize("key", ["", None, 7, "x" * 513])
async def test_a_key_that_is_none_is_refused(once, key):
    for scope in (None, "camera"):
        with pytest.raises(InvalidName):
            once.reserve(key, scope=scope)
        with pytest.raises(InvalidName):
            await once.peek(key, scope=scope)
    with pytest.raises(InvalidName):
        await once.seen(SHA, scope="")


@pytest.mark.parametrize("value", [None, b"/a", 7, "\ud800"])
async def test_a_value_that_is_no_text_is_refused(once, value):
    with pytest.raises(InvalidItem):
        await once.seen(SHA, value)


# ---- enqueue


async def test_a_job_is_added_with_its_mark(once):
    queue = once.app.queue("detection_queue")
    first = await once.enqueue(SHA, queue, {"n": 1}, value="/a.jpg")
    assert (first.first, first.value, bool(first)) == (True, "/a.jpg", True)
    second = await once.enqueue(SHA, queue, {"n": 2}, value="/b.jpg")
    assert (second.first, second.value, second.job_id) == (False, "/a.jpg", "")
    assert len(await stored(queue)) == 1
    assert await once.peek(SHA) == "/a.jpg"
    assert await once.seen(SHA)
    assert 295_000 < await ttl_ms(once) <= 300_000
    async with once.reserve(SHA) as mark:
        assert (mark.first, mark.value) == (False, "/a.jpg")


async def test_what_was_seen_or_is_reserved_is_not_queued(once):
    queue = once.app.queue("detection_queue")
    async with once.reserve(SHA, value="/a.jpg"):
        assert await once.enqueue(SHA, queue, 1) == (await once.enqueue(SHA, queue, 2))
        assert (await once.enqueue(SHA, queue, 1)).value == "/a.jpg"
    assert not (await once.enqueue(SHA, queue, 1)).first
    assert await stored(queue) == []


async def test_a_full_queue_leaves_no_mark(once):
    queue = once.app.queue("detection_queue", max_size=1)
    await queue.push(0)
    with pytest.raises(QueueFull):
        await once.enqueue(SHA, queue, 1, value="/a.jpg")
    assert await once.peek(SHA) is None
    assert not await once.seen(SHA)
    await once.forget(SHA)
    assert (await once.enqueue(SHA, queue, 1, max_size=2)).first


async def test_of_many_who_enqueue_one_adds_a_job(open_once):
    onces = [await open_once() for _ in range(5)]
    queues = [once.app.queue("detection_queue") for once in onces]
    added = await asyncio.gather(
        *(onces[n % 5].enqueue(SHA, queues[n % 5], n, value=f"/{n}") for n in range(50))
    )
    firsts = [one for one in added if one.first]
    assert len(firsts) == 1
    assert {one.value for one in added} == {firsts[0].value}
    assert len(await stored(queues[0])) == 1


async def test_a_replay_is_queued_whatever_was_marked(once):
    queue = once.app.queue("detection_queue")
    await once.enqueue(SHA, queue, 1, value="/a.jpg")
    again = await once.enqueue(SHA, queue, 2, value="/b.jpg", replay=True)
    assert (again.first, again.value) == (True, "/b.jpg")
    assert len(await stored(queue)) == 2
    assert await once.peek(SHA) == "/b.jpg"
    assert not (await once.enqueue(SHA, queue, 3)).first


async def test_what_was_queued_and_forgotten_is_queued_again(once):
    queue = once.app.queue("detection_queue")
    assert await once.enqueue(SHA, queue, 1)
    assert await once.forget(SHA, queue=queue)
    assert await once.enqueue(SHA, queue, 2)
    assert len(await stored(queue)) == 2


async def test_options_of_jobs_hold(once):
    queue = once.app.queue("detection_queue", status=True)
    added = await once.enqueue(
        SHA, queue, {"n": 1}, value="/a.jpg", priority="high", job_id="own-id", ttl=60
    )
    assert added.job_id == "own-id"
    assert len(await stored(queue, "high")) == 1
    assert (await queue.job("own-id").status()).status == "queued"
    assert 55_000 < await ttl_ms(once) <= 60_000
    assert await once.enqueue("later", queue, {"n": 2}, delay=60)
    assert not await once.enqueue("later", queue, {"n": 2}, delay=60)
    assert await once.app.redis.call("ZCARD", queue.keyring.delayed) == 1


@pytest.mark.parametrize("name", ["unique", "unique_for", "idempotency_key"])
async def test_what_the_mark_decides_is_no_option(once, name):
    with pytest.raises(InvalidJob, match=name):
        await once.enqueue(SHA, once.app.queue("detection_queue"), 1, **{name: 5})
