"""Coordination primitives of an application; `Penstock` inherits them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from penstock.named_objects import NamedObjects
from penstock.redis.client import Client
from penstock.redis.codec import Codec

if TYPE_CHECKING:
    from penstock.coordination.cache.cache import Cache
    from penstock.coordination.feeds.feed import Feed
    from penstock.coordination.feeds.hub import FeedHub
    from penstock.coordination.leases import Leases
    from penstock.coordination.limits.hourly import HourlyLimit
    from penstock.coordination.limits.limit import Limit, LimitKwargs
    from penstock.coordination.limits.rates import Windows
    from penstock.coordination.limits.registry import LimitRegistry
    from penstock.coordination.once.once import Mark, Once, OnceKwargs
    from penstock.coordination.runs.runs import Runs
    from penstock.coordination.slots.slots import Slots
    from penstock.coordination.wakeups import Wakeups
    from penstock.coordination.windows.options import WindowKwargs
    from penstock.coordination.windows.window import Window
    from penstock.queues.queue import Queue
    from penstock.topics.topic import Topic

__all__ = ["Coordination"]


class Coordination:
    """The coordination primitives. Each is imported when it is first used."""

    redis: Client
    codec: Codec

    def __init__(self) -> None:
        self._leases: Leases | None = None
        self._wakeups: Wakeups | None = None
        self._hub: FeedHub | None = None
        self._marks: Once | None = None
        self._limits: dict[tuple[object, ...], Limit] = {}
        self._windows: dict[str, Window] = {}
        self._window_options: dict[str, object] = {}
        self._slots: NamedObjects[Slots] = NamedObjects()
        self._caches: dict[tuple[object, ...], Cache] = {}

    async def close_coordination(self) -> None:
        """End what runs in the background: waiting callers, feeds, wakeups, renewals."""
        waited_for = (*self._limits.values(), *self._slots)
        async with AsyncExitStack() as parts:  # closed from the last to the first, whatever fails
            for part in (self._leases, self._wakeups, self._hub):
                if part is not None:
                    parts.push_async_callback(part.close)
            closing = (one.close() for one in waited_for)
            for failure in await asyncio.gather(*closing, return_exceptions=True):
                if failure is not None:
                    raise failure

    # ---- once

    def once(self, key: str, **options: Unpack[OnceKwargs]) -> AbstractAsyncContextManager[Mark]:
        """Run a block once for a key: of all callers one is first. As `Once.reserve`.

        - `ttl`: for how many seconds it is not done again. `scope`: a tenant or device to which the
          key belongs. `value`: a text stored in the mark. `replay`: do it again on purpose.
        """
        return self.marks.reserve(key, **options)

    def seen(
        self,
        key: str,
        value: str = "",
        *,
        ttl: float | timedelta | None = None,
        scope: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Mark a key as seen; whether it was already. One command."""
        return self.marks.seen(key, value, ttl=ttl, scope=scope)

    @property
    def marks(self) -> Once:
        """Marks of what has happened: read and remove them, or mark and enqueue in one step."""
        if self._marks is None:
            from penstock.coordination.once.once import Once  # noqa: PLC0415

            self._marks = Once(self.redis, self.codec, self.leases)
        return self._marks

    # ---- limits

    def limit(self, name: str, windows: Windows, **options: Unpack[LimitKwargs]) -> Limit:
        """Return a limit that all processes share; the same object for the same name and options.

        - `windows`: such as `["5/min", "50/hour", "125/day"]`; all of them hold at once.
        - `algorithm`: "exact" logs every call; "compact" needs 2 KiB at most and admits 1 % less;
          "gcra" spreads calls evenly after a `burst`.
        - `buffer`: how many calls (or, below 1, which part) of each window are never used.
        - `margin`: seconds by which each period is extended, because calls travel unequally long:
          the provider's period begins when a call arrives.
        - `lease`: how many permits a process may prefetch, for speed.
        - `away`: while the server is away all calls are refused ("closed"), or each process has
          its `share` of the windows ("share").
        """
        from penstock.coordination.limits.limit import Limit  # noqa: PLC0415
        from penstock.coordination.limits.rates import parse_rates  # noqa: PLC0415

        how = (name, parse_rates(windows), *sorted(options.items()))
        if how not in self._limits:
            self._limits[how] = Limit.of(self.redis, name, windows, self.wakeups, **options)
        return self._limits[how]

    @property
    def limits(self) -> LimitRegistry:
        """The settings of limits, and editing them: what `penstock limit` does."""
        from penstock.coordination.limits.registry import LimitRegistry  # noqa: PLC0415

        return LimitRegistry(self.redis)

    @property
    def hourly_limit(self) -> HourlyLimit:
        """The limit per clock hour, in counters that other programs share."""
        from penstock.coordination.limits.hourly import HourlyLimit  # noqa: PLC0415

        return HourlyLimit(self.redis)

    # ---- windows, runs

    def window(self, name: str, *, to: Queue | Topic, **options: Unpack[WindowKwargs]) -> Window:
        """Return a window that gathers items by key; each batch becomes one job or message.

        - `to`: the queue or topic that gets the batches.
        - `max_age`, `idle`: seconds after the first or the latest item at which a batch closes.
        - `max_items`, `max_bytes`: how large it gets.
        - `key_field`, `items_field`: their names in the job.

        Workers close batches that are due. The same object for the same name and options; with
        other options the latest holds.
        """
        from penstock.coordination.windows.window import Window  # noqa: PLC0415

        how = (to, options)
        if name not in self._windows or self._window_options[name] != how:
            window = Window(self.redis, self.codec, name, to=to, hub=self.hub, **options)
            self._windows[name], self._window_options[name] = window, how
        return self._windows[name]

    @property
    def runs(self) -> Runs:
        """Records of runs: status, processed items, failures and checkpoints."""
        from penstock.coordination.runs.runs import Runs  # noqa: PLC0415

        return Runs(self.redis, self.codec, self.hub)

    # ---- slots, feeds, cache

    def slots(self, name: str, limit: int, *, lease: float | timedelta | None = None) -> Slots:
        """Return a semaphore over all processes: at most `limit` callers hold `name` at once.

        A holder that is silent for `lease` seconds loses its slot. The same object for the same
        options.
        """
        from penstock.coordination.slots.slots import Slots  # noqa: PLC0415

        return self._slots.get(
            name,
            {"limit": limit, "lease": lease},
            lambda: Slots(
                self.redis, name, limit, leases=self.leases, wakeups=self.wakeups, lease=lease
            ),
        )

    def feed(self, name: str) -> Feed:
        """Return a feed of numbered events, to publish to and to read from."""
        from penstock.coordination.feeds.feed import Feed  # noqa: PLC0415

        return Feed(self.redis, self.codec, self.hub, name)

    def cache(self, space: str, *, ttl: float | timedelta | None = None) -> Cache:
        """Return a cache of JSON values, each of which lives for `ttl` seconds by default."""
        # The same object for the same options: callers in the process share what one makes.
        if (space, ttl) not in self._caches:
            from penstock.coordination.cache.cache import Cache  # noqa: PLC0415

            self._caches[space, ttl] = Cache(self.redis, self.codec, space, self.leases, ttl_s=ttl)
        return self._caches[space, ttl]

    # ---- shared by the primitives

    @property
    def leases(self) -> Leases:
        """Renews the leases of this process."""
        if self._leases is None:
            from penstock.coordination.leases import Leases  # noqa: PLC0415

            self._leases = Leases(self.redis)
        return self._leases

    @property
    def wakeups(self) -> Wakeups:
        """This process's one pub/sub connection."""
        if self._wakeups is None:
            from penstock.coordination.wakeups import Wakeups  # noqa: PLC0415

            self._wakeups = Wakeups(self.redis)
        return self._wakeups

    @property
    def hub(self) -> FeedHub:
        """Reads each feed once for all its readers in this process."""
        if self._hub is None:
            from penstock.coordination.feeds.hub import FeedHub  # noqa: PLC0415

            self._hub = FeedHub(self.redis, self.codec, self.wakeups)
        return self._hub
