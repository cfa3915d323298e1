"""Waiting on the server for jobs to come, without taking them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from penstock.errors import OutOfMemory, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import QueueKeyring, key_slot
from penstock.redis.node import Role
from penstock.runtime.backoff import retry_delay_s

__all__ = ["Waiters"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

_MARGIN_S = 1.0
_FUTILE_S, _LONGEST_FUTILE_S = 0.001, 0.1
# Connections that may wait on the server are few; some are left to others.
_waiting: WeakKeyDictionary[Client, int] = WeakKeyDictionary()
_SPARED = 3


class Waiters:
    """Blocks on the lists of a queue while it is armed; calls `when_there` as soon as one has jobs.

    `BLMOVE list list LEFT LEFT` waits until the list has a first element and moves it to where it
    is: nothing changes, nothing is taken, and a reply that is lost loses no job.
    """

    def __init__(
        self, client: Client, keys: QueueKeyring, block_s: float, when_there: Callable[[], None]
    ) -> None:
        self._client, self._keys, self._block_s = client, keys, block_s
        self._when_there = when_there
        self._armed = asyncio.Event()
        self._futile = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, lanes: bool) -> None:
        """Wait for the plain list, and for the lanes if they are in use."""
        lists = [self._keys.waiting]
        if lanes:
            lists += [self._keys.list_of(lane) for lane in ("high", "normal", "low")]
            lists.append(self._keys.ring)
        for name in lists[len(self._tasks) :]:
            held = _waiting.get(self._client, 0)
            if held >= max(1, self._client.settings.pools.queue - _SPARED):
                return  # the others are found by looking every now and then
            _waiting[self._client] = held + 1
            self._tasks.append(asyncio.create_task(self._wait_for_ever(name), name=f"wait {name}"))

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _waiting[self._client] = _waiting.get(self._client, 0) - len(self._tasks)
        self._tasks.clear()

    def arm(self, *, futile: bool) -> None:
        """Wait for jobs from now on.

        `futile` says that there were said to be jobs, but none could be taken: others were quicker,
        or the queue is paused. Then the next look comes later each time.
        """
        if not futile:
            self._futile = 0
            self._armed.set()
            return
        delay_s = min(_LONGEST_FUTILE_S, _FUTILE_S * 2**self._futile)
        self._futile = min(self._futile + 1, 10)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._armed.set)

    def disarm(self) -> None:
        self._armed.clear()

    async def _wait_for_ever(self, name: str) -> None:
        slot = key_slot(name) if self._client.keys.cluster else None
        failures = 0
        while True:
            await self._armed.wait()
            try:
                async with self._client.lease(Role.QUEUE, slot=slot) as wire:
                    while True:
                        await self._armed.wait()
                        there = await wire.call(
                            *("BLMOVE", name, name, "LEFT", "LEFT", self._block_s),
                            timeout_s=self._block_s + _MARGIN_S,
                        )
                        failures = 0
                        if there is not None and self._armed.is_set():
                            self._armed.clear()
                            self._when_there()
            except OutOfMemory:
                await asyncio.sleep(self._block_s)  # until then jobs are found by looking
            except ServerError as error:
                failures += 1
                quiet.warning(f"wait {type(error).__name__}", "waiting for %s: %s", name, error)
                await asyncio.sleep(retry_delay_s(failures))
