"""Repeated log lines: the first few, then a count, which is never forgotten."""

import asyncio

from penstock import throttled_log as quiet
from penstock.testing.clock import ManualClock
from penstock.throttled_log import Bursts


def told(bursts, counts, cause="bug"):
    return bursts.admits(cause, counts.append)


async def test_the_first_few_are_admitted_and_the_rest_counted_once_per_period():
    clock, counts = ManualClock(), []
    bursts = Bursts(burst=3, every_s=10, clock=clock)
    assert [told(bursts, counts) for _ in range(5)] == [True] * 3 + [False] * 2
    await clock.advance(10)
    assert not told(bursts, counts)  # still the same burst: it is counted for the next period
    assert counts == [2]
    bursts.flush()
    assert counts == [2, 1]


async def test_a_cause_that_was_silent_starts_again():
    clock, counts = ManualClock(), []
    bursts = Bursts(burst=1, every_s=10, clock=clock)
    assert [told(bursts, counts), told(bursts, counts)] == [True, False]
    bursts.flush()
    assert [told(bursts, counts), counts] == [True, [1]]
    await clock.advance(10)
    assert [told(bursts, counts), counts] == [True, [1]]


def test_causes_are_apart_and_the_oldest_makes_room(monkeypatch):
    monkeypatch.setattr(quiet, "MAX_CAUSES", 2)
    bursts, counts = Bursts(burst=1, clock=ManualClock()), []
    assert told(bursts, counts, "a")
    assert not told(bursts, counts, "a")
    assert told(bursts, counts, "b")
    assert told(bursts, counts, "c")
    assert counts == [1]


async def test_the_event_loop_reports_what_was_left_out_though_nothing_follows():
    bursts, reported = Bursts(burst=1, every_s=0.02), asyncio.get_running_loop().create_future()
    assert bursts.admits("bug", reported.set_result)
    assert not bursts.admits("bug", reported.set_result)
    assert await asyncio.wait_for(reported, 60) == 1
