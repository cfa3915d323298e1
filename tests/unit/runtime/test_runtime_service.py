from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from tests.kit.lifecycle import check_lifecycle

from penstock.errors import NotOpen
from penstock.runtime.duty import Duty
from penstock.runtime.service import Service
from penstock.runtime.watchdog import Watchdog
from penstock.testing.eventually import eventually


class Idle(Service):
    """Does nothing until it is asked to stop."""

    async def run(self) -> None:
        await self.stop_asked.wait()


class Failing(Service):
    async def run(self) -> None:
        raise ValueError("broken")


class Deaf(Service):
    """Ends by cancellation only."""

    async def run(self) -> None:
        await asyncio.Event().wait()


async def nothing() -> None:
    """A round without work."""


async def polling(progress) -> None:
    while not progress.stopping:
        progress.beat()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Idle("idle"), id="idle"),
        pytest.param(lambda: Duty("duty", nothing, every_s=0.001), id="duty"),
        pytest.param(lambda: Duty("slow duty", nothing, every_s=3600), id="slow duty"),
        pytest.param(lambda: Watchdog(poll_s=0.5), id="watchdog"),
        pytest.param(lambda: Watchdog(poll_s=1).loop("reader", polling), id="watched loop"),
    ],
)
async def test_every_service_keeps_the_start_and_stop_contract(make) -> None:
    await check_lifecycle(make)


async def test_the_stress_helper_convicts_a_service_that_ignores_its_stop() -> None:
    with pytest.raises(TimeoutError):
        await check_lifecycle(lambda: Deaf("deaf"), within_s=0.05)


async def test_the_stress_helper_convicts_a_service_that_swallows_cancellation() -> None:
    class Stubborn(Service):
        async def run(self) -> None:
            try:
                await self.stop_asked.wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="does not let a cancellation through"):
        await check_lifecycle(lambda: Stubborn("stubborn"))


async def test_the_stress_helper_convicts_a_service_that_leaves_a_task_behind() -> None:
    leaked: list[asyncio.Task[bool]] = []

    class Leaky(Service):
        async def run(self) -> None:
            leaked.append(asyncio.create_task(asyncio.Event().wait()))
            await self.stop_asked.wait()

    with pytest.raises(AssertionError, match="tasks left behind"):
        await check_lifecycle(lambda: Leaky("leaky"))
    for task in leaked:
        task.cancel()


async def test_the_stress_helper_waits_for_a_thread_that_is_ending() -> None:
    class Slow(Service):
        async def run(self) -> None:
            await self.stop_asked.wait()
            threading.Timer(0.02, lambda: None).start()

    await check_lifecycle(lambda: Slow("slow"))


async def test_the_stress_helper_convicts_a_service_that_leaves_a_thread_behind() -> None:
    released = threading.Event()

    class Leaky(Service):
        async def run(self) -> None:
            threading.Thread(target=released.wait).start()
            await self.stop_asked.wait()

    with pytest.raises(AssertionError, match="a thread left behind"):
        await check_lifecycle(lambda: Leaky("leaky"), within_s=0.5)
    released.set()


async def test_starting_a_stopped_service_says_why_it_cannot() -> None:
    service = Idle("mail")
    await service.start()
    await service.stop()
    with pytest.raises(NotOpen, match="'mail' was stopped"):
        await service.start()
    with pytest.raises(NotOpen, match="'mail' was stopped"):
        await service.serve()


async def test_a_running_service_cannot_be_served_a_second_time() -> None:
    async with Idle("mail") as service:
        with pytest.raises(NotOpen, match="already running"):
            await service.serve()


async def test_a_failure_reaches_everyone_who_waits_and_the_log(caplog) -> None:
    service = Failing("mail")
    await service.start()
    waiting = [asyncio.create_task(service.wait()) for _ in range(3)]
    await asyncio.wait(waiting)
    assert [type(task.exception()) for task in waiting] == [ValueError] * 3
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await service.stop()
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.ERROR, "service mail failed")
    ]


async def test_a_failure_is_raised_to_the_parent_that_serves_it() -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.TaskGroup() as group:
            group.create_task(Failing("mail").serve())
    assert isinstance(failed.value.exceptions[0], ValueError)


async def test_a_failure_is_raised_at_the_end_of_the_block() -> None:
    with pytest.raises(ValueError, match="broken"):
        async with Failing("mail") as service:
            await eventually(lambda: service.ended)


async def test_the_blocks_own_failure_wins_over_the_services() -> None:
    async def block() -> None:
        async with Failing("mail") as service:
            await eventually(lambda: service.ended)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await block()


async def test_a_body_that_ends_as_cancelled_by_itself_has_failed() -> None:
    class AwaitsSomethingCancelled(Service):
        async def run(self) -> None:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    service = AwaitsSomethingCancelled("mail")
    await service.start()
    with pytest.raises(RuntimeError, match="but was not cancelled"):
        await service.wait()


async def test_a_cancelled_block_takes_a_deaf_body_with_it() -> None:
    begun = asyncio.Event()

    class BeginsAndIsDeaf(Deaf):
        async def run(self) -> None:
            begun.set()
            await super().run()

    service = BeginsAndIsDeaf("deaf")

    async def block() -> None:
        async with service:
            await begun.wait()

    task = asyncio.create_task(block())
    await eventually(lambda: service.stopping)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert service.ended


async def test_a_service_cancelled_before_its_first_step_has_ended() -> None:
    service = Idle("mail")
    await service.start()
    service._task.cancel()
    await service.stop()
    assert service.ended


async def test_a_body_that_waits_for_itself_is_told_so() -> None:
    class Suicidal(Service):
        async def run(self) -> None:
            await self.stop()

    service = Suicidal("mail")
    await service.start()
    with pytest.raises(RuntimeError, match="may only ask_to_stop"):
        await service.wait()
