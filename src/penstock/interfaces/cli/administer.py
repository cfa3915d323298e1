"""One request of a command, from connecting to its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.app import Penstock
from penstock.delivery import queries
from penstock.interfaces.cli.main import run
from penstock.settings import Settings
from penstock.topics.admin.topic_admin import TopicAdmin

__all__ = ["administer", "server_ms", "with_app"]

T = TypeVar("T")


def administer(settings: Settings, act: Callable[[TopicAdmin], Awaitable[T]]) -> T:
    """As `with_app`, for what concerns topics."""
    return with_app(settings, lambda app: act(app.topics))


def with_app(settings: Settings, act: Callable[[Penstock], Awaitable[T]]) -> T:
    """Open a connection, run `act`, and return what it returns."""

    async def ask() -> T:
        async with Penstock(settings=settings) as app:
            return await act(app)

    return run(ask())


def server_ms(settings: Settings, before_s: float = 0) -> int:
    """Time of the server in epoch ms, or of this many seconds before."""
    now_ms = with_app(settings, lambda app: queries.server_ms(app.redis))
    return now_ms - round(before_s * 1000)
