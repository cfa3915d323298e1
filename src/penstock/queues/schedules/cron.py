"""Moments at which a schedule fires: a cron expression or a period.

    Cron("*/5 * * * *")                              every five minutes
    Cron("30 6 * * MON-FRI", tz="Europe/Berlin")     on weekdays at half past six, there
    Every(90)                                        at every multiple of 90 s since 1970
    Every(timedelta(hours=1), offset=120)            two minutes past every hour (UTC)

Both define a set of moments that depends on the value alone: all workers agree on it, and none has
to remember when it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from penstock.delivery.times import wait_s
from penstock.errors import ConfigError

__all__ = ["Cron", "Every", "When", "read_when"]

SHORTEST_MS: Final = 10
"""A period below this is a loop, not a schedule."""
_FIELDS: Final = 5
_LONGEST_TEXT: Final = 256
_MINUTE_MS: Final = 60_000
# Any day will do to see whether an expression ever fires; a fixed one gives every process the same
# answer.
_SOME_DAY_MS: Final = 1_767_225_600_000


@dataclass(frozen=True, slots=True)
class Cron:
    """The moments of a cron expression with five fields, as Debian's cron has them.

    minute (0-59) · hour (0-23) · day of the month (1-31, L the last, LW the last weekday) · month
    (1-12, JAN-DEC) · day of the week (0-7, SUN-SAT, 5L the last Friday, MON#2 the second Monday)

    Where clocks are put forward, a time of day that is left out comes at the end of the gap; where
    they are put back, a time of day that comes twice counts once. Expressions with a star for
    minute or hour follow the real hours instead. Raises `ConfigError`.
    """

    expression: str
    tz: str = "UTC"
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.tz))
        text = self.expression
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"cron expression {text!r}: expected text such as '*/5 * * * *'")
        if len(text) > _LONGEST_TEXT:
            raise ConfigError(f"cron expression {text[:60]!r}…: more than {_LONGEST_TEXT} letters")
        fields = text.split()
        if len(fields) != _FIELDS:
            hint = "; for seconds use Every(…)" if len(fields) == _FIELDS + 1 else ""
            raise ConfigError(
                f"cron expression {text!r}: {len(fields)} fields, expected {_FIELDS}: "
                f"minute, hour, day of the month, month, day of the week{hint}"
            )
        object.__setattr__(self, "expression", " ".join(fields))
        try:
            self.next_after(_SOME_DAY_MS)
        except CronSimError as error:
            reason = str(error).lower()
            raise ConfigError(f"cron expression {text!r}: {reason}") from None

    @property
    def text(self) -> str:
        """How it is stored; `read_when` reads it."""
        return f"cron {self.tz} {self.expression}"

    def next_after(self, ms: int) -> int:
        """Return the first moment later than `ms`, both in epoch ms."""
        for tick in self._after(ms):
            return tick
        raise ConfigError(f"cron expression {self.expression!r}: there is no such day")

    def between(self, after_ms: int, to_ms: int, most: int) -> list[int]:
        """Return the moments after `after_ms`, up to `to_ms`, in order: the last `most` of them."""
        if most < 1 or to_ms <= after_ms:
            return []
        # Walking a year minute by minute takes seconds: try ever longer spans before the end.
        span_ms = _MINUTE_MS
        while True:
            start_ms = max(after_ms, to_ms - span_ms)
            found: deque[int] = deque(maxlen=most)
            for tick in self._after(start_ms):
                if tick > to_ms:
                    break
                found.append(tick)
            if len(found) == most or start_ms == after_ms:
                return list(found)
            span_ms *= 2

    def _after(self, ms: int) -> Iterator[int]:
        start = datetime.fromtimestamp(ms // 1000, self._zone)
        walked = (round(moment.timestamp()) * 1000 for moment in CronSim(self.expression, start))
        latest = ms
        for tick in walked:
            # In the hour that comes twice, the walk may begin with moments of the first time.
            if tick > latest:
                latest = tick
                yield tick


@dataclass(frozen=True, slots=True)
class Every:
    """The multiples of a period since 1970 began (UTC), moved by `offset`.

    Both are seconds or a timedelta, and are kept in whole ms: `period_ms` and `offset_ms`. Raises
    `ConfigError`.
    """

    period: float | timedelta
    offset: float | timedelta = 0
    period_ms: int = field(init=False, repr=False)
    offset_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        period_ms, offset_ms = _ms(self.period, "every"), _ms(self.offset, "offset")
        if period_ms < SHORTEST_MS:
            raise ConfigError(f"every = {self.period!r}: expected {SHORTEST_MS / 1000} s or more")
        if offset_ms >= period_ms or _seconds(self.offset) < 0:
            raise ConfigError(f"offset = {self.offset!r}: expected 0 or more, less than the period")
        object.__setattr__(self, "period_ms", period_ms)
        object.__setattr__(self, "offset_ms", offset_ms)
        object.__setattr__(self, "period", period_ms / 1000)  # equal periods are equal values
        object.__setattr__(self, "offset", offset_ms / 1000)

    @property
    def text(self) -> str:
        """How it is stored; `read_when` reads it."""
        return f"every {self.period_ms} {self.offset_ms}"

    def next_after(self, ms: int) -> int:
        """Return the first moment later than `ms`, both in epoch ms."""
        return ms + self.period_ms - (ms - self.offset_ms) % self.period_ms

    def between(self, after_ms: int, to_ms: int, most: int) -> list[int]:
        """Return the moments after `after_ms`, up to `to_ms`, in order: the last `most` of them."""
        last = self.next_after(to_ms) - self.period_ms
        first = max(self.next_after(after_ms), last - (most - 1) * self.period_ms)
        return list(range(first, last + 1, self.period_ms))


When = Cron | Every


def read_when(text: str) -> When | None:
    """Decode a stored `text`; None if a later version wrote it."""
    kind, _, rest = text.partition(" ")
    try:
        if kind == "cron":
            tz, _, expression = rest.partition(" ")
            return Cron(expression, tz)
        if kind == "every":
            period_ms, offset_ms = map(int, rest.split())
            return Every(period_ms / 1000, offset_ms / 1000)
    except (ConfigError, ValueError, OverflowError):
        pass
    return None


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    # Invalid names fail in many ways: a folder, a path, not even text.
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise ConfigError(
            f"time zone {name!r}: unknown here; expected a name such as 'Europe/Berlin' "
            "(without a system database of time zones, install the package tzdata)"
        ) from None


def _seconds(span: float | timedelta) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else span


def _ms(span: float | timedelta, what: str) -> int:
    try:
        return round(wait_s(span, what) * 1000)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from None
