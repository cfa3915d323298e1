"""Retries, only where they are safe, with back-off."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import OutcomeUnknown, ServerError
from penstock.settings import RetrySettings

__all__ = ["REPEAT_WITHIN_S", "backoff_s", "repeat_until_known", "with_retry"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

JITTER = 0.25
REPEAT_WITHIN_S: Final = 10.0
"""For how long a call whose reply was lost is repeated."""

_REPEAT_BASE_S, _REPEAT_MAX_S = 0.05, 1.0

# 2.0 ** 1024 overflows; any sane cap is reached long before this.
_LARGEST_EXPONENT = 64


def backoff_s(attempt: int, *, base_s: float, max_s: float) -> float:
    """Seconds to wait after the failed try number `attempt` (1, 2, …).

    min(base_s·2^(attempt-1), max_s) lengthened by 0 to 25 %, and never beyond `max_s`.
    """
    exponent = min(max(attempt, 1) - 1, _LARGEST_EXPONENT)
    return min(base_s * 2.0**exponent * (1 + random.uniform(0, JITTER)), max_s)  # noqa: S311


async def with_retry(
    operation: Callable[[], Awaitable[T]],
    operation_name: str,
    max_retries: int | None = None,
    *,
    settings: RetrySettings | None = None,
    idempotent: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """Run `operation` up to `max_retries` times in all, waiting in between, and return its result.

    Tried again is what the server rejected for the moment. A call whose outcome is unknown may have
    happened: it is repeated only if `idempotent` says that doing it twice does no harm. The last
    error is raised as it is, without a wait before it.
    """
    settings = settings or RetrySettings()
    tries = settings.tries if max_retries is None else max(max_retries, 1)
    for attempt in range(1, tries):
        try:
            return await operation()
        except ServerError as error:
            unsafe = isinstance(error, OutcomeUnknown) and not idempotent
            if unsafe or not error.transient:
                raise
            wait_s = backoff_s(attempt, base_s=settings.base_s, max_s=settings.max_s)
            logger.debug(
                "%s failed (try %d of %d), again in %.2f s: %s",
                operation_name, attempt, tries, wait_s, error,
            )  # fmt: skip
        await clock.sleep(wait_s)
    return await operation()


def _repeat_pause_s(attempt: int) -> float:
    return backoff_s(attempt, base_s=_REPEAT_BASE_S, max_s=_REPEAT_MAX_S)


async def repeat_until_known(
    call: Callable[[], Awaitable[T]],
    *,
    within_s: float = REPEAT_WITHIN_S,
    insist: bool = False,
    unless: Callable[[], bool] = lambda: False,
    when_failed: Callable[[ServerError], None] = lambda _: None,
    pause_s: Callable[[int], float] = _repeat_pause_s,
) -> T:
    """Make an idempotent call, and repeat it while its outcome is unknown.

    A refusal that follows an attempt of unknown outcome does not prove that nothing was done: then
    `OutcomeUnknown` is raised. Without such an attempt a refusal is raised at once; with `insist`,
    a transient one is followed by another attempt as well. `unless` ends the attempts early,
    `when_failed` is called before each repetition, and `pause_s` is the wait after the n-th.
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
            if not may_pass or unless() or time.monotonic() > deadline:
                if doubt is None or doubt is error:
                    raise
                raise doubt from error
            when_failed(error)
        await asyncio.sleep(pause_s(attempt))
