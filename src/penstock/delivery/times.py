"""What callers say about time, in the forms that are stored: epoch milliseconds and stream ids."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.errors.base import shown

__all__ = [
    "EARLIEST",
    "LATEST",
    "LONGEST_WAIT",
    "due_ms",
    "iso_time",
    "resolve_position",
    "wait_s",
]

LONGEST_WAIT: Final = timedelta(days=3652)
"""Ten years. Beyond that, milliseconds were taken for seconds."""

EARLIEST: Final = "0-0"
"""The position before the first entry."""
LATEST: Final = "$"
"""The position after the last entry there is when the server reads it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_S = LONGEST_WAIT.total_seconds()
_MILLISECOND = timedelta(milliseconds=1)
_LAST_MS = 253_402_300_799_999
_LARGEST_PART = 2**64 - 1
_ID = re.compile(r"(?:[0-9]{1,4}-(?=[0-9]{9,20}-))?([0-9]{1,20})(?:-([0-9]{1,20}))?")
_NAMED = {"0": EARLIEST, "earliest": EARLIEST, LATEST: LATEST, "latest": LATEST}


def wait_s(wait: float | timedelta, what: str = "delay") -> float:
    """Return a wait in seconds, at least 0. ValueError if it has no end or exceeds ten years.

    `what` names the argument in the error's words.
    """
    if isinstance(wait, timedelta):
        seconds = wait.total_seconds()
    else:
        seconds = _number(wait, what, "seconds or a timedelta")
    if seconds > _LONGEST_S:
        raise ValueError(f"{what} = {shown(wait)}: more than ten years; a number counts seconds")
    return float(seconds) if seconds > 0 else 0.0


def due_ms(delay: float | timedelta | None, at: datetime | float | None, now_ms: int) -> int | None:
    """Return when to deliver, in epoch milliseconds, or None if neither argument asks to wait.

    `delay` is seconds or a timedelta from now, `at` an aware datetime or epoch seconds. What has
    passed already is due now; parts of a millisecond count as a whole one, so nothing comes early.
    Raises ValueError for both at once, a naive datetime, no finite number, or more than ten years.
    """
    if delay is not None:
        if at is not None:
            raise ValueError("delay and at exclude each other: give one of them")
        return now_ms + _whole_ms(wait_s(delay))
    if at is None:
        return None
    if isinstance(at, datetime):
        moment_ms = -(-_since_epoch(at, f"at = {at!r}") // _MILLISECOND)  # rounded up
    else:
        seconds = _number(at, "at", "an aware datetime or epoch seconds")
        if seconds > now_ms / 1000 + _LONGEST_S:  # before it is multiplied to infinity
            raise ValueError(
                f"at = {shown(at)}: more than ten years away; a number is epoch seconds"
            )
        moment_ms = _whole_ms(max(seconds, 0))
    if moment_ms - now_ms > LONGEST_WAIT // _MILLISECOND:
        raise ValueError(f"at = {at!r}: more than ten years away")
    return max(moment_ms, now_ms)


def iso_time(ms: int) -> str:
    """Spell epoch milliseconds as scripts and Java's `Instant` do: `2026-07-01T08:00:00.123Z`.

    A time before 1970 or after the year 9999, as others may send, becomes the nearest one.
    """
    ms = min(max(ms, 0), _LAST_MS)
    moment = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def resolve_position(position: str | datetime) -> str:
    """Return the stream id after which reading starts: `<ms>-<sequence>`, or "$" for the end.

    "0", "earliest"          before the first entry
    "$", "latest"            after the last entry there is
    "4-1700000000000-3"      after this message and what was stored with it in other partitions
    "1700000000000-3"        after this entry, as the server has it; without "-3", after -0
    an aware datetime        before the first entry of that millisecond or later
    "2026-07-01T08:00:00Z"   the same; ISO 8601 with Z or an offset

    Digits alone are an entry id, never a date.
    """
    if isinstance(position, datetime):
        return _id_before(position, f"position {position!r}")
    if not isinstance(position, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"position {position!r}: expected {_POSITIONS}")
    if named := _NAMED.get(position):
        return named
    if found := _ID.fullmatch(position):
        return _entry_id(position, int(found[1]), int(found[2] or 0))
    try:
        moment = datetime.fromisoformat(position)
    except ValueError:
        raise ValueError(f"position {position[:60]!r}: expected {_POSITIONS}") from None
    return _id_before(moment, f"position {position!r}")


_POSITIONS = (
    '"earliest" or "0", "latest" or "$", a message id such as "0-1700000000000-0", an aware '
    'datetime, or a time such as "2026-07-01T08:00:00Z"'
)


def _number(value: object, what: str, expected: str) -> float:
    """Return a finite number: an int stays one, since a very large one is no float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} = {shown(value)}: expected {expected}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{what} = {value!r}: expected a finite number")
    return value


def _whole_ms(seconds: float) -> int:
    # Rounded first: 2.007 * 1000 is a little more than 2007, which would be one too many.
    return math.ceil(round(seconds * 1000, 3))


def _since_epoch(moment: datetime, what: str) -> timedelta:
    if moment.utcoffset() is None:
        raise ValueError(
            f"{what}: no time zone, so it means a different moment on each machine; "
            "add one, as in datetime.now(UTC) or 2026-07-01T08:00:00Z"
        )
    return moment - _EPOCH


def _entry_id(position: str, ms: int, sequence: int) -> str:
    if max(ms, sequence) > _LARGEST_PART:
        raise ValueError(f"position {position!r}: the parts of an entry id have 64 bits")
    return f"{ms}-{sequence}"


def _id_before(moment: datetime, what: str) -> str:
    """Return the largest id that an entry can have that is older than the moment's millisecond."""
    ms = _since_epoch(moment, what) // _MILLISECOND
    return f"{ms - 1}-{_LARGEST_PART}" if ms > 0 else EARLIEST
