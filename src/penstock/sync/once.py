"""Marks for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from penstock.coordination.once import once as asynchronous_once
from penstock.coordination.once.once import EnqueuedOnce, Mark, OnceKwargs
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, Sibling, Within

if TYPE_CHECKING:
    from penstock.queues.options import Overflow, SendKeywords
    from penstock.sync.queues import Queue

__all__ = ["Once"]


class Once(Sibling[asynchronous_once.Once]):
    """`coordination.Once`, blocking: `Penstock.marks`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.marks)

    seen = Blocking(asynchronous_once.Once.seen)
    peek = Blocking(asynchronous_once.Once.peek)

    def reserve(self, key: str, **options: Unpack[OnceKwargs]) -> AbstractContextManager[Mark]:
        """Reserve the key for a block, as `coordination.Once.reserve`."""
        return Within(
            self,
            lambda marks: marks.reserve(key, **options),
            lambda _, mark: mark,
        )

    def forget(self, key: str, *, scope: str | None = None, queue: Queue | None = None) -> bool:
        """Delete the mark, as `coordination.Once.forget`."""
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
        **options: Unpack[SendKeywords],
    ) -> EnqueuedOnce:
        """Mark it and add a job to `queue`, or neither, as `coordination.Once.enqueue`."""
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
