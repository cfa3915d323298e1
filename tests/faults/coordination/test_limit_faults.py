"""Those who wait for a limit die, the server dies, a provider says stop: order and counts stay."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
from tests.kit.paths import PROGRAMS
from tests.kit.patience import patient

from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.setting import setting_of
from penstock.coordination.wakeups import Wakeups
from penstock.errors import LimitReached
from penstock.settings.coordination import LimitSettings
from penstock.testing.eventually import eventually

WAITER = PROGRAMS / "limit_waiter.py"


@pytest.fixture
def limit_of(valkey_server, open_client, namespace):
    """`await limit_of("5/s", …)` is the limit in another process, as far as the server can tell."""

    async def make(rates, *, url=valkey_server.url, lease=0, listens=False, ticket_s=3.0):
        limits = LimitSettings(ticket_s=ticket_s, recheck_s=0.1)
        client = await open_client(url, namespace=namespace, limits=limits)
        wakeups = Wakeups(client) if listens else None
        return Limit(client, "shared", setting_of(rates), lease=lease, wakeups=wakeups)

    return make


async def _in_line(limit: Limit, count: int) -> None:
    async def stands() -> bool:
        return await limit.client.call("ZCARD", limit.keys("all").waiting) == count

    await eventually(stands)


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        ([(3, 0), (1, 0), (5, 0), (0, 0), (4, 0), (2, 0)], [3, 1, 5, 0, 4, 2]),
        ([(0, -1), (1, 0), (2, 5), (3, 0), (4, 6), (5, -1)], [4, 2, 1, 3, 0, 5]),
    ],
    ids=["in the order of asking", "higher priorities first"],
)
async def test_processes_wait_in_one_line(limit_of, asked, order):
    limits = [await limit_of("1/150ms") for _ in asked]
    await limits[0].penalise(60)  # nobody gets through until all stand in line
    came: list[int] = []

    async def wait(number: int, priority: int) -> None:
        await limits[number].acquire(priority=priority)
        came.append(number)

    async with asyncio.TaskGroup() as waiting:
        for place, (number, priority) in enumerate(asked):
            waiting.create_task(wait(number, priority))
            await _in_line(limits[0], place + 1)
        await limits[0].penalise(0)
    assert came == order


async def test_a_caller_that_does_not_wait_goes_behind_those_who_do(limit_of):
    first, second = await limit_of("2/300ms"), await limit_of("2/300ms")
    assert await first.try_acquire(1)
    waiting = asyncio.create_task(first.acquire(2))
    await _in_line(first, 1)
    answer = await second.try_acquire()
    assert (answer.allowed, answer.reason) == (False, "line")
    assert await second.try_acquire(priority=1)
    await waiting


async def test_the_place_of_a_killed_waiter_is_given_up(limit_of, valkey_server, namespace):
    limit = await limit_of("1/300ms", ticket_s=0.5)
    assert await limit.try_acquire()
    await limit.penalise(60)  # nobody gets through until the waiter is dead
    arguments = (WAITER, valkey_server.url, namespace, "1/300ms", "0.5")
    waiter = await asyncio.create_subprocess_exec(sys.executable, *map(str, arguments))
    await _in_line(limit, 1)
    waiter.kill()
    await waiter.wait()
    began = time.monotonic()
    await limit.penalise(0)
    await asyncio.wait_for(limit.acquire(), 60)
    assert time.monotonic() - began < patient(8)


async def test_a_killed_waiter_costs_the_others_a_fraction_of_a_second(
    limit_of, valkey_server, namespace
):
    """Its place is kept for seconds; what would be its own is given to those behind."""
    limit = await limit_of("1/200ms", ticket_s=60)
    assert await limit.try_acquire()
    await limit.penalise(60)
    arguments = (WAITER, valkey_server.url, namespace, "1/200ms", "60")
    waiter = await asyncio.create_subprocess_exec(sys.executable, *map(str, arguments))
    await _in_line(limit, 1)
    waiter.kill()
    await waiter.wait()
    await limit.penalise(0)
    began = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*(limit.acquire() for _ in range(5))), 60)
    assert time.monotonic() - began < patient(8)  # its own place is kept for a minute
    assert await limit.client.call("ZCARD", limit.keys("all").waiting) == 1, "it might come back"


async def test_a_waiter_that_is_cancelled_leaves_the_line(limit_of):
    limit = await limit_of("1/min")
    assert await limit.try_acquire()
    waiting = asyncio.create_task(limit.acquire())
    await _in_line(limit, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await _in_line(limit, 0)


@pytest.mark.parametrize("lease", [0, 50])
async def test_a_penalty_stops_all_processes_at_once(limit_of, lease):
    limits = [await limit_of("100000/min", lease=lease, listens=bool(lease)) for _ in range(4)]
    used: list[float] = []
    stop = asyncio.Event()

    async def use(limit: Limit) -> None:
        while not stop.is_set():
            asked = time.monotonic()
            if await limit.try_acquire():
                used.append(asked)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as users:
        for limit in limits:
            users.create_task(use(limit))
        await eventually(lambda: len(used) > 200)
        await limits[0].penalise(0.5)
        stopped = time.monotonic()
        await eventually(lambda: used[-1] > stopped + 0.4)
        stop.set()
    # Those with permits in hand hear of it on another connection; these end by themselves anyway.
    slack = 0.25 if lease else 0
    assert not [at for at in used if stopped + slack < at < stopped + 0.4]
    for limit in limits:
        await limit.close()


async def test_counts_outlive_the_servers_death_and_nobody_gets_through_meanwhile(
    limit_of, start_server
):
    server = start_server("valkey", "--appendonly", "yes", "--appendfsync", "always")
    limits = [await limit_of(["10/min", "20/hour"], url=server.url) for _ in range(2)]
    for limit in limits:
        assert await limit.try_acquire(3)
    server.kill()
    for limit in limits:
        answer = await limit.try_acquire()
        assert (answer.allowed, answer.reason) == (False, "away")
        with pytest.raises(LimitReached):
            await limit.acquire(timeout_s=0.2)
    waiting = asyncio.create_task(limits[0].acquire(4))
    server.start()
    await asyncio.wait_for(waiting, 20)
    answer = await limits[1].peek()
    assert [window.remaining for window in answer.windows] == [0, 10]


async def test_a_failure_is_told_although_its_refund_fails(limit_of, start_server):
    server = start_server()
    limit = await limit_of("10/min", url=server.url)

    async def fail() -> None:
        async with limit.reserved(5):
            server.kill()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_permits_of_keys_that_come_meanwhile_do_not_disturb_the_end(limit_of):
    limit = await limit_of("1000/min", lease=10)
    for number in range(20):
        assert await limit.try_acquire(key=f"key-{number}")
    late = [asyncio.create_task(limit.try_acquire(key=f"late-{number}")) for number in range(20)]
    await limit.close()
    assert all(await asyncio.gather(*late))
    await limit.close()


async def test_keys_that_come_once_are_not_remembered(limit_of):
    limit = await limit_of("1000/min", lease=10)
    await asyncio.gather(*(limit.try_acquire(key=f"key-{number}") for number in range(3_000)))
    await eventually(lambda: len(limit._prefetched._held) <= 1_000)
    await limit.close()


async def test_permits_in_hand_of_a_process_that_stood_still_are_void(limit_of):
    """It stands still between two calls, for longer than they last."""
    limit = await limit_of("1000/min", lease=100)
    assert await limit.try_acquire()
    assert limit._prefetched._held["all"].left > 10
    time.sleep(0.3)  # noqa: ASYNC251  so does everything else in it
    assert limit._prefetched.take("all", 1) is None
    await limit.close()
