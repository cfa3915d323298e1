"""Trying again, only where that is safe, and never in a hurry."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import OutcomeUnknown, ServerError
from penstock.settings import RetrySettings

__all__ = ["backoff_s", "with_retry"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

JITTER = 0.25
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
