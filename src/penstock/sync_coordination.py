"""What coordinates work, for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from penstock import app as asynchronous
from penstock.coordination import once as asynchronous_once
from penstock.coordination.limits import book as asynchronous_book
from penstock.coordination.limits import hourly as asynchronous_hourly
from penstock.coordination.limits.rates import Rate
from penstock.coordination.limits.setting import Algorithm
from penstock.coordination.once import Enqueued, Mark
from penstock.coordination.windows import window as asynchronous_window
from penstock.portal import Blocking, Portal
from penstock.sync_cache import Cache
from penstock.sync_feeds import Feed
from penstock.sync_holding import Limit, Slots
from penstock.sync_runs import Runs
from penstock.sync_sibling import Application, Sibling, Within

if TYPE_CHECKING:
    from penstock.coordination.limits.limit import Away
    from penstock.queues.options import Overflow, SendWords
    from penstock.sync import Topic
    from penstock.sync_queues import Queue

__all__ = ["Coordination", "HourlyLimit", "LimitBook", "Once", "Window"]


class Once(Sibling[asynchronous_once.Once]):
    """`penstock.Once`, blocking: `Penstock.marks`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.marks)

    seen = Blocking(asynchronous_once.Once.seen)
    peek = Blocking(asynchronous_once.Once.peek)

    def reserve(
        self,
        key: str,
        *,
        ttl: float | timedelta | None = None,
        scope: str | None = None,
        value: str = "",
        replay: bool = False,
    ) -> AbstractContextManager[Mark]:
        """Reserve what the block does, as `penstock.Once.reserve`: of all who ask, one is first."""
        return Within(
            self,
            lambda marks: marks.reserve(key, ttl=ttl, scope=scope, value=value, replay=replay),
            lambda _, mark: mark,
        )

    def forget(self, key: str, *, scope: str | None = None, queue: Queue | None = None) -> bool:
        """Delete the mark, as `penstock.Once.forget`."""
        portal, marks = self.reach()
        beside = None if queue is None else queue.reach()[1]
        return portal.run(marks.forget(key, scope=scope, queue=beside))

    def enqueue(
        self,
        key: str,
        queue: Queue,
        data: Any,
        *,
        value: str = "",
        ttl: float | timedelta | None = None,
        scope: str | None = None,
        replay: bool = False,
        max_size: int | None = None,
        overflow: Overflow | None = None,
        **options: Unpack[SendWords],
    ) -> Enqueued:
        """Mark it and add a job to `queue`, or neither, as `penstock.Once.enqueue`."""
        portal, marks = self.reach()
        return portal.run(
            marks.enqueue(
                key,
                queue.reach()[1],
                data,
                value=value,
                ttl=ttl,
                scope=scope,
                replay=replay,
                max_size=max_size,
                overflow=overflow,
                **options,
            )
        )


class LimitBook(Sibling[asynchronous_book.LimitBook]):
    """`penstock.LimitBook`, blocking: `Penstock.limits`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.limits)

    all = Blocking(asynchronous_book.LimitBook.all)
    find = Blocking(asynchronous_book.LimitBook.find)
    edit = Blocking(asynchronous_book.LimitBook.edit)
    release = Blocking(asynchronous_book.LimitBook.release)


class HourlyLimit(Sibling[asynchronous_hourly.HourlyLimit]):
    """`penstock.HourlyLimit`, blocking: `Penstock.hourly_limit`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.hourly_limit)

    increment = Blocking(asynchronous_hourly.HourlyLimit.increment)
    status = Blocking(asynchronous_hourly.HourlyLimit.status)


class Window(Sibling[asynchronous_window.Window]):
    """`penstock.Window`, blocking. Made by `Penstock.window`."""

    def __init__(
        self, app: Application, name: str, to: Queue | Topic, options: dict[str, Any]
    ) -> None:
        super().__init__(app, lambda app: app.window(name, to=to.on(app), **options))
        self.name, self.to = name, to

    def __repr__(self) -> str:
        return f"Window({self.name!r})"

    add = Blocking(asynchronous_window.Window.add)
    close = Blocking(asynchronous_window.Window.close)
    batch = Blocking(asynchronous_window.Window.batch)
    open_batches = Blocking(asynchronous_window.Window.open_batches)
    register = Blocking(asynchronous_window.Window.register)

    def falling_back(self, job: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Put what a fast job brought into the open batch if the block fails.

        As `penstock.Window.falling_back`.
        """
        return Within(self, lambda window: window.falling_back(job), lambda _, nothing: nothing)


class Coordination:
    """The primitives by which processes agree; `penstock.sync.Penstock` inherits them."""

    def reach(self) -> tuple[Portal, asynchronous.Penstock]:
        raise NotImplementedError

    @property
    def twin(self) -> asynchronous.Penstock:
        raise NotImplementedError

    def once(
        self,
        key: str,
        *,
        ttl: float | timedelta | None = None,
        scope: str | None = None,
        value: str = "",
        replay: bool = False,
    ) -> AbstractContextManager[Mark]:
        """Let a block happen once for a key, as `penstock.Penstock.once`.

        with app.once(sha256, value=path) as mark:
            if mark.first:
                store(path)
        """
        return self.marks.reserve(key, ttl=ttl, scope=scope, value=value, replay=replay)

    seen = Blocking(asynchronous.Penstock.seen)

    @cached_property
    def marks(self) -> Once:
        """Marks of what has happened."""
        return Once(self)

    def limit(
        self,
        name: str,
        windows: str | Rate | Sequence[str | Rate | tuple[int, float]],
        *,
        algorithm: Algorithm = "exact",
        burst: int | None = None,
        buffer: float = 0,
        margin: float = 0,
        lease: int = 0,
        away: Away = "closed",
        share: float = 0.0,
    ) -> Limit:
        """Return a limit that all processes share, as `penstock.Penstock.limit`."""
        options: dict[str, Any] = {
            "algorithm": algorithm,
            "burst": burst,
            "buffer": buffer,
            "margin": margin,
            "lease": lease,
            "away": away,
            "share": share,
        }
        return Limit(self, name, lambda app: app.limit(name, windows, **options))

    @cached_property
    def limits(self) -> LimitBook:
        """How limits are set, and setting them anew."""
        return LimitBook(self)

    @cached_property
    def hourly_limit(self) -> HourlyLimit:
        """The limit per clock hour, in the counters that harvesters share."""
        return HourlyLimit(self)

    def window(
        self,
        name: str,
        *,
        to: Queue | Topic,
        max_age: float | timedelta | None = None,
        idle: float | timedelta | None = None,
        max_items: int | None = None,
        max_bytes: int | None = None,
        key_field: str | None = None,
        items_field: str | None = None,
    ) -> Window:
        """Return a window that gathers items by key, as `penstock.Penstock.window`.

        Workers of this application close batches that are due.
        """
        options: dict[str, Any] = {
            "max_age": max_age,
            "idle": idle,
            "max_items": max_items,
            "max_bytes": max_bytes,
            "key_field": key_field,
            "items_field": items_field,
        }
        return Window(self, name, to, options)

    @cached_property
    def runs(self) -> Runs:
        """Records of runs: status, what was processed, what failed, and how far they are."""
        return Runs(self)

    def slots(self, name: str, limit: int, *, lease: float | timedelta | None = None) -> Slots:
        """Return a limit on how many hold `name` at once, as `penstock.Penstock.slots`."""
        return Slots(self, name, lambda app: app.slots(name, limit, lease=lease))

    def feed(self, name: str) -> Feed:
        """Return a feed of numbered events, to publish to and to read from."""
        return Feed(self, name)

    def cache(self, space: str, *, ttl: float | None = None) -> Cache:
        """Return a cache of JSON values, each of which lives for `ttl` seconds unless told."""
        return Cache(self, space, ttl)
