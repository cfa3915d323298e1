"""Rate limits in HTTP headers: those of a provider's replies, and those of our own.

Reads `Retry-After`, the IETF's `RateLimit` and `RateLimit-Policy` with their earlier drafts, and
`X-RateLimit-Limit`, `-Remaining`, `-Used` and `-Reset`. What cannot be parsed is ignored.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from penstock.coordination.limits.rates import MOST, Rate
from penstock.coordination.limits.result import LimitResult, Usage, WindowStatus

__all__ = ["read_retry_after", "read_usages", "to_headers"]

_LONGEST_S: Final = 366 * 86_400.0
_EPOCH_FROM_S: Final = 1e9  # 31 years: too long for a wait, so it is a time of day
_EPOCH_FROM_MS: Final = 1e11
_LONGEST_TEXT: Final = 8_192

_read_number = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{0,15})?)\s*").fullmatch

# The structured fields of RFC 9651, as far as limits use them.
_VALUE: Final = r'"(?:[^"\\]|\\.)*"|:[A-Za-z0-9+/=]*:|\?[01]|[^\s"\\;,=]+'
_ITEM: Final = re.compile(
    rf"[ \t]*({_VALUE})((?:[ \t]*;[ \t]*[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*)"
)
_PARAMETER: Final = re.compile(rf";[ \t]*([a-z*][a-z0-9_.*-]*)(?:=({_VALUE}))?")
_PAIR: Final = re.compile(r"[ \t]*(limit|remaining|reset)=([0-9]{1,15})[ \t]*(?:,|$)")
_COMMA: Final = re.compile(r"[ \t]*(,|$)")

Item = tuple[str, dict[str, str]]
"""A bare item and its parameters."""


def read_retry_after(headers: Mapping[str, str], *, now_s: float | None = None) -> float | None:
    """Seconds until the provider wants to be asked again; None if it does not say.

    It may be a number or a date, which is held against the provider's own `Date`, if there is one.
    `now_s` is the time for those without, in seconds since 1970.
    """
    fields = _lowered(headers)
    given = fields.get("retry-after")
    return None if given is None else _wait_s(given, _now_s(fields, now_s))


def read_usages(
    headers: Mapping[str, str], known: Iterable[Rate] = (), *, now_s: float | None = None
) -> list[Usage]:
    """Return the windows in a response; what the provider leaves out comes from `known`.

    `X-RateLimit-*` do not say for how long their limit holds: it is the period of the known rate
    with the same limit, or of the only known rate. Where even that is unclear, it is None.
    """
    fields = _lowered(headers)
    found = _standard(fields) or _draft(fields)
    if not found:
        found = _customary(fields, _now_s(fields, now_s))
    rates = list(known)
    return [_with_period(usage, rates) for usage in found]


def to_headers(answer: LimitResult, *, now_s: float | None = None) -> dict[str, str]:
    """Word an answer as headers: every window, the tightest one, and when to come back if refused.

    `X-RateLimit-Reset` is a time of day in seconds since 1970, as most read it; the others have
    seconds from now.
    """
    windows = answer.windows
    headers: dict[str, str] = {}
    if windows:
        now_s = time.time() if now_s is None else now_s
        tightest = min(windows, key=lambda window: (window.remaining, -window.reset_s))
        headers = {
            "RateLimit-Policy": ", ".join(map(_policy_of, windows)),
            "RateLimit": ", ".join(map(_state_of, windows)),
            "X-RateLimit-Limit": str(tightest.limit),
            "X-RateLimit-Remaining": str(tightest.remaining),
            "X-RateLimit-Reset": str(math.ceil(now_s + tightest.reset_s)),
        }
    if not answer.allowed and math.isfinite(answer.retry_after_s):
        headers["Retry-After"] = str(max(1, math.ceil(answer.retry_after_s)))
    return headers


def _policy_of(window: WindowStatus) -> str:
    return f'"{_name_of(window)}";q={window.limit};w={math.ceil(window.period_s)}'


def _state_of(window: WindowStatus) -> str:
    return f'"{_name_of(window)}";r={window.remaining};t={math.ceil(window.reset_s)}'


def _name_of(window: WindowStatus) -> str:
    return str(Rate(window.limit, round(window.period_s * 1000)))


# reading


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if len(value) <= _LONGEST_TEXT}


def _now_s(fields: Mapping[str, str], now_s: float | None) -> float:
    """Return the provider's time of day: with it, no clock needs to be right."""
    date_s = _date_s(fields.get("date", ""))
    if date_s is not None:
        return date_s
    return time.time() if now_s is None else now_s


def _date_s(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    found = _read_number(text or "")
    return float(found[1]) if found else None


def _count(text: str | None) -> int | None:
    """Return a whole number that a limit can have."""
    number = _number(text)
    return None if number is None or number > MOST else int(number)


def _seconds(text: str | None) -> float | None:
    number = _number(text)
    return None if number is None else min(number, _LONGEST_S)


def _wait_s(text: str, now_s: float) -> float | None:
    """Read seconds from now, a time of day in seconds or ms since 1970, or a date."""
    number = _number(text)
    if number is None:
        number = _date_s(text)
        if number is None:
            return None
    elif number < _EPOCH_FROM_S:
        return min(number, _LONGEST_S)
    elif number >= _EPOCH_FROM_MS:
        number /= 1000
    return min(max(0.0, number - now_s), _LONGEST_S)


def _items(text: str) -> list[Item]:
    """Read a list of items with parameters; one fault anywhere, and it is empty."""
    items: list[Item] = []
    place = 0
    while found := _ITEM.match(text, place):
        parameters = {key: _bare(value) for key, value in _PARAMETER.findall(found[2])}
        items.append((_bare(found[1]), parameters))
        comma = _COMMA.match(text, found.end())
        if not comma:
            return []
        place = comma.end()
        if not comma[1]:
            return items
    return []


def _bare(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _standard(fields: Mapping[str, str]) -> list[Usage]:
    """Read `RateLimit-Policy: "day";q=100;w=86400` and `RateLimit: "day";r=50;t=30`."""
    usages: dict[str, Usage] = {}
    for name, parameters in _items(fields.get("ratelimit-policy", "")):
        if parameters.get("qu", "requests") != "requests":
            continue  # bytes, or requests at a time
        # Before they had names, policies were just their numbers: `100;w=60`.
        quota = _count(parameters.get("q")) if "q" in parameters else _count(name)
        usages[name] = Usage(quota, _seconds(parameters.get("w")) or None)
    has_counts = False
    for name, parameters in _items(fields.get("ratelimit", "")):
        usage = usages.get(name)
        remaining = _count(parameters.get("r"))
        if remaining is None or (usage is None and usages):
            continue
        has_counts = True
        reset_s = _seconds(parameters.get("t"))
        usages[name] = replace(usage or Usage(None, None), remaining=remaining, reset_s=reset_s)
    return [usage for usage in usages.values() if usage != Usage(None, None)] if has_counts else []


def _draft(fields: Mapping[str, str]) -> list[Usage]:
    """Read `RateLimit: limit=100, remaining=50, reset=30`, or three headers of those names."""
    pairs = dict(_PAIR.findall(fields.get("ratelimit", "")))
    if not pairs:
        names = ("limit", "remaining", "reset")
        pairs = {name: fields[key] for name in names if (key := f"ratelimit-{name}") in fields}
    limit, period_s = _quota(pairs.get("limit", ""))
    remaining = _count(pairs.get("remaining"))
    if remaining is None:
        return []
    if period_s is None:
        policies = _items(fields.get("ratelimit-policy", ""))
        periods = [_seconds(own.get("w")) for name, own in policies if _count(name) == limit]
        period_s = periods[0] if periods else None
    reset_s = _seconds(pairs.get("reset"))
    return [Usage(limit, period_s, remaining=remaining, reset_s=reset_s)]


def _customary(fields: Mapping[str, str], now_s: float) -> list[Usage]:
    """Read `X-RateLimit-Limit: 100`, `-Remaining: 50`, `-Reset: 1700000000` or seconds."""
    entry = {
        name: value
        for name in ("limit", "remaining", "used", "reset")
        for prefix in ("x-ratelimit-", "x-rate-limit-")
        if (value := fields.get(prefix + name)) is not None
    }
    limit, period_s = _quota(entry.get("limit", ""))
    used, remaining = _count(entry.get("used")), _count(entry.get("remaining"))
    if used is None and remaining is None:
        return []
    reset_s = _wait_s(entry["reset"], now_s) if "reset" in entry else None
    return [Usage(limit, period_s, used=used, remaining=remaining, reset_s=reset_s)]


def _quota(text: str) -> tuple[int | None, float | None]:
    """Read `100`, or `100, 100;w=60` with the policy behind it."""
    items = _items(text)
    if not items:
        return None, None
    limit = _count(items[0][0])
    periods = [_seconds(own.get("w")) for name, own in items if _count(name) == limit]
    return limit, next((period for period in periods if period), None)


def _with_period(usage: Usage, rates: Sequence[Rate]) -> Usage:
    """Fill in what the one rate says that can be meant."""
    if usage.period_s is not None:
        return usage
    fitting = [rate for rate in rates if rate.limit == usage.limit]
    if not fitting and len(rates) == 1:
        fitting = list(rates)
    if len(fitting) != 1:
        return usage
    limit = fitting[0].limit if usage.limit is None else usage.limit
    return replace(usage, limit=limit, period_s=fitting[0].period_s)
