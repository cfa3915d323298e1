from __future__ import annotations

import asyncio

import pytest

from penstock.clock import Clock
from penstock.testing.clock import ManualClock
from penstock.testing.eventually import eventually


async def test_sleepers_wake_in_the_order_of_their_due_times() -> None:
    clock = ManualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await clock.sleep(delay_s)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, delay_s in (("late", 3.0), ("early", 1.0), ("middle", 2.0), ("tie", 2.0)):
            group.create_task(sleeper(name, delay_s))
        await clock.advance(2.5)
        assert woken == [("early", 1.0), ("middle", 2.0), ("tie", 2.0)]
        await clock.advance(0.5)
    assert woken[-1] == ("late", 3.0)


async def test_a_loop_that_sleeps_again_is_woken_again_within_one_advance() -> None:
    clock: ManualClock = ManualClock()
    rounds: list[float] = []

    async def every_second(clock: Clock) -> None:
        while True:
            await clock.sleep(1)
            rounds.append(clock.monotonic())

    loop = asyncio.create_task(every_second(clock))
    await clock.advance(5)
    loop.cancel()
    assert rounds == [1, 2, 3, 4, 5]


async def test_ten_tenths_are_one_second() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1.0))
    for _ in range(10):
        await clock.advance(0.1)
    await sleeper
    assert clock.monotonic() == 1.0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await clock.settle()
    assert clock.sleepers == 1
    sleeper.cancel()
    await clock.settle()
    assert clock.sleepers == 0
    await clock.advance(2)


async def test_sleeping_for_no_time_only_yields() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.monotonic() == 0


async def test_the_wall_clock_jumps_without_waking_anyone() -> None:
    clock = ManualClock(wall_ms=1_000)
    sleeper = asyncio.create_task(clock.sleep(1))
    await clock.advance(0.5)
    assert clock.wall_ms() == 1_500
    clock.set_wall_ms(999_000_000)
    await clock.advance(0.25)
    assert (clock.wall_ms(), clock.monotonic(), sleeper.done()) == (999_000_250, 0.75, False)
    clock.set_wall_ms(10)
    await clock.advance(0.25)
    assert (clock.wall_ms(), sleeper.done()) == (260, True)


async def test_time_cannot_be_moved_back() -> None:
    with pytest.raises(ValueError, match="set_wall_ms"):
        await ManualClock().advance(-1)


async def test_eventually_returns_the_first_true_answer_of_a_plain_or_async_condition() -> None:
    answers = iter([0, None, 7])
    assert await eventually(lambda: next(answers)) == 7

    more = iter([[], ["found"]])

    async def look() -> list[str]:
        return next(more)

    assert await eventually(look) == ["found"]


async def test_eventually_fails_with_the_condition_and_its_last_answer() -> None:
    def door_is_open() -> str:
        return ""

    with pytest.raises(AssertionError, match=r"within 0.02 s: .*door_is_open .*last answer: ''"):
        await eventually(door_is_open, within_s=0.02)
    with pytest.raises(AssertionError, match="the door; last answer: False"):
        await eventually(lambda: False, within_s=0.02, what="the door")


async def test_eventually_does_not_hang_with_its_condition() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="it has not answered"):
        await eventually(never, within_s=0.02)


async def test_eventually_lets_the_conditions_own_errors_through() -> None:
    def broken() -> bool:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await eventually(broken)
