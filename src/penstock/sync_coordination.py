"""What coordinates work, for code that does not await; `penstock.sync.Penstock` inherits it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from penstock import app as asynchronous
from penstock.portal import Blocking, BlockingApplication, Portal

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import LimitWords
    from penstock.coordination.limits.rates import Windows
    from penstock.coordination.once import Mark, MarkWords
    from penstock.coordination.windows.options import WindowWords
    from penstock.sync_cache import Cache
    from penstock.sync_feeds import Feed
    from penstock.sync_holding import Limit, Slots
    from penstock.sync_primitives import HourlyLimit, LimitBook, Once, Window
    from penstock.sync_queues import Queue
    from penstock.sync_runs import Runs
    from penstock.sync_topics import Topic

__all__ = ["Coordination"]


class Coordination(BlockingApplication, ABC):
    """The primitives by which processes agree. Each is imported when it is first used."""

    @abstractmethod
    def reach(self) -> tuple[Portal, asynchronous.Penstock]:
        """Return the loop's thread and the application that lives there; `NotOpen` without."""

    def once(self, key: str, **words: Unpack[MarkWords]) -> AbstractContextManager[Mark]:
        """Let a block happen once for a key, as `penstock.Penstock.once`.

        with app.once(sha256, value=path) as mark:
            if mark.first:
                store(path)
        """
        return self.marks.reserve(key, **words)

    seen = Blocking(asynchronous.Penstock.seen)

    @cached_property
    def marks(self) -> Once:
        """Marks of what has happened."""
        from penstock.sync_primitives import Once  # noqa: PLC0415

        return Once(self)

    def limit(self, name: str, windows: Windows, **words: Unpack[LimitWords]) -> Limit:
        """Return a limit that all processes share, as `penstock.Penstock.limit`."""
        from penstock.sync_holding import Limit  # noqa: PLC0415

        return Limit(self, name, lambda app: app.limit(name, windows, **words))

    @cached_property
    def limits(self) -> LimitBook:
        """How limits are set, and setting them anew."""
        from penstock.sync_primitives import LimitBook  # noqa: PLC0415

        return LimitBook(self)

    @cached_property
    def hourly_limit(self) -> HourlyLimit:
        """The limit per clock hour, in the counters that harvesters share."""
        from penstock.sync_primitives import HourlyLimit  # noqa: PLC0415

        return HourlyLimit(self)

    def window(self, name: str, *, to: Queue | Topic, **words: Unpack[WindowWords]) -> Window:
        """Return a window that gathers items by key, as `penstock.Penstock.window`."""
        from penstock.sync_primitives import Window  # noqa: PLC0415

        return Window(self, name, to, words)

    @cached_property
    def runs(self) -> Runs:
        """Records of runs: status, what was processed, what failed, and how far they are."""
        from penstock.sync_runs import Runs  # noqa: PLC0415

        return Runs(self)

    def slots(self, name: str, limit: int, *, lease: float | timedelta | None = None) -> Slots:
        """Return a limit on how many hold `name` at once, as `penstock.Penstock.slots`."""
        from penstock.sync_holding import Slots  # noqa: PLC0415

        return Slots(self, name, lambda app: app.slots(name, limit, lease=lease))

    def feed(self, name: str) -> Feed:
        """Return a feed of numbered events, to publish to and to read from."""
        from penstock.sync_feeds import Feed  # noqa: PLC0415
        from penstock.sync_sibling import Sibling  # noqa: PLC0415

        return Feed(Sibling(self, lambda app: app.feed(name)), name)

    def cache(self, space: str, *, ttl: float | timedelta | None = None) -> Cache:
        """Return a cache of JSON values, each of which lives for `ttl` seconds unless told."""
        from penstock.sync_cache import Cache  # noqa: PLC0415

        return Cache(self, space, ttl)
