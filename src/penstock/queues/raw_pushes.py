"""Hearing of jobs that other programs push to a queue's list without waking anybody."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from penstock.errors import ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import QueueKeyring, key_slot
from penstock.runtime.backoff import retry_delay_s

__all__ = ["RawPushes"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

_BLOCK_S = 10.0
_MARGIN_S = 1.0
# Whoever was woken by the push itself gets this long to claim, before anybody else is.
_HEAD_START_S = 0.003
_FIRST_PAUSE_S = 0.004
_GIVE_UP_S = 60.0


class RawPushes:
    """Blocks until the plain list of a queue has jobs, and then calls `when_pushed`.

    `BLMOVE list list LEFT LEFT` waits until the list has a first element and moves it to where it
    is: nothing changes and nothing is taken. The tender of a queue uses it where it has found jobs
    for which nobody was woken, and stops when that has not happened for a minute.
    """

    def __init__(
        self,
        client: Client,
        keys: QueueKeyring,
        when_pushed: Callable[[], None],
        poll_s: float,
    ) -> None:
        self._client, self._keys, self._when_pushed = client, keys, when_pushed
        self._poll_s = poll_s
        self._armed = asyncio.Event()
        self._pause_s = self._again_at = self._look_again_s = 0.0
        self._useful_at = time.monotonic()
        self._task = asyncio.create_task(self._listen(), name=f"raw pushes {keys.waiting}")

    @property
    def is_useless(self) -> bool:
        """Whether it has told nothing for long that was not known."""
        return time.monotonic() - self._useful_at > _GIVE_UP_S

    def note(self, *, was_needed: bool, is_empty: bool) -> float:
        """Learn what the tender has found; seconds until it should look again.

        If nobody had been woken for the jobs, it looks soon whether they have been taken, so that
        the next ones are heard. Pushes that wake workers themselves are heard more and more rarely.
        """
        now = time.monotonic()
        if was_needed:
            self._useful_at, self._pause_s, self._again_at = now, 0.0, now
            self._look_again_s = _FIRST_PAUSE_S
        elif is_empty:
            self._look_again_s = 0.0
            if not self._armed.is_set() and now >= self._again_at:
                self._pause_s = min(self._poll_s, max(_FIRST_PAUSE_S, 2 * self._pause_s))
                self._armed.set()
        self._look_again_s = min(2 * self._look_again_s, self._poll_s)
        return self._look_again_s or self._poll_s

    def stop(self) -> None:
        self._task.cancel()

    async def _listen(self) -> None:
        name, failures = self._keys.waiting, 0
        slot = key_slot(name) if self._client.keys.cluster else None
        while True:
            try:
                async with self._client.dedicated(slot=slot) as wire:
                    while True:
                        await self._armed.wait()
                        there = await wire.call(
                            *("BLMOVE", name, name, "LEFT", "LEFT", _BLOCK_S),
                            timeout_s=_BLOCK_S + _MARGIN_S,
                        )
                        failures = 0
                        if there is not None:
                            self._armed.clear()
                            self._again_at = time.monotonic() + self._pause_s
                            await asyncio.sleep(_HEAD_START_S)
                            self._when_pushed()
            except ServerError as error:  # until then jobs are found by looking
                failures += 1
                quiet.warning(f"raw {type(error).__name__}", "waiting for %s: %s", name, error)
                await asyncio.sleep(retry_delay_s(failures))
