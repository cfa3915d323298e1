"""What an application offers to coordinate work; `Penstock` inherits it."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from penstock.named import Named
from penstock.redis.client import Client
from penstock.redis.codec import Codec

if TYPE_CHECKING:
    from penstock.coordination.cache import Cache
    from penstock.coordination.feeds.feed import Feed
    from penstock.coordination.feeds.hub import FeedHub
    from penstock.coordination.hints import Hints
    from penstock.coordination.leases import Leases
    from penstock.coordination.limits.book import LimitBook
    from penstock.coordination.limits.hourly import HourlyLimit
    from penstock.coordination.limits.limit import Limit, LimitWords
    from penstock.coordination.limits.rates import Windows
    from penstock.coordination.once import Mark, MarkWords, Once
    from penstock.coordination.runs.runs import Runs
    from penstock.coordination.slots import Slots
    from penstock.coordination.windows.options import WindowWords
    from penstock.coordination.windows.window import Window
    from penstock.queues.queue import Queue
    from penstock.topics.topic import Topic

__all__ = ["Coordination"]


class Coordination:
    """The primitives by which processes agree. Each is imported when it is first used."""

    redis: Client
    codec: Codec

    def __init__(self) -> None:
        self._leases: Leases | None = None
        self._hints: Hints | None = None
        self._hub: FeedHub | None = None
        self._marks: Once | None = None
        self._limits: dict[tuple[object, ...], Limit] = {}
        self._windows: dict[str, Window] = {}
        self._window_words: dict[str, object] = {}
        self._slots: Named[Slots] = Named()
        self._caches: dict[tuple[object, ...], Cache] = {}

    async def close_coordination(self) -> None:
        """End what runs beside the caller: renewals, hints, feeds, permits in advance."""
        for limit in self._limits.values():
            await limit.close()
        for part in (self._hub, self._hints, self._leases):
            if part is not None:
                await part.close()

    # ---- once

    def once(self, key: str, **words: Unpack[MarkWords]) -> AbstractAsyncContextManager[Mark]:
        """Let a block happen once for a key: of all who ask, one is first. As `Once.reserve`.

        - `ttl`: for how many seconds it is not done again. `scope`: a camera or a tenant to which
          the key belongs. `value`: what the mark says. `replay`: do it again on purpose.
        """
        return self.marks.reserve(key, **words)

    def seen(
        self,
        key: str,
        value: str = "",
        *,
        ttl: float | timedelta | None = None,
        scope: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Mark something as seen, and tell whether it was: one command."""
        return self.marks.seen(key, value, ttl=ttl, scope=scope)

    @property
    def marks(self) -> Once:
        """Marks of what has happened: look at them, remove them, mark and queue in one step."""
        if self._marks is None:
            from penstock.coordination.once import Once  # noqa: PLC0415

            self._marks = Once(self.redis, self.codec, self.leases)
        return self._marks

    # ---- limits

    def limit(self, name: str, windows: Windows, **words: Unpack[LimitWords]) -> Limit:
        """Return a limit that all processes share; the same one for the same name and words.

        - `windows`: such as `["5/min", "50/hour", "125/day"]`; all of them hold at once.
        - `algorithm`: "exact" logs every call; "compact" needs 2 KiB at most and admits 1 % less;
          "gcra" spreads calls evenly after a `burst`.
        - `buffer`: how many calls (or, below 1, which part) of each window are never used.
        - `margin`: seconds by which each period is taken longer, because calls travel unequally
          long: the other side's period begins when a call arrives.
        - `lease`: how many permits a process may take in advance, for speed.
        - `away`: while the server is away nobody is let through ("closed"), or each process has
          its `share` of the windows ("share").
        """
        from penstock.coordination.limits.limit import Limit  # noqa: PLC0415
        from penstock.coordination.limits.rates import parse_rates  # noqa: PLC0415

        how = (name, parse_rates(windows), *sorted(words.items()))
        if how not in self._limits:
            self._limits[how] = Limit.of(self.redis, name, windows, self.hints, **words)
        return self._limits[how]

    @property
    def limits(self) -> LimitBook:
        """How limits are set, and setting them anew: what `penstock limit` does."""
        from penstock.coordination.limits.book import LimitBook  # noqa: PLC0415

        return LimitBook(self.redis)

    @property
    def hourly_limit(self) -> HourlyLimit:
        """The limit per clock hour, in the counters that harvesters share."""
        from penstock.coordination.limits.hourly import HourlyLimit  # noqa: PLC0415

        return HourlyLimit(self.redis)

    # ---- windows, runs

    def window(self, name: str, *, to: Queue | Topic, **words: Unpack[WindowWords]) -> Window:
        """Return a window that gathers items by key; each batch becomes one job or message.

        - `to`: the queue or topic that gets the batches.
        - `max_age`, `idle`: seconds after the first or the latest item at which a batch closes.
        - `max_items`, `max_bytes`: how large it gets.
        - `key_field`, `items_field`: how the job names them.

        Workers close batches that are due. The same window for the same name and words; with other
        words the latest holds.
        """
        from penstock.coordination.windows.window import Window  # noqa: PLC0415

        how = (to, words)
        if name not in self._windows or self._window_words[name] != how:
            window = Window(self.redis, self.codec, name, to=to, hub=self.hub, **words)
            self._windows[name], self._window_words[name] = window, how
        return self._windows[name]

    @property
    def runs(self) -> Runs:
        """Records of runs: status, what was processed, what failed, and how far they are."""
        from penstock.coordination.runs.runs import Runs  # noqa: PLC0415

        return Runs(self.redis, self.codec, self.hub)

    # ---- slots, feeds, cache

    def slots(self, name: str, limit: int, *, lease: float | timedelta | None = None) -> Slots:
        """Return a limit on how many hold `name` at once, over all processes.

        A holder that falls silent for `lease` seconds loses its slot. The same object for the same
        words.
        """
        from penstock.coordination.slots import Slots  # noqa: PLC0415

        return self._slots.get(
            name,
            {"limit": limit, "lease": lease},
            lambda: Slots(
                self.redis, name, limit, leases=self.leases, hints=self.hints, lease=lease
            ),
        )

    def feed(self, name: str) -> Feed:
        """Return a feed of numbered events, to publish to and to read from."""
        from penstock.coordination.feeds.feed import Feed  # noqa: PLC0415

        return Feed(self.redis, self.codec, self.hub, name)

    def cache(self, space: str, *, ttl: float | timedelta | None = None) -> Cache:
        """Return a cache of JSON values, each of which lives for `ttl` seconds unless told."""
        # The same one for the same words: what one caller makes, others in the process wait for.
        if (space, ttl) not in self._caches:
            from penstock.coordination.cache import Cache  # noqa: PLC0415

            self._caches[space, ttl] = Cache(self.redis, self.codec, space, self.leases, ttl_s=ttl)
        return self._caches[space, ttl]

    # ---- what they share

    @property
    def leases(self) -> Leases:
        """Renews what this process holds."""
        if self._leases is None:
            from penstock.coordination.leases import Leases  # noqa: PLC0415

            self._leases = Leases(self.redis)
        return self._leases

    @property
    def hints(self) -> Hints:
        """This process's one pub/sub connection."""
        if self._hints is None:
            from penstock.coordination.hints import Hints  # noqa: PLC0415

            self._hints = Hints(self.redis)
        return self._hints

    @property
    def hub(self) -> FeedHub:
        """Reads each feed once for all of its readers in this process."""
        if self._hub is None:
            from penstock.coordination.feeds.hub import FeedHub  # noqa: PLC0415

            self._hub = FeedHub(self.redis, self.codec, self.hints)
        return self._hub
