"""Coordination primitives for code that does not await; `penstock.sync.Penstock` inherits them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from penstock import app as asynchronous
from penstock.sync.portal import Blocking, BlockingApplication, Portal

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import LimitKwargs
    from penstock.coordination.limits.rates import Windows
    from penstock.coordination.once.once import Mark, OnceKwargs
    from penstock.coordination.windows.options import WindowKwargs
    from penstock.sync.cache import Cache
    from penstock.sync.feeds import Feed
    from penstock.sync.limits import HourlyLimit, Limit, LimitRegistry
    from penstock.sync.once import Once
    from penstock.sync.queues import Queue
    from penstock.sync.runs import Runs
    from penstock.sync.slots import Slots
    from penstock.sync.topics import Topic
    from penstock.sync.windows import Window

__all__ = ["Coordination"]


class Coordination(BlockingApplication, ABC):
    """The coordination primitives, each imported at its first use."""

    @abstractmethod
    def reach(self) -> tuple[Portal, asynchronous.Penstock]:
        """The thread of the loop and the application on it; `NotOpen` if it is closed."""

    def once(self, key: str, **options: Unpack[OnceKwargs]) -> AbstractContextManager[Mark]:
        """Run a block once per key, as `penstock.Penstock.once`.

        with app.once(sha256, value=path) as mark:
            if mark.first:
                store(path)
        """
        return self.marks.reserve(key, **options)

    seen = Blocking(asynchronous.Penstock.seen)

    @cached_property
    def marks(self) -> Once:
        """Marks of what has happened."""
        from penstock.sync.once import Once  # noqa: PLC0415

        return Once(self)

    def limit(self, name: str, windows: Windows, **options: Unpack[LimitKwargs]) -> Limit:
        """Return a limit that all processes share, as `penstock.Penstock.limit`."""
        from penstock.sync.limits import Limit  # noqa: PLC0415

        return Limit(self, lambda app: app.limit(name, windows, **options))

    @cached_property
    def limits(self) -> LimitRegistry:
        """Settings of all limits: list and change them."""
        from penstock.sync.limits import LimitRegistry  # noqa: PLC0415

        return LimitRegistry(self)

    @cached_property
    def hourly_limit(self) -> HourlyLimit:
        """The limit per clock hour, in shared counters."""
        from penstock.sync.limits import HourlyLimit  # noqa: PLC0415

        return HourlyLimit(self)

    def window(self, name: str, *, to: Queue | Topic, **options: Unpack[WindowKwargs]) -> Window:
        """Return a window that collects items by key, as `penstock.Penstock.window`."""
        from penstock.sync.windows import Window  # noqa: PLC0415

        return Window(self, name, to, options)

    @cached_property
    def runs(self) -> Runs:
        """Records of runs: status, processed items, failures and checkpoints."""
        from penstock.sync.runs import Runs  # noqa: PLC0415

        return Runs(self)

    def slots(self, name: str, limit: int, *, lease: float | timedelta | None = None) -> Slots:
        """Return a limit on how many hold `name` at once, as `penstock.Penstock.slots`."""
        from penstock.sync.slots import Slots  # noqa: PLC0415

        return Slots(self, lambda app: app.slots(name, limit, lease=lease))

    def feed(self, name: str) -> Feed:
        """Return a feed of numbered events, to publish to and to read from."""
        from penstock.sync.feeds import Feed  # noqa: PLC0415
        from penstock.sync.sibling import Sibling  # noqa: PLC0415

        return Feed(Sibling(self, lambda app: app.feed(name)), name)

    def cache(self, space: str, *, ttl: float | timedelta | None = None) -> Cache:
        """Return a cache of JSON values, each of which lives for `ttl` seconds by default."""
        from penstock.sync.cache import Cache  # noqa: PLC0415

        return Cache(self, space, ttl)
