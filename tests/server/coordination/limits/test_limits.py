"""Limits over several windows: what is admitted, who waits, and what the other side says."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta

import pytest
from tests.kit.patience import patient

from penstock import LimitReached
from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.result import Usage
from penstock.coordination.limits.setting import setting_of
from penstock.coordination.limits.waiters import count_callers
from penstock.errors import SettingError
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time import VirtualTime

FREE_TIER = ["5/min", "50/hour", "125/day"]
ALGORITHMS = ["exact", "compact", "gcra"]
NOON_MS = 1_700_000_000_000


@pytest.fixture
def limit_of(app):
    """`limit_of("5/min", …)` is a limit of this test's application."""
    count = 0

    def make(rates, *, name=None, lease=0, away="closed", share=0.0, **setting):
        nonlocal count
        count += 1
        setting = setting_of(rates, **setting)
        return Limit(
            app.redis, name or f"limit-{count}", setting, lease=lease, away=away, share=share
        )

    return make


@pytest.fixture
async def virtual(valkey_server, open_app):
    """An application on one server, and the time of its scripts."""
    app = await open_app(valkey_server)
    clock = VirtualTime(app.redis)
    await clock.set_ms(NOON_MS)
    return app, clock


async def test_a_call_is_admitted_if_every_window_has_room(limit_of):
    limit = limit_of(FREE_TIER)
    answers = [await limit.try_acquire() for _ in range(6)]
    assert [answer.allowed for answer in answers] == [True] * 5 + [False]
    refused = answers[-1]
    assert refused.reason == "limit"
    assert 58 < refused.retry_after_s <= 60
    assert [window.remaining for window in refused.windows] == [0, 45, 120]
    assert [window.limit for window in refused.windows] == [5, 50, 125]
    assert [window.period_s for window in refused.windows] == [60, 3600, 86400]
    assert refused.remaining == 0
    assert not refused


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_refused_call_costs_nothing(limit_of, algorithm):
    limit = limit_of("2/300ms", algorithm=algorithm)
    while await limit.try_acquire():
        pass
    for _ in range(20):
        await limit.try_acquire()
    answer = await limit.try_acquire()
    assert answer.allowed or answer.retry_after_s <= 0.31


async def test_keys_are_counted_apart(limit_of):
    limit = limit_of("1/min")
    assert await limit.try_acquire(key="alice")
    assert await limit.try_acquire(key="192.168.1.1")
    assert await limit.try_acquire(key="::1")
    assert not await limit.try_acquire(key="alice")


async def test_what_others_write_into_the_log_lets_nobody_through(virtual):
    app, clock = virtual
    limit = Limit(app.redis, "shared", setting_of("5/min"))
    log = limit.keys("all").log
    await app.redis.call("ZADD", log, NOON_MS - 1000, "before-1", NOON_MS - 1000, "1700000000.5")
    assert (await limit.try_acquire()).remaining == 2, "what was there before counts"
    members = [part for number in range(20) for part in (NOON_MS - 500 + number, f"{number}")]
    await app.redis.call("ZADD", log, *members)
    admitted = [bool(await limit.try_acquire()) for _ in range(5)]
    assert admitted == [True, True, False, False, False]
    await clock.advance(59)
    assert (await limit.peek()).remaining == 2
    await clock.advance(0.9)
    assert (await limit.peek()).remaining == 2
    await clock.advance(0.1)
    assert (await limit.peek()).remaining == 5


async def test_a_call_may_weigh_more(limit_of):
    limit = limit_of("100/min")
    assert await limit.try_acquire(60)
    assert not await limit.try_acquire(41)
    assert await limit.try_acquire(40)
    assert (await limit.peek()).remaining == 0


async def test_a_cost_above_the_limit_never_comes(limit_of):
    limit = limit_of("10/min")
    answer = await limit.try_acquire(11)
    assert not answer
    assert answer.retry_after_s == math.inf
    with pytest.raises(LimitReached):
        await limit.acquire(11)


@pytest.mark.parametrize("cost", [0, -1, 1.5, True, "1", None, 10**12])
async def test_a_cost_that_is_none_is_refused_before_anything_is_sent(limit_of, cost):
    limit = limit_of("10/min")
    with pytest.raises(SettingError):
        await limit.try_acquire(cost)
    assert (await limit.peek()).remaining == 10


async def test_looking_takes_nothing(limit_of, app):
    limit = limit_of(FREE_TIER)
    answer = await limit.peek()
    assert answer.allowed
    assert [window.remaining for window in answer.windows] == [5, 50, 125]
    assert [window.reset_s for window in answer.windows] == [0, 0, 0]
    assert not await app.redis.call("EXISTS", limit.keys("all").state)


async def test_a_window_slides(virtual):
    app, clock = virtual
    limit = Limit(app.redis, "sliding", setting_of("2/min"))
    assert await limit.try_acquire()
    await clock.advance(30)
    assert await limit.try_acquire()
    assert (await limit.try_acquire()).retry_after_s == 30
    await clock.advance(29.999)
    assert not await limit.try_acquire()
    await clock.advance(0.001)
    assert await limit.try_acquire()
    assert (await limit.try_acquire()).retry_after_s == 30


async def test_gcra_spreads_calls_after_a_burst(virtual):
    app, clock = virtual
    limit = Limit(app.redis, "paced", setting_of("60/min", algorithm="gcra", burst=11))
    taken = sum([bool(await limit.try_acquire()) for _ in range(20)])
    assert taken == 11
    answer = await limit.try_acquire()
    assert answer.retry_after_s == pytest.approx(60 / 50, abs=0.002)
    await clock.advance(answer.retry_after_s)
    assert await limit.try_acquire()
    assert not await limit.try_acquire()


async def test_the_buffer_is_never_given_out(limit_of):
    limit = limit_of("10/min", buffer=3)
    taken = sum([bool(await limit.try_acquire()) for _ in range(10)])
    assert taken == 7
    assert limit_of("1000/hour", buffer=0.02).setting.used_rates[0].limit == 980


async def test_a_margin_makes_periods_longer(virtual):
    app, clock = virtual
    limit = Limit(app.redis, "far", setting_of("1/min", margin=0.5))
    answer = await limit.try_acquire()
    assert [window.period_s for window in answer.windows] == [60]
    assert (await limit.try_acquire()).retry_after_s == 60.5
    await clock.advance(60.499)
    assert not await limit.try_acquire()
    await clock.advance(0.001)
    assert await limit.try_acquire()


# ---- waiting


async def test_acquire_waits_until_there_is_room(limit_of):
    limit = limit_of("2/400ms")
    began = time.monotonic()
    for _ in range(5):
        await limit.acquire(timeout_s=60)
    assert time.monotonic() - began > 0.79


async def test_acquire_knows_at_once_that_it_would_wait_too_long(limit_of):
    limit = limit_of("1/hour")
    await limit.acquire()
    began = time.monotonic()
    with pytest.raises(LimitReached) as refused:
        await limit.acquire(timeout_s=30)
    assert time.monotonic() - began < 15
    assert 3500 < refused.value.retry_after_s <= 3600


async def test_callers_are_served_in_the_order_in_which_they_asked(limit_of):
    limit = limit_of("1/50ms")
    await limit.penalise(300)
    served: list[int] = []

    async def caller(number):
        await limit.acquire()
        served.append(number)

    async with asyncio.TaskGroup() as callers:
        for number in range(6):
            callers.create_task(caller(number))
            await waiting(limit, number + 1)
        await limit.penalise(0)
    assert served == [0, 1, 2, 3, 4, 5]


async def test_higher_priority_goes_first(limit_of):
    limit = limit_of("1/50ms")
    await limit.penalise(300)
    served: list[str] = []

    async def caller(name, priority):
        await limit.acquire(priority=priority)
        served.append(name)

    async with asyncio.TaskGroup() as callers:
        callers.create_task(caller("low", -1))
        await waiting(limit, 1)
        callers.create_task(caller("high", 5))
        await waiting(limit, 2)
        callers.create_task(caller("normal", 0))
        await waiting(limit, 3)
        await limit.penalise(0)
    assert served == ["high", "normal", "low"]


async def test_whoever_does_not_wait_takes_nothing_from_those_who_do(limit_of):
    limit = limit_of("10/min")
    assert await limit.try_acquire(8)
    waiter = asyncio.create_task(limit.acquire(5, timeout_s=300))
    await waiting(limit, 1)
    answer = await limit.try_acquire(2)
    assert not answer
    assert answer.reason == "line"
    assert await limit.try_acquire(2, priority=1)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await waiting(limit, 0)


async def test_a_caller_that_gives_up_leaves_the_line(limit_of):
    limit = limit_of("1/min")
    await limit.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await limit.acquire()
    await waiting(limit, 0)


async def waiting(limit, count):
    """Until so many wait."""
    keys = limit.keys("all")

    async def as_many():
        return count_callers(await limit.client.call("HVALS", keys.tickets)) == count

    await eventually(as_many)


# ---- costs that are known later


@pytest.mark.parametrize("algorithm", ["exact", "compact"])
async def test_a_settled_reservation_has_used_what_it_used(limit_of, algorithm):
    limit = limit_of(["1000/min", "5000/hour"], algorithm=algorithm)
    reservation = await limit.reserve(600)
    assert not await limit.try_acquire(500)
    assert await reservation.settle(250) == 350
    assert [window.remaining for window in (await limit.peek()).windows] == [750, 4750]
    assert await reservation.settle(0) == 0
    assert [window.remaining for window in (await limit.peek()).windows] == [750, 4750]


@pytest.mark.parametrize("algorithm", ["exact", "compact"])
async def test_a_reservation_may_turn_out_too_small(limit_of, algorithm):
    limit = limit_of("1000/min", algorithm=algorithm)
    reservation = await limit.reserve(900)
    assert await reservation.settle(1500) == -600
    answer = await limit.try_acquire()
    assert not answer
    assert answer.windows[0].remaining == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_refund_gives_everything_back(limit_of, algorithm):
    limit = limit_of("1000/min", algorithm=algorithm, burst=100 if algorithm == "gcra" else None)
    before = (await limit.peek()).remaining
    reservation = await limit.reserve(80)
    assert before - 81 <= (await limit.peek()).remaining <= before - 78
    await reservation.refund()
    assert (await limit.peek()).remaining >= before - 1


async def test_an_exception_in_the_block_refunds(limit_of):
    limit = limit_of("10/min")
    with pytest.raises(RuntimeError):
        async with limit.reserved(7):
            raise RuntimeError
    assert (await limit.peek()).remaining == 10
    async with limit.reserved(7) as reservation:
        await reservation.settle(2)
    assert (await limit.peek()).remaining == 8


async def test_a_settled_call_leaves_its_window_when_it_was_made(virtual):
    app, clock = virtual
    limit = Limit(app.redis, "settled", setting_of("10/min"))
    reservation = await limit.reserve(8)
    await clock.advance(40)
    await reservation.settle(5)
    assert (await limit.peek()).remaining == 5
    await clock.advance(20)
    assert (await limit.peek()).remaining == 10


# ---- what the other side says


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_penalty_stops_everybody(limit_of, open_app, place, algorithm):
    limit = limit_of("100/min", algorithm=algorithm, name="shared")
    other = Limit(
        (await open_app(place)).redis, "shared", setting_of("100/min", algorithm=algorithm)
    )
    assert await other.try_acquire()
    assert await limit.penalise(30) == 30
    answer = await other.try_acquire()
    assert answer.reason == "penalty"
    assert 29 < answer.retry_after_s <= 30
    assert await limit.penalise(10) > 29, "a shorter penalty does not end a longer one"
    assert await other.penalise(0) == 0
    assert await limit.try_acquire()


async def test_a_penalty_ends_by_itself(limit_of):
    limit = limit_of("100/min")
    await limit.penalise(0.2)
    began = time.monotonic()
    await limit.acquire(timeout_s=5)
    assert time.monotonic() - began > 0.19


async def test_what_the_provider_has_counted_counts(limit_of):
    limit = limit_of(FREE_TIER)
    assert await limit.try_acquire()
    await limit.reconcile(
        [Usage(50, 3600, used=48, reset_s=1800), Usage(125, 86400, remaining=100)]
    )
    assert [window.remaining for window in (await limit.peek()).windows] == [4, 2, 100]
    assert await limit.try_acquire(2)
    answer = await limit.try_acquire()
    assert 1790 < answer.retry_after_s <= 1800


async def test_what_the_provider_has_counted_is_forgotten_when_it_does(virtual):
    app, clock = virtual
    limit = Limit(app.redis, "told", setting_of("50/hour"))
    assert await limit.try_acquire()
    await limit.reconcile([Usage(50, 3600, used=50, reset_s=600)])
    assert not await limit.try_acquire()
    await clock.advance(600)
    assert (await limit.peek()).remaining == 49


async def test_a_provider_that_has_counted_less_is_not_believed(limit_of):
    limit = limit_of("10/min")
    assert await limit.try_acquire(6)
    await limit.reconcile([Usage(10, 60, used=2), Usage(99, 7, used=99), Usage(None, None)])
    assert (await limit.peek()).remaining == 4


NOT_A_NUMBER = float("nan")


async def test_what_makes_no_sense_is_not_believed(limit_of):
    limit = limit_of(["10/min", "100/hour"])
    for nonsense in (NOT_A_NUMBER, math.inf, -1, "7", True, 1e300):
        usages = [Usage(10, 60, used=nonsense), Usage(nonsense, nonsense, used=5)]
        await limit.reconcile([*usages, Usage(100, 3600, limit, reset_s=nonsense)])
        await limit.reconcile([Usage(10, 60, used=0, reset_s=nonsense)])
    assert [window.remaining for window in (await limit.peek()).windows] == [10, 100]


@pytest.mark.parametrize("wait", [NOT_A_NUMBER, math.inf, -math.inf, True, "1", b"1", 1e300])
async def test_a_time_that_is_none_is_refused(limit_of, wait):
    limit = limit_of("1/hour")
    await limit.acquire()
    for call in (
        limit.acquire(timeout_s=wait),
        limit.penalise(wait),
        limit.reserve(1, timeout_s=wait),
    ):
        with pytest.raises(SettingError, match=r"timeout|retry_after"):
            await call
    with pytest.raises(SettingError):
        await limit.penalise(-1)
    assert await limit.penalise(timedelta(seconds=5)) == 5


@pytest.mark.parametrize("cost", [NOT_A_NUMBER, 1.0, True, 0])
async def test_a_cost_that_is_none_takes_no_permits_in_hand(limit_of, cost):
    limit = limit_of("1000/hour", lease=100)
    assert await limit.try_acquire()
    with pytest.raises(SettingError):
        await limit.try_acquire(cost)
    assert await limit.try_acquire()
    await limit.close()


# ---- edits


async def test_an_edit_holds_everywhere_soon(limit_of, open_app, place):
    limit = limit_of("100/min", name="edited")
    other = Limit((await open_app(place)).redis, "edited", setting_of("100/min"))
    assert (await other.try_acquire()).remaining == 99
    await limit.edit(setting_of("3/min"))
    began = time.monotonic()

    async def is_lower():
        return (await other.peek()).windows[0].limit == 3

    await eventually(is_lower)
    assert time.monotonic() - began < patient(5)
    assert (await other.peek()).remaining == 2


async def test_an_edit_of_the_windows_leaves_the_rest(limit_of):
    limit = limit_of("100/min", algorithm="compact", buffer=2)
    await limit.edit(["10/min", "50/hour"])
    assert [window.limit for window in (await limit.peek()).windows] == [8, 48]
    assert limit.setting.algorithm == "compact"
    with pytest.raises(SettingError):
        await limit.edit("never")


async def test_what_was_edited_survives_code_that_says_otherwise(limit_of, open_app, place):
    first = limit_of("5/min", name="kept")
    await first.try_acquire()
    await first.edit(setting_of("7/min"))
    later = Limit((await open_app(place)).redis, "kept", setting_of("100/min"))
    assert (await later.peek()).windows[0].limit == 7


async def test_new_code_changes_a_limit_that_nobody_has_edited(limit_of, open_app, place):
    first = limit_of("5/min", name="deployed")
    await first.try_acquire()
    later = Limit((await open_app(place)).redis, "deployed", setting_of("100/min"))
    assert (await later.try_acquire()).windows[0].remaining == 98


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_window_that_is_added_knows_what_was_used(limit_of, algorithm):
    limit = limit_of("50/hour", algorithm=algorithm)
    while (await limit.try_acquire()).allowed:
        pass
    await limit.edit(setting_of(["50/hour", "60/day"], algorithm=algorithm))
    answer = await limit.peek()
    assert answer.windows[1].remaining <= 10


@pytest.mark.parametrize("before", ALGORITHMS)
@pytest.mark.parametrize("after", ALGORITHMS)
async def test_another_algorithm_admits_no_more(limit_of, before, after):
    limit = limit_of("20/hour", algorithm=before)
    used = sum([bool(await limit.try_acquire()) for _ in range(20)])
    await limit.edit(setting_of("20/hour", algorithm=after))
    more = sum([bool(await limit.try_acquire()) for _ in range(30)])
    assert used + more <= 20


# ---- permits in advance


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_permits_in_advance_never_exceed_the_limit(limit_of, algorithm):
    limit = limit_of("1000/hour", lease=50, algorithm=algorithm)
    used = sum([bool(await limit.try_acquire()) for _ in range(1200)])
    assert used <= 1000
    if algorithm != "gcra":
        assert used == 1000
    await limit.close()


async def test_fewer_permits_are_taken_as_the_limit_comes_near(limit_of):
    limit = limit_of("40/hour", lease=1000)
    assert await limit.try_acquire()
    assert (await limit_of("40/hour", name=limit.name).peek()).remaining == 30
    await limit.close()


async def test_unused_permits_come_back(limit_of):
    limit = limit_of("1000/hour", lease=100)
    assert await limit.try_acquire()
    other = limit_of("1000/hour", name=limit.name)
    assert (await other.peek()).remaining == 900

    async def are_back():
        return (await other.peek()).remaining == 999

    await eventually(are_back)
    await limit.close()


async def test_closing_gives_permits_back_at_once(limit_of):
    limit = limit_of("1000/hour", lease=100)
    assert await limit.try_acquire(3)
    await limit.close()
    assert (await limit_of("1000/hour", name=limit.name).peek()).remaining == 997


# ---- the server is away


async def test_nobody_is_let_through_while_the_server_is_away(open_app, start_server):
    server = start_server()
    app = await open_app(server)
    limit = Limit(app.redis, "away", setting_of("100/min"))
    assert await limit.try_acquire()
    server.kill()
    answer = await limit.try_acquire()
    assert not answer
    assert answer.reason == "away"
    assert answer.retry_after_s > 0
    server.start()

    async def comes_back():
        return (await limit.try_acquire()).allowed

    await eventually(comes_back)
    assert (await limit.peek()).remaining < 99, "the server knows what was used before"


async def test_a_share_is_let_through_while_the_server_is_away(open_app, start_server):
    server = start_server()
    app = await open_app(server)
    limit = Limit(app.redis, "away", setting_of("100/min"), away="share", share=0.25)
    for _ in range(10):
        assert await limit.try_acquire()
    server.kill()
    admitted = sum([bool(await limit.try_acquire()) for _ in range(50)])
    assert admitted == 15, "a quarter of the limit, less what this process had used itself"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"lease": -1}, "lease"),
        ({"lease": 1.5}, "lease"),
        ({"away": "open"}, "away"),
        ({"away": "share"}, "share"),
        ({"share": 0.5}, "share"),
    ],
)
async def test_what_cannot_be_is_refused(limit_of, words, name):
    with pytest.raises(SettingError, match=name):
        limit_of("1/min", **words)
