"""Marks, windows and what is known of limits, for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from penstock.coordination import once as asynchronous_once
from penstock.coordination.limits import book as asynchronous_book
from penstock.coordination.limits import hourly as asynchronous_hourly
from penstock.coordination.once import Enqueued, Mark, MarkWords
from penstock.coordination.windows import window as asynchronous_window
from penstock.portal import Blocking
from penstock.sync_feeds import Feed
from penstock.sync_sibling import Application, Bound, Sibling, Within

if TYPE_CHECKING:
    from penstock.coordination.windows.options import WindowWords
    from penstock.queues.options import Overflow, SendWords
    from penstock.sync_queues import Queue
    from penstock.sync_topics import Topic

__all__ = ["HourlyLimit", "LimitBook", "Once", "Window"]


class Once(Sibling[asynchronous_once.Once]):
    """`penstock.Once`, blocking: `Penstock.marks`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.marks)

    seen = Blocking(asynchronous_once.Once.seen)
    peek = Blocking(asynchronous_once.Once.peek)

    def reserve(self, key: str, **words: Unpack[MarkWords]) -> AbstractContextManager[Mark]:
        """Reserve what the block does, as `penstock.Once.reserve`: of all who ask, one is first."""
        return Within(
            self,
            lambda marks: marks.reserve(key, **words),
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

    def __init__(self, app: Application, name: str, to: Queue | Topic, words: WindowWords) -> None:
        super().__init__(app, lambda app: app.window(name, to=to.on(app), **words))
        self.name, self.to = name, to

    def __repr__(self) -> str:
        return f"Window({self.name!r})"

    add = Blocking(asynchronous_window.Window.add)
    close = Blocking(asynchronous_window.Window.close)
    batch = Blocking(asynchronous_window.Window.batch)
    open_batches = Blocking(asynchronous_window.Window.open_batches)
    register = Blocking(asynchronous_window.Window.register)

    def feed(self, key: str | None = None) -> Feed:
        """Return what happens to batches, as `penstock.Window.feed`."""
        portal, window = self.reach()
        return Feed(Bound(portal, portal.run(window.feed(key))), self.name)

    def falling_back(self, job: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Put what a fast job brought into the open batch if the block fails.

        As `penstock.Window.falling_back`.
        """
        return Within(self, lambda window: window.falling_back(job), lambda _, nothing: nothing)
