"""A client whose connection dies between two calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.errors import OutcomeUnknown
from penstock.redis.client import Client

__all__ = ["cut_after"]


@contextmanager
def cut_after(calls: int, client: Client) -> Iterator[None]:
    """Let so many calls and pipelines pass; the next ends the block, which has to need it."""
    left = calls

    def counted(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OutcomeUnknown("the connection died")
            return await original(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "call", counted(client.call))
        patch.setattr(client, "pipeline", counted(client.pipeline))
        with pytest.raises(OutcomeUnknown):
            yield
