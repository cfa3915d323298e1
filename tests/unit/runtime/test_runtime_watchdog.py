from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from penstock.errors import AuthenticationFailed, Unreachable
from penstock.runtime.progress import LoopProgress
from penstock.runtime.service import Service
from penstock.runtime.watchdog import Watchdog
from penstock.testing.clock import ManualClock
from penstock.testing.eventually import eventually

POLL_S = 1.0


class Reader:
    """A read loop that returns within a poll, until a test freezes it."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.lives = 0
        self.reads = 0
        self.frozen = False
        self.beats_first = False
        """Whether a life beats at its beginning, even one that is frozen."""
        self.frozen_life = 0
        self.error: Exception | None = None

    async def __call__(self, progress: LoopProgress) -> None:
        self.lives += 1
        if self.beats_first:
            progress.beat()
        while not progress.stopping:
            if self.error is not None:
                raise self.error
            if self.frozen or self.frozen_life == self.lives:
                await asyncio.Event().wait()
            await self._clock.sleep(POLL_S)
            self.reads += 1
            progress.beat()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reader(clock: ManualClock) -> Reader:
    return Reader(clock)


@pytest.fixture
def watchdog(clock: ManualClock) -> Watchdog:
    return Watchdog(poll_s=POLL_S, clock=clock)


async def serve(watchdog: Watchdog, loop, clock: ManualClock, act) -> None:
    """Run watchdog and loop while `act` happens, then cancel both."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop.serve()), group.create_task(watchdog.serve())]
        await clock.settle()
        try:
            await act()
        finally:
            for task in tasks:
                task.cancel()


async def test_a_loop_that_polls_is_ready_and_left_alone(watchdog, clock, reader) -> None:
    loop = watchdog.loop("orders", reader)
    assert not watchdog.readiness()

    async def act() -> None:
        assert watchdog.readiness().reasons == ("loop orders has not polled yet",)
        await clock.advance(60)
        assert watchdog.readiness()
        assert (reader.lives, loop.restarts) == (1, 0)

    await serve(watchdog, loop, clock, act)


@pytest.mark.parametrize("offset_s", [0.0, 0.1, 0.249, 0.25, 0.251, 0.5])
async def test_a_frozen_loop_is_not_ready_within_two_polls_and_is_restarted_and_consumes_again(
    watchdog, clock, reader, caplog, offset_s
) -> None:
    async with watchdog:
        await clock.advance(offset_s)  # the loop's polls fall anywhere between the checks
        loop = watchdog.loop("orders", reader)
        await loop.start()
        await clock.advance(4.5 * POLL_S)
        assert watchdog.readiness()
        reader.frozen_life, reads = 1, reader.reads + 1
        await clock.advance(0.5 * POLL_S)  # the last read ends, and the next one hangs
        await clock.advance(2 * POLL_S)
        assert reader.reads == reads
        assert "loop orders" in watchdog.readiness().reasons[0]
        await clock.advance(3 * POLL_S)
        assert (reader.lives, loop.restarts) == (2, 1)
        assert reader.reads > reads
        assert watchdog.readiness()
        await asyncio.gather(loop.stop(), clock.advance(POLL_S))
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "loop orders: silent for 2.0 s, waiting at" in warning.getMessage()
    assert "Reader.__call__" in warning.getMessage()


@pytest.mark.parametrize("beats_first", [False, True])
async def test_a_loop_that_stays_frozen_is_restarted_with_growing_patience(
    watchdog, clock, reader, beats_first
) -> None:
    loop = watchdog.loop("orders", reader)
    reader.beats_first = beats_first

    async def act() -> None:
        reader.frozen = True
        await clock.advance(300)
        assert 4 <= loop.restarts <= 10
        assert not watchdog.readiness()
        reader.frozen = False
        await clock.advance(100)
        assert watchdog.readiness()

    await serve(watchdog, loop, clock, act)


async def test_a_loop_that_waits_for_free_capacity_is_not_frozen(watchdog, clock) -> None:
    full = True
    freed = asyncio.Event()

    async def consume(progress: LoopProgress) -> None:
        progress.beat()
        with progress.waiting("a free slot", lambda: full):
            await freed.wait()
        await asyncio.Event().wait()

    loop = watchdog.loop("orders", consume)

    async def act() -> None:
        nonlocal full
        await clock.advance(600)
        assert watchdog.readiness()
        assert loop.progress.excuse == "a free slot"
        assert loop.restarts == 0
        full = False  # a slot is free, but the loop has missed it
        await clock.advance(3)
        assert loop.restarts == 1

    await serve(watchdog, loop, clock, act)


async def test_leaving_an_inner_wait_keeps_the_outer_excuse() -> None:
    progress = LoopProgress(asyncio.Event())
    with progress.waiting("a slot"):
        with progress.waiting("a gate"):
            assert progress.excuse == "a gate"
        assert progress.excuse == "a slot"
    assert progress.excuse is None
    assert progress.beats == 2


async def test_a_beat_is_cheap_enough_for_the_hot_loop() -> None:
    progress = LoopProgress(asyncio.Event())
    best_s = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(20_000):
            progress.beat()
        best_s = min(best_s, (time.process_time() - began) / 20_000)
    assert best_s < 0.5e-6  # about 50 ns on an idle machine


async def test_a_loop_asked_to_stop_is_not_restarted_while_it_drains(watchdog, clock) -> None:
    drained = asyncio.Event()

    async def consume(progress: LoopProgress) -> None:
        while not progress.stopping:
            progress.beat()
            await clock.sleep(POLL_S)
        await drained.wait()

    loop = watchdog.loop("orders", consume)

    async def act() -> None:
        await clock.advance(2)
        loop.ask_to_stop()
        await clock.advance(30)
        assert (loop.restarts, loop.ended) == (0, False)
        drained.set()
        await loop.wait()

    await serve(watchdog, loop, clock, act)


async def test_a_life_that_ignores_its_cancellation_is_reported_once_and_not_replaced(
    watchdog, clock, caplog
) -> None:
    lives = 0
    release = asyncio.Event()

    async def stubborn(progress: LoopProgress) -> None:
        nonlocal lives
        lives += 1
        progress.beat()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    loop = watchdog.loop("orders", stubborn)
    async with watchdog:
        await loop.start()
        await clock.advance(20)
        with pytest.raises(RuntimeError, match="ignores its cancellation"):
            await loop.wait()
        assert lives == 1
        assert watchdog.stuck == ("orders",)
        assert watchdog.readiness().reasons == ("loop orders ignores its cancellation",)
    release.set()
    assert (
        sum("ignores its cancellation, waiting at" in r.getMessage() for r in caplog.records) == 1
    )


async def test_a_cancelled_loop_does_not_wait_for_ever_for_a_stubborn_life(
    watchdog, clock, caplog
) -> None:
    release = asyncio.Event()

    async def stubborn(progress: LoopProgress) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    loop = watchdog.loop("orders", stubborn)
    served = asyncio.create_task(loop.serve())
    await clock.settle()
    served.cancel()
    await clock.advance(2.5)
    assert served.cancelled()
    assert watchdog.stuck == ("orders",)
    release.set()
    await clock.settle()


async def test_a_server_that_is_away_does_not_cost_the_loop(
    watchdog, clock, reader, caplog
) -> None:
    loop = watchdog.loop("orders", reader)

    async def act() -> None:
        await clock.advance(3)
        reader.error, lives = Unreachable("connection refused"), reader.lives
        await clock.advance(20)
        assert watchdog.readiness().reasons == ("loop orders: Unreachable: connection refused",)
        assert reader.lives - lives <= 8
        reader.error = None
        await clock.advance(10)
        assert watchdog.readiness()
        assert loop.restarts == 0

    await serve(watchdog, loop, clock, act)
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) <= 3


@pytest.mark.parametrize(
    ("error", "match"),
    [(AuthenticationFailed("WRONGPASS"), "WRONGPASS"), (ZeroDivisionError("a bug"), "a bug")],
)
async def test_any_other_failure_of_a_loop_surfaces(watchdog, clock, reader, error, match) -> None:
    reader.error = error
    loop = watchdog.loop("orders", reader)
    await loop.start()
    with pytest.raises(type(error), match=match):
        await loop.wait()


async def test_a_loop_that_ends_unasked_has_failed(watchdog) -> None:
    async def ends(progress: LoopProgress) -> None:
        progress.beat()

    async def ends_as_cancelled(progress: LoopProgress) -> None:
        raise asyncio.CancelledError

    for body in (ends, ends_as_cancelled):
        loop = watchdog.loop("orders", body)
        await loop.start()
        with pytest.raises(RuntimeError, match="but was not"):
            await loop.wait()


async def test_a_loop_that_asks_itself_to_stop_ends_well(watchdog, clock) -> None:
    async def drain_once(progress: LoopProgress) -> None:
        progress.beat()
        loop.ask_to_stop()

    loop = watchdog.loop("orders", drain_once)
    await loop.start()
    await loop.wait()
    watchdog.check()
    assert watchdog.readiness()


async def test_a_blocked_event_loop_is_not_held_against_the_loops(watchdog, clock, reader) -> None:
    loop = watchdog.loop("orders", reader)

    async def act() -> None:
        await clock.advance(3.9)
        clock._now_ns += 30 * 1_000_000_000  # all timers are late at once, as after a long block
        watchdog.check()
        assert loop.restarts == 0
        await clock.advance(5)
        assert loop.restarts == 0
        assert watchdog.readiness()

    await serve(watchdog, loop, clock, act)


async def test_a_handler_that_blocks_the_event_loop_is_named_and_it_recovers_by_itself(
    caplog,
) -> None:
    caplog.set_level(logging.INFO)
    watchdog = Watchdog(poll_s=0.03)
    seen: list[tuple[str, ...]] = []
    polls = 0
    released = threading.Event()

    def from_the_thread() -> None:
        nonlocal polls
        polls += 1
        if reasons := watchdog.readiness().reasons:
            seen.append(reasons)
            released.set()

    def crunches_numbers() -> None:
        assert released.wait(5)

    watchdog.monitor.each_poll(from_the_thread)
    async with watchdog:
        await eventually(lambda: polls)
        crunches_numbers()
        assert seen[0][0].startswith("event loop blocked for")
        await eventually(watchdog.readiness)
    warning, info = [r for r in caplog.records if r.name == "penstock.runtime.event_loop_monitor"]
    assert "test_runtime_watchdog.py" in warning.getMessage()
    assert "crunches_numbers" in warning.getMessage()
    assert "runs again" in info.getMessage()


async def test_the_monitor_continues_after_a_call_that_fails(caplog) -> None:
    watchdog = Watchdog(poll_s=0.01)
    calls = 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        raise OSError("no route")

    watchdog.monitor.each_poll(fails)
    async with watchdog:
        await eventually(lambda: calls >= 3)
    assert sum("a call failed" in r.getMessage() for r in caplog.records) == 1


async def test_the_monitor_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    async with Watchdog(poll_s=60):
        (thread,) = await eventually(lambda: set(threading.enumerate()) - before)
        assert thread.daemon
    assert set(threading.enumerate()) <= before


class Reading(Service):
    """A service whose read loop is a watched block in a task group of its own."""

    restartable = True

    def __init__(self, reader: Reader, watchdog: Watchdog) -> None:
        super().__init__("orders")
        self.watchdog = watchdog
        self._reader = reader

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())

    async def _read(self) -> None:
        async with self.watched("orders read") as progress:
            await self._reader(progress)


async def test_a_frozen_block_is_not_ready_and_its_service_begins_again(
    watchdog, clock, reader, caplog
) -> None:
    service = Reading(reader, watchdog)

    async def act() -> None:
        assert watchdog.readiness().reasons == ("loop orders read has not polled yet",)
        await clock.advance(3)
        assert watchdog.readiness()
        reader.frozen_life = 1
        await clock.advance(POLL_S)  # the last read ends, and the next one hangs
        await clock.advance(1.75 * POLL_S)
        assert "loop orders read silent for" in watchdog.readiness().reasons[0]
        await clock.advance(POLL_S)
        assert "LoopSilent" in (service.failing or "")
        await eventually(lambda: reader.lives == 2)
        await clock.advance(2 * POLL_S)
        assert watchdog.readiness()

    await serve(watchdog, service, clock, act)
    silent = [r.getMessage() for r in caplog.records if "silent for" in r.getMessage()]
    assert "Reader.__call__" in silent[0]


async def test_a_block_whose_service_stops_is_left_alone(watchdog, clock, reader) -> None:
    service = Reading(reader, watchdog)

    async def act() -> None:
        await clock.advance(3)
        service.ask_to_stop()
        reader.frozen = True
        await clock.advance(60)
        assert reader.lives == 1
        assert not service.failing

    await serve(watchdog, service, clock, act)


async def test_a_block_that_waits_is_left_alone(watchdog, clock) -> None:
    async def waits(progress: LoopProgress) -> None:
        with progress.waiting("the handler"):
            await asyncio.Event().wait()

    service = Reading(waits, watchdog)

    async def act() -> None:
        await clock.advance(60)
        assert watchdog.readiness()
        assert not service.failing

    await serve(watchdog, service, clock, act)


async def test_a_block_that_ignores_its_cancellation_fails_the_watchdog(watchdog, clock) -> None:
    release = asyncio.Event()

    async def stubborn(progress: LoopProgress) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    service = Reading(stubborn, watchdog)
    await service.start()
    await watchdog.start()
    await clock.advance(20)
    with pytest.raises(RuntimeError, match="'orders read' ignores its cancellation"):
        await watchdog.wait()
    assert watchdog.stuck == ("orders read",)
    release.set()
    service.ask_to_stop()
    await eventually(lambda: service.ended)
