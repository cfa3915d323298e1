"""One question or act, from connecting to the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.app import Penstock
from penstock.interfaces.cli.main import run
from penstock.settings import Settings
from penstock.topics.admin import TopicAdmin

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
    """Ask the server for its time, in epoch ms; or that of so many seconds before."""
    seconds, micros = with_app(settings, lambda app: app.redis.call("TIME"))
    return int(seconds) * 1000 + int(micros) // 1000 - round(before_s * 1000)
