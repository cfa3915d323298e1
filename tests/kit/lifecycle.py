"""Proof that a service keeps the contract written down in `Service`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from penstock.errors import NotOpen
from penstock.runtime.service import Service

__all__ = ["check_lifecycle"]

RACES = 12
"""A stop is raced against the first turns of the event loop after the start, one by one."""


async def check_lifecycle(make: Callable[[], Service], *, within_s: float = 60.0) -> None:
    """Start and stop services from `make` in every order that has broken one; each is a new one.

    Raises `AssertionError` on the first broken promise, `TimeoutError` if one does not end.
    """
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    async with asyncio.timeout(within_s):
        await _stopped_before_any_start(make())
        await _stopped_twice(make())
        await _stopped_by_many_at_once(make())
        await _started_twice(make())
        await _stopped_while_the_stop_is_cancelled(make())
        await _held_by_a_parent(make())
        await _cancelled_by_its_parent(make())
        await _used_as_a_block(make())
        for turns in range(RACES):
            await _stopped_some_turns_after_the_start(make(), turns)
    left_tasks = asyncio.all_tasks() - tasks
    _require(not left_tasks, f"tasks left behind: {left_tasks}")
    # A thread takes a moment to end after its last word; Python 3.11 waits for each child process
    # in such a thread.
    for thread in set(threading.enumerate()) - threads:
        thread.join(within_s)
        _require(not thread.is_alive(), f"a thread left behind: {thread}")


async def _stopped_before_any_start(service: Service) -> None:
    await service.stop()
    await service.stop()
    await _cannot_start(service)


async def _stopped_twice(service: Service) -> None:
    await service.start()
    _require(service.running, f"{service.name} does not run after its start")
    await service.stop()
    _require(service.ended, f"{service.name} has not ended after its stop")
    await service.stop()
    await service.wait()
    await _cannot_start(service)


async def _stopped_by_many_at_once(service: Service) -> None:
    await service.start()
    await asyncio.gather(*(service.stop() for _ in range(10)), service.wait())
    _require(service.ended, f"{service.name} has not ended after its stops")


async def _started_twice(service: Service) -> None:
    await service.start()
    await service.start()
    await service.stop()


async def _stopped_while_the_stop_is_cancelled(service: Service) -> None:
    await service.start()
    stopping = asyncio.create_task(service.stop())
    stopping.cancel()
    await asyncio.wait([stopping])
    await service.stop()
    _require(service.ended, f"{service.name} has not ended after its second stop")


async def _held_by_a_parent(service: Service) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(service.serve())
        await asyncio.sleep(0)
        await service.stop()
    _require(service.ended, f"{service.name} has not ended although its parent has")


async def _cancelled_by_its_parent(service: Service) -> None:
    served = asyncio.create_task(service.serve())
    for _ in range(RACES):
        await asyncio.sleep(0)
    served.cancel()
    await asyncio.wait([served])
    _require(served.cancelled(), f"{service.name} does not let a cancellation through")
    await service.stop()


async def _used_as_a_block(service: Service) -> None:
    async with service:
        _require(service.running, f"{service.name} does not run within its block")
    _require(service.ended, f"{service.name} has not ended after its block")


async def _stopped_some_turns_after_the_start(service: Service, turns: int) -> None:
    await service.start()
    for _ in range(turns):
        await asyncio.sleep(0)
    await service.stop()
    _require(service.ended, f"{service.name}, stopped after {turns} turns, has not ended")


async def _cannot_start(service: Service) -> None:
    try:
        await service.start()
    except NotOpen:
        return
    raise AssertionError(f"{service.name} could be started after its stop")


def _require(kept: bool, otherwise: str) -> None:
    if not kept:
        raise AssertionError(otherwise)
