from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time

import pytest

from penstock.errors import NotOpen
from penstock.runtime.duty import Duty
from penstock.runtime.progress import LoopProgress
from penstock.runtime.service import READY, Readiness, Service
from penstock.runtime.signals import STOP_SIGNALS, StopSignals
from penstock.runtime.watchdog import Watchdog
from penstock.runtime.worker import Worker
from penstock.settings import WorkerSettings
from penstock.testing.clock import ManualClock
from penstock.testing.eventually import eventually


class Job(Service):
    """Takes `takes_s` to finish what it has begun, once it is asked to stop."""

    def __init__(self, name: str, clock: ManualClock, diary: list[str], takes_s: float = 0) -> None:
        super().__init__(name)
        self._clock, self._diary, self._takes_s = clock, diary, takes_s
        self.begun = asyncio.Event()

    async def run(self) -> None:
        self.begun.set()
        try:
            await self.stop_asked.wait()
            await self._clock.sleep(self._takes_s)
        except asyncio.CancelledError:
            self._diary.append(f"{self.name} cancelled")
            raise
        self._diary.append(f"{self.name} drained")


class Failing(Service):
    async def run(self) -> None:
        raise ValueError("broken")


class Support(Service):
    def __init__(self, diary: list[str]) -> None:
        super().__init__("support")
        self._diary = diary

    async def run(self) -> None:
        self._diary.append("support begun")
        try:
            await asyncio.Event().wait()
        finally:
            self._diary.append("support ended")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def diary() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    threads = set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers
    assert set(threading.enumerate()) <= threads


def worker_of(*work: Service, clock: ManualClock, grace_s: float = 30, **options) -> Worker:
    settings = WorkerSettings(grace_s=grace_s)
    return Worker(work=work, settings=settings, clock=clock, **options)


async def test_an_idle_worker_stops_long_before_its_grace_is_over() -> None:
    worker = Worker()
    run = asyncio.create_task(worker.run())
    await eventually(worker.readiness)
    began = time.monotonic()
    await worker.stop()
    assert time.monotonic() - began < 25
    assert await run == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_idle_worker_writes_no_log(clock, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    watchdog = Watchdog(poll_s=1, clock=clock)

    async def consume(progress: LoopProgress) -> None:
        while not progress.stopping:
            await clock.sleep(1)
            progress.beat()

    async def sweep() -> None:
        """Find nothing."""

    duty = Duty("sweep", sweep, every_s=5, clock=clock)
    loop = watchdog.loop("orders", consume)
    worker = worker_of(loop, clock=clock, watchdog=watchdog, support=[duty])
    run = asyncio.create_task(worker.run())
    await clock.advance(2)
    caplog.clear()
    await clock.advance(300)
    assert not caplog.records
    worker.ask_to_stop()
    await clock.advance(1)
    assert await run == 0


async def test_support_outlives_the_work(clock, diary) -> None:
    job = Job("job", clock, diary, takes_s=5)
    worker = worker_of(job, clock=clock, support=[Support(diary)])
    run = asyncio.create_task(worker.run())
    await job.begun.wait()
    worker.ask_to_stop()
    await clock.advance(4.9)
    assert diary == ["support begun"]
    await clock.advance(0.1)
    assert await run == 0
    assert diary == ["support begun", "job drained", "support ended"]


async def test_what_exceeds_the_grace_period_is_cancelled_and_named(clock, diary, caplog) -> None:
    quick, slow = Job("quick", clock, diary, takes_s=1), Job("slow", clock, diary, takes_s=100)
    worker = worker_of(quick, slow, clock=clock, grace_s=10)
    run = asyncio.create_task(worker.run())
    await slow.begun.wait()
    worker.ask_to_stop()
    await clock.advance(9.9)
    assert diary == ["quick drained"]
    await clock.advance(0.1)
    assert await run == 0
    assert diary == ["quick drained", "slow cancelled"]
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.endswith("cancelling what is left: slow")


async def test_stop_may_come_twice_and_at_the_same_time(clock, diary) -> None:
    worker = worker_of(Job("job", clock, diary), clock=clock)
    run = asyncio.create_task(worker.run())
    await clock.settle()
    await asyncio.gather(worker.stop(), worker.stop(), worker.stop())
    await worker.stop()
    assert await run == 0


async def test_a_worker_stopped_before_its_run_does_nothing(clock, diary) -> None:
    worker = worker_of(Job("job", clock, diary), clock=clock, support=[Support(diary)])
    await worker.stop()
    assert await worker.run() == 0
    assert diary == []


async def test_a_worker_runs_only_once(clock) -> None:
    worker = worker_of(clock=clock)
    await worker.stop()
    await worker.run()
    with pytest.raises(NotOpen, match="already been run"):
        await worker.run()


async def test_a_failing_service_lets_the_others_drain_and_fails_the_worker(
    clock, diary, caplog
) -> None:
    job = Job("job", clock, diary, takes_s=3)
    worker = worker_of(Failing("mail"), job, clock=clock, support=[Support(diary)])
    run = asyncio.create_task(worker.run())
    await clock.advance(3)
    assert await run == 1
    assert diary == ["support begun", "job drained", "support ended"]
    assert [str(error) for error in worker.failures] == ["broken"]
    assert "mail failed, the worker ends" in caplog.text


async def test_failing_support_cuts_the_work(clock, diary) -> None:
    release = asyncio.Event()

    class Heartbeat(Service):
        async def run(self) -> None:
            await release.wait()
            raise ValueError("broken heart")

    job = Job("job", clock, diary)
    worker = worker_of(job, clock=clock, support=[Heartbeat("heartbeat")])
    run = asyncio.create_task(worker.run())
    await job.begun.wait()
    release.set()
    assert await run == 1
    assert diary == ["job cancelled"]
    await worker.stop()


async def test_a_worker_ends_when_all_its_work_has_ended(clock, diary) -> None:
    first, second = Job("first", clock, diary), Job("second", clock, diary)
    worker = worker_of(first, second, clock=clock)
    run = asyncio.create_task(worker.run())
    await clock.settle()
    await first.stop()
    assert not run.done()
    await second.stop()
    assert await run == 0


async def test_cancelling_the_run_cancels_all_and_passes_through(clock, diary) -> None:
    job = Job("job", clock, diary)
    run = asyncio.create_task(worker_of(job, clock=clock, support=[Support(diary)]).run())
    await job.begun.wait()
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert diary == ["support begun", "job cancelled", "support ended"]


async def test_readiness_tells_the_whole_story(clock, diary) -> None:
    watchdog = Watchdog(poll_s=1, clock=clock)
    frozen = False

    async def consume(progress: LoopProgress) -> None:
        while not progress.stopping:
            await (asyncio.Event().wait() if frozen else clock.sleep(1))
            progress.beat()

    async def fails() -> None:
        raise OSError("no route")

    failing = Duty("lease", fails, every_s=1, clock=clock)
    worker = worker_of(
        watchdog.loop("orders", consume), clock=clock, watchdog=watchdog, support=[failing]
    )
    assert worker.readiness() == Readiness(("not started",))
    run = asyncio.create_task(worker.run())
    await clock.advance(1.25)
    assert worker.readiness() == READY
    await clock.advance(5)
    (reason,) = worker.readiness().reasons
    assert reason.startswith("duty lease:")
    assert reason.endswith("OSError: no route")
    frozen = True
    await clock.advance(4)
    assert any("loop orders" in reason for reason in worker.readiness().reasons)
    frozen = False
    worker.ask_to_stop()
    assert worker.readiness().reasons[0] == "stopping"
    await clock.advance(30)
    assert await run == 0
    assert worker.readiness() == Readiness(("stopped",))
    assert str(worker.readiness()) == "not ready: stopped"


async def test_a_stuck_loop_fails_the_worker_when_the_others_have_drained(clock, diary) -> None:
    watchdog = Watchdog(poll_s=1, clock=clock)
    release = asyncio.Event()

    async def stubborn(progress: LoopProgress) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    job = Job("job", clock, diary, takes_s=2)
    worker = worker_of(watchdog.loop("orders", stubborn), job, clock=clock, watchdog=watchdog)
    run = asyncio.create_task(worker.run())
    await clock.advance(20)
    assert await run == 1
    assert diary == ["job drained"]
    release.set()
    await clock.settle()


async def test_a_worker_outside_the_main_thread_runs_without_signal_handlers() -> None:
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    outcome: list[int] = []

    async def main() -> None:
        worker = Worker()
        run = asyncio.create_task(worker.run())
        await eventually(worker.readiness)
        assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers
        await worker.stop()
        outcome.append(await run)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    await asyncio.to_thread(thread.join, 5)
    assert outcome == [0]
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_worker_inside_a_program_leaves_its_signals_alone(clock, diary) -> None:
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    job = Job("job", clock, diary)
    worker = worker_of(job, clock=clock)
    run = asyncio.create_task(worker.run())
    await job.begun.wait()
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers
    await worker.stop()
    assert await run == 0


async def test_signals_drain_and_the_second_one_cuts(clock, diary) -> None:
    job = Job("job", clock, diary, takes_s=100)
    worker = worker_of(job, clock=clock)
    run = asyncio.create_task(worker.run(handle_signals=True))
    await job.begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: job.stopping)
    assert not run.done()
    os.kill(os.getpid(), signal.SIGINT)
    assert await run == 130
    assert diary == ["job cancelled"]


def test_signal_handlers_are_put_back_as_they_were() -> None:
    seen: list[tuple[int, int]] = []
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    hang_up = signal.getsignal(signal.SIGHUP)
    with StopSignals(lambda number, count: seen.append((number, count))):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGHUP) == hang_up
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert seen == [(signal.SIGTERM, 1), (signal.SIGINT, 2)]
