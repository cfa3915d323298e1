"""Windows for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from penstock.coordination.windows import window as asynchronous_window
from penstock.sync.feeds import Feed
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, Bound, NamedSibling, Within

if TYPE_CHECKING:
    from penstock.coordination.windows.options import WindowKwargs
    from penstock.sync.queues import Queue
    from penstock.sync.topics import Topic

__all__ = ["Window"]


class Window(NamedSibling[asynchronous_window.Window]):
    """`coordination.Window`, blocking. Made by `Penstock.window`."""

    def __init__(
        self, app: Application, name: str, to: Queue | Topic, options: WindowKwargs
    ) -> None:
        super().__init__(app, lambda app: app.window(name, to=to.on(app), **options))
        self.to = to

    add = Blocking(asynchronous_window.Window.add)
    close = Blocking(asynchronous_window.Window.close)
    batch = Blocking(asynchronous_window.Window.batch)
    open_batches = Blocking(asynchronous_window.Window.open_batches)
    register = Blocking(asynchronous_window.Window.register)

    def feed(self, key: str | None = None) -> Feed:
        """The feed of the batches, as `coordination.Window.feed`."""
        portal, window = self.reach()
        return Feed(Bound(portal, portal.run(window.feed(key))), self.name)

    def falling_back(self, job: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Add the items of a fast job to the open batch if the block fails.

        As `coordination.Window.falling_back`.
        """
        return Within(self, lambda window: window.falling_back(job), lambda _, nothing: nothing)
