"""Threads of plain functions: their clock, and what an abandoned call costs."""

import asyncio
import threading

import pytest

from penstock.delivery.threads import HandlerThreads
from penstock.testing.eventually import eventually


@pytest.fixture
def release():
    release = threading.Event()
    yield release
    release.set()


@pytest.fixture
def threads():
    threads = HandlerThreads(2, "test")
    yield threads
    threads.close()


def hang(release, began=None):
    def function():
        if began is not None:
            began.set()
        release.wait(30)
        return "late"

    return function


async def test_the_clock_starts_with_the_function_not_with_the_wait_for_a_thread(release):
    threads = HandlerThreads(1, "test")
    first = asyncio.create_task(threads.call("first", hang(release)))
    await asyncio.sleep(0)
    second = asyncio.create_task(threads.call("second", lambda: "in time", timeout_s=0.05))
    await asyncio.wait([second], timeout=0.3)
    assert not second.done(), "it waits for its thread, and that is no time of its function"
    release.set()
    assert (await first, await second) == ("late", "in time")
    assert threads.lost == 0
    threads.close()


@pytest.mark.parametrize("how", ["timed out", "cancelled"])
async def test_an_abandoned_call_holds_its_place_until_its_function_returns(threads, release, how):
    changes, ended, began = [], [], threading.Event()
    threads.when_changed = lambda: changes.append(threads.lost)
    timeout_s = 0.05 if how == "timed out" else None
    call = asyncio.create_task(
        threads.call("slow", hang(release, began), timeout_s=timeout_s, when_abandoned=ended.append)
    )
    if how == "cancelled":
        await eventually(began.is_set)
        call.cancel()
    with pytest.raises((TimeoutError, asyncio.CancelledError)):
        await call
    assert threads.lost == 1
    told = threads.trouble()
    assert told is not None
    assert told.startswith("1 of 2 places are held by functions that timed out or were cancelled")
    assert told.endswith("slow (1)")
    assert await threads.call("other", lambda: 7) == 7
    release.set()
    assert await ended[0] == "late"
    await eventually(lambda: threads.trouble() is None)
    assert changes == [1, 0]


async def test_what_an_abandoned_function_raises_is_not_reported(threads, release, caplog):
    def fail():
        release.wait(30)
        raise LookupError("too late to matter")

    with pytest.raises(TimeoutError, match=r"still running after 0\.05 s"):
        await threads.call("slow", fail, timeout_s=0.05)
    release.set()
    await eventually(lambda: threads.lost == 0)
    assert caplog.text == ""


async def test_a_timeout_that_the_function_itself_raises_is_its_own(threads):
    def fail():
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await threads.call("quick", fail, timeout_s=5)
    assert threads.lost == 0


async def test_a_call_that_never_began_holds_no_place(release):
    threads = HandlerThreads(1, "test")
    first = asyncio.create_task(threads.call("first", hang(release)))
    await asyncio.sleep(0)
    second = asyncio.create_task(threads.call("second", lambda: None))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    assert threads.lost == 0
    release.set()
    await first
    threads.close()


async def test_places_are_given_in_the_order_of_asking_and_not_after_the_end(release):
    threads, closed, order = HandlerThreads(1, "test"), asyncio.Event(), []

    async def work(number, closed):
        async with threads.place(closed) as is_free:
            order.append((number, is_free))
            if is_free and number == 0:
                with pytest.raises(TimeoutError):
                    await threads.call("slow", hang(release), timeout_s=0.05)

    tasks = [asyncio.create_task(work(0, asyncio.Event()))]
    tasks += [asyncio.create_task(work(1, closed))]
    tasks += [asyncio.create_task(work(number, asyncio.Event())) for number in (2, 3)]
    await tasks[0]
    assert order == [(0, True)], "its place is lost, so no other has begun"
    closed.set()
    await tasks[1]
    assert order == [(0, True), (1, False)]
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    release.set()
    await tasks[3]
    assert order == [(0, True), (1, False), (3, True)]
    threads.close()
