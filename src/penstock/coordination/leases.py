"""Renews leases: one task for a whole application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from penstock.redis.client import Client
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["Lease", "Leases"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

MOST_AT_ONCE = 64
"""Renewals under way at the same time."""

# A lease is renewed early by up to this part of its interval, together with one that is due: so a
# thousand leases wake the task ten times per interval, not a thousand times.
_EARLY = 0.1
# The server counts in whole ms and by another clock: ours ends slightly earlier.
_OURS = 0.99


class Lease:
    """One lease; made by `Leases.hold`."""

    def __init__(
        self,
        end: Callable[[Lease], None],
        renew: Callable[[], Awaitable[bool]],
        on_loss: Callable[[], None],
        *,
        every_s: float,
        ttl_s: float,
        began: float,
    ) -> None:
        self._end, self._on_loss, self.renew = end, on_loss, renew
        self._every_s, self._ttl_s, self._failures = every_s, ttl_s * _OURS, 0
        self._lost = False
        self.due, self.until = began + every_s, began + self._ttl_s
        self.renewal: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        """Whether another holder may have it by now: the server refused it, or its time is up.

        It is true from that moment on, even if the event loop is busy and `lost` of `hold` was not
        called yet: read it again after a long computation. May be read in any thread.
        """
        return self._lost or time.monotonic() >= self.until

    async def end(self) -> None:
        """Stop renewing it; no loss is reported. May be called twice, or after the loss."""
        self._end(self)

    # for Leases

    def is_due(self, now: float) -> bool:
        return self.renewal is None and self.due - _EARLY * self._every_s <= now

    def renewed(self, asked: float) -> None:
        """Count from when the renewal was sent: the server counts from later."""
        self.due, self._failures = asked + self._every_s, 0
        self.until = max(self.until, asked + self._ttl_s)

    def postpone(self) -> None:
        """Retry soon: a renewal failed."""
        self._failures += 1
        self.due = time.monotonic() + min(retry_delay_s(self._failures), self._every_s / 3)

    def lose(self) -> None:
        self._lost = True
        self._on_loss()


class Leases:
    """Renews any number of leases, each until it ends or is lost. For one event loop.

        leases = Leases(client)
        began = time.monotonic()
        ...                                        # take something on the server, for 30 s
        lease = leases.hold(renew, 10, lost, ttl_s=30, began=began)
        ...
        await lease.end()                          # then give it back

    The task that renews starts with the first lease and ends when it finds none.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._held: dict[Lease, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._sleeps_until = 0.0
        self._renewing = 0

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    def hold(
        self,
        renew: Callable[[], Awaitable[bool]],
        every_s: float,
        lost: Callable[[], None],
        *,
        ttl_s: float | None = None,
        began: float | None = None,
    ) -> Lease:
        """Call `renew` every `every_s` seconds, until `end()` or the loss.

        - `renew` returns whether the lease is still held. If it raises, it is retried soon, as long
          as the lease lasts.
        - `lost` is called once, in the event loop, when the lease has passed or its time is up.
        - `ttl_s`: how long a lease lasts on the server; by default three times `every_s`.
        - `began`: `time.monotonic()` before the lease was requested; by default now.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Another event loop, or a forked process: the leases held there are not ours.
            self._loop, self._task, self._held, self._renewing = loop, None, {}, 0
            self._wake = asyncio.Event()
        lease = Lease(
            self._drop,
            renew,
            lost,
            every_s=every_s,
            ttl_s=3 * every_s if ttl_s is None else ttl_s,
            began=time.monotonic() if began is None else began,
        )
        self._held[lease] = None
        if self._task is None:
            self._task = loop.create_task(self._run(), name="penstock leases")
        elif min(lease.due, lease.until) < self._sleeps_until:
            self._wake.set()
        return lease

    async def close(self) -> None:
        """Stop renewing: what is still held expires on the server. May be called twice."""
        task, self._task = self._task, None
        for lease in list(self._held):
            self._drop(lease)
        if task is not None and self._loop is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])

    # inside

    def _drop(self, lease: Lease) -> None:
        self._held.pop(lease, None)
        if lease.renewal is not None:
            lease.renewal.cancel()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while self._held:
                now = time.monotonic()
                self._wake.clear()
                for lease in [lease for lease in self._held if lease.until <= now]:
                    self._lose(lease)
                for lease in [lease for lease in self._held if lease.is_due(now)]:
                    if self._renewing >= MOST_AT_ONCE:
                        break  # the end of one of them wakes us
                    self._renewing += 1
                    lease.renewal = group.create_task(self._renew(lease), name="penstock renewal")
                    lease.renewal.add_done_callback(self._one_less)
                await self._sleep(now)
            # Before the group waits for the last renewals: a new lease starts another task.
            self._task = None

    async def _sleep(self, now: float) -> None:
        """Sleep until a lease is due or ends, or until woken."""
        full = self._renewing >= MOST_AT_ONCE
        self._sleeps_until = min(
            (
                lease.until if full or lease.renewal else min(lease.due, lease.until)
                for lease in self._held
            ),
            default=now,
        )
        try:
            async with asyncio.timeout(max(self._sleeps_until - time.monotonic(), 0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _renew(self, lease: Lease) -> None:
        asked = time.monotonic()
        try:
            goes_on = await lease.renew()
        except Exception as error:  # noqa: BLE001  it is retried
            lease.postpone()
            name = type(error).__name__
            quiet.warning(name, "a lease at %s was not renewed: %s", self._client.address, error)
        else:
            if goes_on:
                lease.renewed(asked)
            elif lease in self._held:
                lease.renewal = None  # it is this task: not to be cancelled
                self._lose(lease)
        finally:
            lease.renewal = None

    def _one_less(self, _: asyncio.Task[None]) -> None:
        # Not at the end of `_renew`: a task cancelled before its first step does not get there.
        self._renewing -= 1
        self._wake.set()

    def _lose(self, lease: Lease) -> None:
        self._drop(lease)
        try:
            lease.lose()
        except Exception:
            logger.exception("the callback for a lost lease failed")
