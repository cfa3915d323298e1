"""Many callers of one process wait for a limit: their rate, their order, and who leaves."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import pairwise

import pytest
from tests.kit.patience import patient

from penstock import LimitReached
from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.setting import setting_of
from penstock.coordination.limits.waiters import count_callers
from penstock.errors import CommandRefused
from penstock.settings.coordination import LimitSettings
from penstock.testing.eventually import eventually

LEAST_USED = 0.9
BEAT_S = 0.005


@pytest.fixture
def limit_of(valkey_server, open_client, namespace):
    """`await limit_of("5/s", …)` is the limit in another process, as far as the server can tell."""

    async def make(rates, *, recheck_s=0.5, lease=0, **setting):
        limits = LimitSettings(recheck_s=recheck_s)
        client = await open_client(valkey_server.url, namespace=namespace, limits=limits)
        return Limit(client, "shared", setting_of(rates, **setting), lease=lease)

    return make


async def waiting(limit: Limit) -> int:
    return count_callers(await limit.client.call("HVALS", limit.keys("all").tickets))


async def in_line(limit: Limit, count: int) -> None:
    async def as_many() -> bool:
        return await waiting(limit) == count

    await eventually(as_many)


async def part_used(limits: list[Limit], waiters: int, seconds: float, a_second: float) -> float:
    """Which part of a rate callers get, `waiters` for each limit, from the first that is served on.

    Only the time counts in which a task of this process is called on time and the server answers at
    once: others may compute on the same machine. But never less than half of all the time, since
    the callers themselves could be what stops the process.
    """
    served, lost_s = 0, 0.0
    is_first_served, are_all_served = asyncio.Event(), asyncio.Event()
    wanted = round(seconds * a_second)

    async def caller(limit: Limit) -> None:
        nonlocal served
        while True:
            await limit.acquire()
            served += 1
            is_first_served.set()
            if served > wanted:
                are_all_served.set()

    async def beat() -> None:
        nonlocal lost_s
        while True:
            began = time.monotonic()
            await asyncio.sleep(BEAT_S)
            await limits[0].client.call("PING")
            lost_s += time.monotonic() - began - BEAT_S

    tasks = [asyncio.create_task(caller(limit)) for limit in limits for _ in range(waiters)]
    try:
        async with asyncio.timeout(20 * seconds):
            await is_first_served.wait()
            began = time.monotonic()
            tasks.append(asyncio.create_task(beat()))
            await are_all_served.wait()
            took_s = time.monotonic() - began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return seconds / max(took_s - lost_s, took_s / 2)


async def commands(limit: Limit) -> int:
    info = (await limit.client.call("INFO", "stats")).decode()
    return int(info.split("total_commands_processed:")[1].split()[0])


@pytest.mark.parametrize("algorithm", ["exact", "compact", "gcra"])
async def test_thousands_of_callers_get_the_whole_rate(limit_of, algorithm):
    limit = await limit_of("400/500ms", algorithm=algorithm)
    seconds, a_second = 2.0, 722 if algorithm == "gcra" else 800
    before = await commands(limit)
    assert await part_used([limit], 3_000, seconds, a_second) >= LEAST_USED
    # A few for each permit that was logged, and not for each that waits.
    assert await commands(limit) - before < 8 * seconds * a_second


async def test_so_do_callers_of_many_processes(limit_of):
    limits = [await limit_of("400/500ms") for _ in range(10)]
    assert await part_used(limits, 200, 2.0, 800) >= LEAST_USED


@pytest.mark.parametrize(("burst", "a_second"), [(1, 50), (None, 45.5)])
async def test_callers_get_the_whole_rate_of_gcra(limit_of, burst, a_second):
    limit = await limit_of("100/2s", algorithm="gcra", burst=burst)
    assert await part_used([limit], 1_000, 2.0, a_second) >= LEAST_USED


async def test_callers_of_several_processes_are_served_in_the_order_of_asking(limit_of):
    limits = [await limit_of("1/20ms") for _ in range(3)]
    await limits[0].penalise(300)
    served: list[int] = []

    async def caller(number: int) -> None:
        await limits[number % 3].acquire()
        served.append(number)

    async with asyncio.TaskGroup() as callers:
        for number in range(12):
            callers.create_task(caller(number))
            await asyncio.sleep(0.11)  # those who come closer to each other go as one group
        await in_line(limits[0], 12)
        await limits[0].penalise(0)
    assert served == list(range(12))


async def test_a_higher_priority_overtakes_those_of_its_own_process(limit_of):
    limit = await limit_of("1/20ms")
    await limit.penalise(300)
    served: list[str] = []

    async def caller(name: str, priority: int) -> None:
        await limit.acquire(priority=priority)
        served.append(name)

    async with asyncio.TaskGroup() as callers:
        for place in range(3):
            callers.create_task(caller(f"low {place}", 0))
        await in_line(limit, 3)
        for place in range(3):
            callers.create_task(caller(f"high {place}", 1))
        await in_line(limit, 6)
        await limit.penalise(0)
    assert served == ["high 0", "high 1", "high 2", "low 0", "low 1", "low 2"]


async def test_a_heavy_caller_is_served_between_light_ones(limit_of):
    limit = await limit_of("4/100ms")
    assert await limit.try_acquire(4)
    served: list[int] = []

    async def caller(cost: int) -> None:
        await limit.acquire(cost)
        served.append(cost)

    await asyncio.gather(*(caller(cost) for cost in (1, 4, 1, 3, 2)))
    assert served == [1, 4, 1, 3, 2]


async def test_a_front_caller_that_leaves_costs_the_others_nothing(limit_of):
    limit, other = await limit_of("2/200ms"), await limit_of("2/200ms")
    assert await limit.try_acquire(1)
    heavy = asyncio.create_task(limit.acquire(2))
    await in_line(limit, 1)
    light = asyncio.create_task(other.acquire(1))
    await in_line(limit, 2)
    heavy.cancel()
    await asyncio.gather(heavy, return_exceptions=True)
    assert (await asyncio.wait_for(light, 60)).granted == 1
    await in_line(limit, 0)


async def test_permits_of_who_leaves_while_they_are_asked_for_are_not_lost(limit_of):
    limit = await limit_of("3/min")
    first = asyncio.create_task(limit.acquire())
    second = asyncio.create_task(limit.acquire())
    asked = limit._server.ask_for_group
    is_asking = asyncio.Event()

    async def ask(*question):
        is_asking.set()
        return await asked(*question)

    limit._server.ask_for_group = ask
    await is_asking.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second

    async def came_back() -> bool:
        return (await limit.peek()).remaining == 2

    await eventually(came_back)


async def test_permits_ahead_of_a_caller_that_leaves_go_to_the_next_in_their_time(limit_of):
    limit = await limit_of("100/s", algorithm="gcra", burst=1)
    callers = [asyncio.create_task(limit.acquire()) for _ in range(6)]
    asked, are_granted_ahead = limit._server.ask_for_group, asyncio.Event()

    async def ask(*question):
        told = await asked(*question)
        if len(told.ready_s) > 1 and not are_granted_ahead.is_set():
            asyncio.get_running_loop().call_soon(callers[1].cancel)
            are_granted_ahead.set()
        return told

    limit._server.ask_for_group = ask
    ends = await asyncio.gather(*callers, return_exceptions=True)
    assert are_granted_ahead.is_set()
    assert isinstance(ends.pop(1), asyncio.CancelledError)
    permits = sorted((int(end.permit[0]), end.permit[1]) for end in ends)
    first, _ = permits[0]
    assert [number for number, _ in permits] == list(range(first, first + 5))
    times = [at for _, at in permits]
    assert all(later - at >= 10 for at, later in pairwise(times))


async def test_whoever_cannot_be_served_in_time_hears_so_at_once(limit_of):
    limit = await limit_of("10/min")
    in_the_line = [asyncio.create_task(limit.acquire()) for _ in range(100)]
    await in_line(limit, 90)
    began = time.monotonic()
    refused = await asyncio.gather(
        *(limit.acquire(timeout_s=seconds) for seconds in (30, 299, 540) for _ in range(50)),
        return_exceptions=True,
    )
    assert time.monotonic() - began < patient(5)
    assert all(isinstance(one, LimitReached) for one in refused)
    assert all(535 < one.retry_after_s < 1_500 for one in refused)
    later = asyncio.create_task(limit.acquire(timeout_s=700))
    await in_line(limit, 91)
    await asyncio.sleep(0.1)
    assert not later.done(), "it will be served within ten minutes"
    for task in (later, *in_the_line):
        task.cancel()
    await asyncio.gather(later, *in_the_line, return_exceptions=True)


async def test_patience_ends_when_it_ends(limit_of):
    limit = await limit_of("5/s")
    assert await limit.try_acquire(5)
    first = asyncio.create_task(limit.acquire(5))
    await in_line(limit, 1)
    other = await limit_of("5/s")
    # Nobody could know: others that came before may give up, and those behind too.
    with pytest.raises(LimitReached):
        await other.acquire(5, timeout_s=1.2)
    await first


async def test_a_cost_above_the_limit_is_refused_in_the_middle_of_the_line(limit_of):
    limit = await limit_of("2/200ms")
    assert await limit.try_acquire(2)
    served = await asyncio.gather(
        limit.acquire(), limit.acquire(3), limit.acquire(), return_exceptions=True
    )
    assert [one.granted for one in (served[0], served[2])] == [1, 1]
    assert served[1].retry_after_s == math.inf


async def test_keys_have_lines_of_their_own(limit_of):
    limit = await limit_of("1/200ms")
    for key in ("full", "free"):
        assert await limit.try_acquire(key=key)
    await limit.penalise(60, key="full")
    stuck = asyncio.create_task(limit.acquire(key="full"))
    await asyncio.wait_for(limit.acquire(key="free"), 50)
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)


async def test_no_task_and_no_ticket_is_left(limit_of):
    limit = await limit_of("50/100ms")
    await asyncio.gather(*(limit.acquire() for _ in range(120)))
    assert len(limit._waiters) == 0
    keys = limit.keys("all")
    assert await limit.client.call("EXISTS", keys.waiting, keys.tickets) == 0


async def test_reservations_of_callers_that_waited_together_are_settled_apart(limit_of):
    limit = await limit_of("30/min")
    reservations = await asyncio.gather(*(limit.reserve(3, timeout_s=5) for _ in range(5)))
    assert [await one.settle(1) for one in reservations] == [2] * 5
    assert (await limit.peek()).remaining == 25


async def test_an_edit_reaches_those_who_wait(limit_of):
    limit = await limit_of("1/hour")
    assert await limit.try_acquire()
    waiters = [asyncio.create_task(limit.acquire()) for _ in range(20)]
    await in_line(limit, 20)
    await limit.edit("1000/hour")
    await asyncio.wait_for(asyncio.gather(*waiters), 60)


async def test_an_error_of_the_server_reaches_all_who_wait(limit_of):
    limit = await limit_of("1/hour")
    assert await limit.try_acquire()
    waiters = [asyncio.create_task(limit.acquire()) for _ in range(20)]
    await in_line(limit, 20)
    await limit.client.call("DEL", limit.keys("all").waiting)
    await limit.client.call("SET", limit.keys("all").waiting, "of somebody else")
    ends = await asyncio.wait_for(asyncio.gather(*waiters, return_exceptions=True), 60)
    assert all(isinstance(end, CommandRefused) for end in ends)
    await limit.reset()
    assert await limit.acquire()
