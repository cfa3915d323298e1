"""Retry policies: whether a failed message is tried again, and when.

    RetryPolicy(max_attempts=3, backoff=Fixed(10))             three tries, ten seconds apart
    RetryPolicy(backoff=(5, 10, 30))                           a table; its last wait repeats
    RetryPolicy(backoff=Exponential(0.5, 300, jitter="full"))  doubling, spread over the whole wait
    RetryPolicy(give_up_on=(ValueError,))                      some errors never get better

A handler can decide for itself by raising or returning `Retry(after=30)` or `DeadLetter("why")`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final, Literal, cast

from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.times import LONGEST_WAIT, wait_s
from penstock.errors import SettingError

__all__ = [
    "MOST_ATTEMPTS",
    "Backoff",
    "DeadLetter",
    "DeathReason",
    "Decision",
    "Exponential",
    "Fixed",
    "GiveUp",
    "Retry",
    "RetryIn",
    "RetryPolicy",
    "parts_of",
]

MOST_ATTEMPTS: Final = 1_000_000_000
"""More than any policy may ask for: at one a second they take 31 years."""

# 2.0 ** 1024 overflows; any sane cap is reached long before this.
_LARGEST_EXPONENT = 64


class DeathReason(StrEnum):
    """Why a message is in the dead letters."""

    EXHAUSTED = "exhausted"
    """It failed as often as the policy allows."""
    FATAL = "fatal"
    """The policy does not try again after such an error."""
    REQUESTED = "requested"
    """The handler requested it, with `DeadLetter`."""
    CRASHED = "crashed"
    """Its last attempt ended with the process, without an error."""
    UNKNOWN = "unknown"
    """No worker knew its task for as long as it may wait for one."""
    UNDECODABLE = "undecodable"
    """Its payload cannot be read as the type that the handler asks for."""
    REFUSED = "refused"
    """It is not signed, or not as it was signed; see `BadSignature`."""


class Retry(Exception):
    """A handler's request to get the message again, raised or returned.

    `after` is seconds or a timedelta; None leaves the wait to the policy. The policy's limit of
    attempts still applies. `reason` becomes the message of the failure.
    """

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(after, reason)
        self.after, self.reason = after, reason
        self.after_s = None if after is None else wait_s(after, "Retry: after")

    def __str__(self) -> str:
        wait = "" if self.after_s is None else f"again in {self.after_s:g} s"
        return ": ".join(filter(None, (wait, self.reason))) or "again"


class DeadLetter(Exception):
    """A handler's request to make the message a dead letter, raised or returned."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Deliver the message again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make the message a dead letter. `detail` is the handler's reason."""

    reason: DeathReason
    detail: str = ""


Decision = RetryIn | GiveUp


def _is_number(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _check_seconds(name: str, value: object) -> None:
    if not _is_number(value) or not 0 <= cast("float", value) <= LONGEST_WAIT.total_seconds():
        raise SettingError(name, value, "a number of seconds from 0 to ten years")


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same wait every time."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds("Fixed.seconds", self.seconds)

    def wait_s(self, attempt: int) -> float:  # noqa: ARG002  whichever it was
        """Seconds to wait after the failed attempt number `attempt` (1, 2, …)."""
        return float(self.seconds)


@dataclass(frozen=True, slots=True)
class Exponential:
    """min(base_s·2^(attempt-1), max_s), lengthened by up to `jitter` of it, never beyond `max_s`.

    `jitter="full"` draws from the whole range down to 0 instead. That spreads best what failed
    together, also at the cap, at the price of some waits that are much shorter.
    """

    base_s: float = 1
    max_s: float = 60
    jitter: float | Literal["full"] = 0.25

    def __post_init__(self) -> None:
        _check_seconds("Exponential.base_s", self.base_s)
        _check_seconds("Exponential.max_s", self.max_s)
        if self.max_s < self.base_s:
            expected = f"at least base_s = {self.base_s}"
            raise SettingError("Exponential.max_s", self.max_s, expected)
        if self.jitter != "full" and not (_is_number(self.jitter) and 0 <= self.jitter <= 1):
            raise SettingError("Exponential.jitter", self.jitter, 'a number from 0 to 1, or "full"')

    def wait_s(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt number `attempt` (1, 2, …)."""
        exponent = min(max(attempt, 1) - 1, _LARGEST_EXPONENT)
        wait = min(self.base_s * 2.0**exponent, self.max_s)
        draw = random.random()  # noqa: S311  spreads load, keeps no secret
        if self.jitter == "full":
            return wait * draw
        return min(wait * (1 + self.jitter * draw), float(self.max_s))


Backoff = Exponential | Fixed | tuple[float, ...]
"""How long to wait; a tuple has one wait in seconds for each attempt, and its last one repeats."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed message is tried again. See the examples at the top of the module.

    `max_attempts` counts the first try too, and may be 1,000,000,000. `give_up_on` wins over
    `retry_on`. A wait that an error asks for (`retry_after`, or the Retry-After header of an HTTP
    response) applies if it is longer than the backoff, up to `max_retry_after_s`. An
    exception group is judged by the errors in it: one that is hopeless makes all of it so.
    """

    max_attempts: int = 5
    backoff: Backoff = Exponential()
    retry_on: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()
    max_retry_after_s: float = 3600

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            expected = f"a whole number from 1 to {MOST_ATTEMPTS:,}"
            raise SettingError("RetryPolicy.max_attempts", self.max_attempts, expected)
        _check_backoff(self.backoff)
        _check_kinds("RetryPolicy.retry_on", self.retry_on)
        _check_kinds("RetryPolicy.give_up_on", self.give_up_on)
        _check_seconds("RetryPolicy.max_retry_after_s", self.max_retry_after_s)

    def decide(self, error: Exception, attempt: int, *, now_ms: int | None = None) -> Decision:
        """Whether to try again after the failed attempt number `attempt` (1, 2, …).

        `now_ms` is what a Retry-After date is measured from; the machine's clock, if not given.
        """
        parts = list(parts_of(error))
        for part in parts:
            if isinstance(part, DeadLetter):
                return GiveUp(DeathReason.REQUESTED, part.reason)
        if self._is_fatal(error, parts):
            return GiveUp(DeathReason.FATAL)
        if attempt >= self.max_attempts:
            return GiveUp(DeathReason.EXHAUSTED)
        return RetryIn(max(self._wait_s(part, attempt, now_ms) for part in parts))

    def _is_fatal(self, error: Exception, parts: list[Exception]) -> bool:
        others = [part for part in (error, *parts) if not isinstance(part, Retry)]
        if any(isinstance(part, self.give_up_on) for part in others):
            return True
        if isinstance(error, self.retry_on):
            return False
        return not all(isinstance(part, (Retry, *self.retry_on)) for part in parts)

    def _wait_s(self, part: Exception, attempt: int, now_ms: int | None) -> float:
        if isinstance(part, Retry) and part.after_s is not None:
            return part.after_s
        asked = min(_asked_wait_s(part, now_ms), float(self.max_retry_after_s))
        return max(self.backoff_s(attempt), asked)

    def backoff_s(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt number `attempt` (1, 2, …), errors aside."""
        if isinstance(self.backoff, tuple):
            return float(self.backoff[min(max(attempt, 1), len(self.backoff)) - 1])
        return self.backoff.wait_s(attempt)


def parts_of(error: Exception) -> Iterator[Exception]:
    """Yield the error itself or, for a group, each error in it: what a TaskGroup raises is one."""
    waiting: list[Exception] = [error]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ExceptionGroup):
            waiting.extend(cast("ExceptionGroup[Exception]", part).exceptions)
        else:
            yield part


def _check_backoff(backoff: Any) -> None:
    if isinstance(backoff, tuple) and backoff:
        for seconds in cast("tuple[object, ...]", backoff):
            _check_seconds("RetryPolicy.backoff", seconds)
    elif not isinstance(backoff, Exponential | Fixed):
        expected = "Exponential(…), Fixed(…) or a tuple of at least one number of seconds"
        raise SettingError("RetryPolicy.backoff", cast("object", backoff), expected)


def _check_kinds(name: str, kinds: Any) -> None:
    each = cast("tuple[object, ...]", kinds if isinstance(kinds, tuple) else (None,))
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in each):
        raise SettingError(name, cast("object", kinds), "a tuple of subclasses of Exception")


def _asked_wait_s(error: Exception, now_ms: int | None) -> float:
    """Return the longest wait that the error asks for, or 0; invalid values are ignored."""
    waits = [0.0]
    for value in _retry_afters(error):
        with suppress(Exception):  # a foreign value of any kind: it must not decide the message
            waits.append(_as_wait_s(value, now_ms))
    return max(waits)


def _retry_afters(error: Exception) -> Iterator[object]:
    yield _attribute(error, "retry_after")
    # httpx and requests hang the headers on a response, aiohttp and urllib on the error itself.
    for holder in (_attribute(error, "response"), error):
        headers = _attribute(holder, "headers")
        for name in ("retry-after", "Retry-After"):  # the keys of a plain dict are case-sensitive
            with suppress(Exception):
                yield cast("Mapping[str, object]", headers)[name]


def _attribute(holder: object, name: str) -> Any:
    with suppress(Exception):  # a property may raise anything
        return getattr(holder, name, None)
    return None


def _as_wait_s(value: object, now_ms: int | None) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        with suppress(ValueError):
            return _as_wait_s(float(value), now_ms)
        return _until_s(parsedate_to_datetime(value), now_ms)
    return float(cast("float", value)) if _is_number(value) else 0.0


def _until_s(moment: datetime, now_ms: int | None) -> float:
    if moment.tzinfo is None:  # "-0000" is UTC without a statement of the local zone
        moment = moment.replace(tzinfo=UTC)
    now_ms = SYSTEM_CLOCK.wall_ms() if now_ms is None else now_ms
    return moment.timestamp() - now_ms / 1000
