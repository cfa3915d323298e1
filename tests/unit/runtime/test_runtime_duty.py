from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.errors import Unreachable
from penstock.runtime.duty import Duty
from penstock.testing.clock import ManualClock


class Rounds:
    """A round that fails while `error` is set, and remembers when it ran."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.at_s: list[float] = []
        self.error: Exception | None = None

    async def __call__(self) -> None:
        self.at_s.append(self._clock.monotonic())
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rounds(clock: ManualClock) -> Rounds:
    return Rounds(clock)


async def test_a_duty_does_a_round_at_once_and_then_every_so_often(clock, rounds) -> None:
    async with Duty("sweep", rounds, every_s=10, clock=clock) as duty:
        await clock.advance(35)
        assert rounds.at_s == [0, 10, 20, 30]
        assert (duty.rounds, duty.failures, duty.last_success_s) == (4, 0, 30)


async def test_the_distance_is_from_start_to_start(clock) -> None:
    began_s: list[float] = []

    async def takes_three_seconds() -> None:
        began_s.append(clock.monotonic())
        await clock.sleep(3)

    async with Duty("sweep", takes_three_seconds, every_s=5, clock=clock):
        await clock.advance(14)
        assert began_s == [0, 5, 10]


async def test_a_failed_round_does_not_end_the_duty(clock, rounds, caplog) -> None:
    rounds.error = Unreachable("no connection to redis://:hunter2@db")
    async with Duty("sweep", rounds, every_s=1, clock=clock) as duty:
        await clock.advance(9)
        assert duty.failures == duty.rounds > 3
        assert duty.last_success_s is None
        assert "hunter2" not in str(duty.trouble())
        rounds.error = None
        await clock.advance(10)
        assert duty.last_success_s is not None
        assert duty.trouble() is None
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert not warnings[0].exc_info
    assert "hunter2" not in warnings[0].getMessage()


async def test_an_unexpected_error_is_logged_with_its_traceback(clock, rounds, caplog) -> None:
    rounds.error = ZeroDivisionError("a bug")
    async with Duty("sweep", rounds, every_s=1, clock=clock):
        await clock.advance(0)
    assert caplog.records[0].exc_info


async def test_a_failing_duty_never_tries_more_than_twice_a_second_even_if_nudged(
    clock, rounds, caplog
) -> None:
    rounds.error = OSError("down")
    async with Duty("poll", rounds, every_s=0.001, clock=clock) as duty:
        for _ in range(300):
            duty.nudge()
            await clock.advance(0.1)
        assert len(rounds.at_s) <= 61
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) <= 4


async def test_a_failing_duty_backs_off_but_comes_back_soon(clock, rounds) -> None:
    rounds.error = OSError("down")
    async with Duty("sweep", rounds, every_s=1, clock=clock):
        await clock.advance(60)
        gaps_s = [
            after - before for before, after in zip(rounds.at_s, rounds.at_s[1:], strict=False)
        ]
        assert gaps_s[0] < gaps_s[2] < gaps_s[3]
        assert max(gaps_s) == pytest.approx(5)


async def test_a_rare_duty_is_tried_again_long_before_its_next_turn(clock, rounds) -> None:
    rounds.error = OSError("down")
    async with Duty("nightly", rounds, every_s=86_400, clock=clock):
        await clock.advance(1)
        rounds.error = None
        await clock.advance(10)
        assert 2 <= len(rounds.at_s) <= 4


async def test_a_nudge_brings_the_next_round_forward(clock, rounds) -> None:
    async with Duty("sweep", rounds, every_s=60, clock=clock) as duty:
        await clock.advance(7)
        duty.nudge()
        duty.nudge()
        await clock.advance(0)
        assert rounds.at_s == [0, 7]
        await clock.advance(60)
        assert rounds.at_s == [0, 7, 67]


async def test_nudges_during_a_round_make_one_more_round(clock) -> None:
    begun, release = 0, asyncio.Event()

    async def round_() -> None:
        nonlocal begun
        begun += 1
        await release.wait()

    async with Duty("sweep", round_, every_s=60, clock=clock) as duty:
        await clock.settle()
        duty.nudge()
        duty.nudge()
        release.set()
        await clock.settle()
        assert begun == 2


async def test_a_stop_lets_the_round_under_way_end_and_waits_for_nothing_else(clock) -> None:
    begun, release, done = asyncio.Event(), asyncio.Event(), []

    async def round_() -> None:
        begun.set()
        await release.wait()
        done.append("round")

    duty = Duty("sweep", round_, every_s=3600, clock=clock)
    await duty.start()
    await begun.wait()
    stop = asyncio.create_task(duty.stop())
    await clock.settle()
    assert not stop.done()
    release.set()
    await stop
    assert done == ["round"]
    assert clock.sleepers == 0


async def test_a_duty_in_backoff_stops_at_once(clock, rounds) -> None:
    rounds.error = OSError("down")
    duty = Duty("sweep", rounds, every_s=3600, clock=clock)
    await duty.start()
    await clock.advance(0.1)
    await duty.stop()
    assert clock.monotonic() == 0.1


async def test_a_duty_without_distance_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Duty("sweep", Rounds(ManualClock()), every_s=0)
