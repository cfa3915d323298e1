"""A worker's own view of its signs of life: until when it is a member, and when it was paused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

__all__ = ["Pulse"]


class Pulse:
    """Signs of life of one member of a queue, by the clock of its process.

    The server gives a member up `silence_s` after its last sign. The sign reaches the server after
    it was sent, so up to `alive_until`, counted from then, no other worker has the member's jobs.

    `give` runs in the heartbeat thread, everything else in the event loop of the worker.
    """

    def __init__(self, silence_s: float, beat_s: float) -> None:
        self.alive_until = 0.0
        """On the monotonic clock; nothing may be started afterwards until a sign is confirmed."""
        self.when_late: Callable[[], None] | None = None
        """Called when the member turns out to be alive after it was silent for too long. It may
        have to look after the others then: starts are held back until `resume`."""
        self.stood_still = False
        """Whether the process itself has stood still for too long. Who sees to that resets it."""
        self._until, self._held, self._late = 0.0, False, False
        self._silence_s, self._beat_s = silence_s, beat_s
        self._loop = asyncio.get_running_loop()
        self._lost = False
        self._waiting: list[asyncio.Future[None]] = []
        self._awake_at = time.monotonic()
        self._paused_s = self._paused_since_sent_s = 0.0

    @property
    def paused_ms(self) -> int:
        """The longest time for which this process seems to have been paused since its last sign."""
        paused_s = max(self._paused_s, self._paused_since_sent_s, time.monotonic() - self._awake_at)
        return round(paused_s * 1000)

    def confirm(self, sent_at: float) -> None:
        """Note a sign of life, or the beginning of the membership, that the server has accepted."""
        was_late = 0 < self._until <= sent_at
        self._until = sent_at + self._silence_s
        if was_late and self.when_late is not None:
            self._late = True
            self._loop.call_soon_threadsafe(self.when_late)
        self._publish()

    def stand_still(self) -> None:
        """Take it that the process stood still: nothing is started until `resume`."""
        self.stood_still, self._late, self.alive_until = True, True, 0.0

    def resume(self) -> None:
        """Start jobs again, having been late."""
        self._late = False
        self._publish()

    def hold(self) -> None:
        """Let nothing be started until `release`."""
        self._held, self.alive_until = True, 0.0

    def release(self) -> None:
        self._held = False
        self._publish()

    def lose(self) -> None:
        """Note that the membership is over."""
        self._lost, self.alive_until = True, 0.0

    async def until_alive(self) -> None:
        """Return as soon as the member is one for certain; never if it was given up."""
        while time.monotonic() >= self.alive_until:
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            if time.monotonic() < self.alive_until:  # confirmed by the thread since the last look
                self._wake()
            await waiter

    async def give(self, send: Callable[[int], Awaitable[bool]]) -> bool:
        """Send a sign of life with `paused_ms`; whether the server accepted it.

        The wait for the answer is cut into short ones: each that ends late tells of a pause.
        """
        paused_ms, sent_at = self.paused_ms, time.monotonic()
        self._paused_s, self._paused_since_sent_s = paused_ms / 1000, 0.0
        self._awake_at = sent_at
        call = asyncio.ensure_future(send(paused_ms))
        try:
            while not call.done():
                await asyncio.wait((call,), timeout=self._beat_s)
                now = time.monotonic()
                self._paused_since_sent_s = max(self._paused_since_sent_s, now - self._awake_at)
                self._awake_at = now
        finally:
            call.cancel()
        accepted = call.result()
        self._paused_s = 0.0
        if accepted:
            self.stood_still |= paused_ms >= self._silence_s * 1000
            self.confirm(sent_at)
        return accepted

    def _publish(self) -> None:
        if not (self._lost or self._held or self._late):
            self.alive_until = self._until
            if self._waiting:
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
