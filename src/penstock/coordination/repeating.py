"""Calls that may be repeated, repeated until it is known how they ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.errors import OutcomeUnknown, ServerError
from penstock.redis.retry import backoff_s

__all__ = ["REPEAT_WITHIN_S", "until_known"]

T = TypeVar("T")

REPEAT_WITHIN_S: Final = 10.0
"""Nobody waits longer than this for an answer that got lost to be given again."""

_BASE_S, _MAX_S = 0.05, 1.0


async def until_known(
    call: Callable[[], Awaitable[T]], *, within_s: float = REPEAT_WITHIN_S, insist: bool = False
) -> T:
    """Make a call that does nothing more when it is repeated; again while its end is not known.

    A refusal that follows an attempt of unknown end does not say that nothing was done: then
    `OutcomeUnknown` is raised. Without such an attempt, the server's word is passed on at once;
    with `insist`, a refusal that may pass is followed by another attempt as well.
    """
    doubt: OutcomeUnknown | None = None
    deadline, attempt = time.monotonic() + within_s, 0
    while True:
        attempt += 1
        try:
            return await call()
        except ServerError as error:
            if isinstance(error, OutcomeUnknown):
                doubt = error
            may_pass = error.transient and (insist or doubt is not None)
            if not may_pass or time.monotonic() > deadline:
                if doubt is None or doubt is error:
                    raise
                raise doubt from error
        await asyncio.sleep(backoff_s(attempt, base_s=_BASE_S, max_s=_MAX_S))
