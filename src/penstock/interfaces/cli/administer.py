"""One question or act on topics, from connecting to the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.app import Penstock
from penstock.interfaces.cli.main import run
from penstock.settings import Settings
from penstock.topics.admin import TopicAdmin

__all__ = ["administer"]

T = TypeVar("T")


def administer(settings: Settings, act: Callable[[TopicAdmin], Awaitable[T]]) -> T:
    """Open a connection, run `act`, and return what it returns."""

    async def ask() -> T:
        async with Penstock(settings=settings) as app:
            return await act(TopicAdmin(app.redis, app.codec))

    return run(ask())
