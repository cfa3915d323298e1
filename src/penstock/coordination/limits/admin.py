"""Settings of limits and what is left of them; editing and trying them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.coordination.access import Coordination
from penstock.coordination.limits.limit import EVERYONE, Limit, Reservation
from penstock.coordination.limits.penalty import PenaltyNote, find_note
from penstock.coordination.limits.rates import Rate, parse_rates
from penstock.coordination.limits.result import LimitResult, WindowStatus
from penstock.coordination.limits.setting import Algorithm, LimitSetting
from penstock.coordination.limits.waiters import count_callers
from penstock.errors import (
    CommandRefused,
    CoordinationError,
    DecodeError,
    ScriptFailed,
    Unreachable,
)
from penstock.redis.error_mapping import is_forbidden
from penstock.redis.node import Role

__all__ = [
    "LimitLine",
    "LimitView",
    "edit_limit",
    "list_limits",
    "release_limit",
    "reset_limit",
    "show_limit",
    "try_limit",
]


_ANY_MS = 1_000
_MAY_NOT_WRITE = "not allowed: to see what is left is a write, which this user may not do"


class LimitLine(msgspec.Struct, frozen=True, kw_only=True):
    """How one limit is set."""

    name: str
    rates: list[str]
    """As in `5/min`: what the other side allows."""
    algorithm: str
    burst: int | None
    buffer: float
    """How much of each rate is never used: a number, or a part below 1."""
    margin_s: float
    """By how much longer each period is taken."""
    edited: bool
    """Whether it was edited, which overrides the code."""


class LimitView(LimitLine, frozen=True, kw_only=True):
    """How one limit is set, and how it stands for one key."""

    key: str
    windows: list[WindowStatus]
    """What is left of each rate, without the buffer."""
    penalty_s: float
    """How long all calls are refused; 0 without a penalty."""
    penalty_until: str = ""
    """When that ends, by the clock of this process; empty without a penalty."""
    penalty_for: PenaltyNote | None = None
    """The answer of a provider that asked for it; None if code did."""
    waiting: int
    """Callers in line; one that has gone counts for some seconds more."""
    unreadable: str = ""
    """Why it cannot be said how the limit stands: what is stored is not of a limit, or the user of
    the server may only read."""


async def list_limits(app: Coordination) -> list[LimitLine]:
    """Every limit, by name. One round trip."""
    return [_line(name, setting) for name, setting in (await app.limits.all()).items()]


async def show_limit(app: Coordination, name: str, key: str = EVERYONE) -> LimitView:
    """Show one limit; CoordinationError if there is none of this name. Five round trips."""
    limit, windows, waiting, unreadable = await _known(app, name), [], 0, ""
    penalty_s, note = 0.0, None
    try:
        answer = await limit.peek(key=key)
        if answer.reason == "away":
            raise Unreachable("the server went away")  # that is not the same as nothing left
        windows = list(answer.windows)
        penalty_s = answer.retry_after_s if answer.reason == "penalty" else 0.0
        note = await find_note(limit, key, penalty_s) if penalty_s else None
        tickets = await app.redis.call("HVALS", limit.keys(key).tickets, role=Role.RATELIMIT)
        waiting = count_callers(tickets)
    except (CommandRefused, ScriptFailed) as error:
        unreadable = _MAY_NOT_WRITE if is_forbidden(error) else str(error)
    return LimitView(
        **msgspec.structs.asdict(_line(name, limit.setting)),
        key=key,
        windows=windows,
        penalty_s=penalty_s,
        penalty_until=_in(penalty_s) if penalty_s else "",
        penalty_for=note,
        waiting=waiting,
        unreadable=unreadable,
    )


async def edit_limit(
    app: Coordination,
    name: str,
    rates: Sequence[Rate],
    *,
    algorithm: Algorithm | None = None,
    burst: int | None = None,
    buffer: float | None = None,
    margin_s: float | None = None,
) -> tuple[LimitLine, bool]:
    """Set a limit for everybody: how it is now, and whether it was known before.

    What is not said stays as it is. SettingError for what cannot be. Two round trips.
    """
    wanted = parse_rates(rates)
    known = await app.limits.find(name)
    before = known or LimitSetting(wanted)
    chosen = algorithm or before.algorithm
    if burst is None and chosen == before.algorithm:
        burst = before.burst
    setting = LimitSetting(
        wanted,
        chosen,
        burst,
        before.buffer if buffer is None else buffer,
        before.margin_ms if margin_s is None else round(margin_s * 1000),
        edited=True,
    )
    await app.limits.edit(name, setting)
    return _line(name, setting), known is not None


async def release_limit(app: Coordination, name: str) -> bool:
    """Let code set a limit again; False if it did. CoordinationError if there is none of this name.

    What cannot be read as a limit is removed. Two round trips.
    """
    try:
        known = await app.limits.find(name)
    except DecodeError:
        return await app.limits.release(name)
    if known is None:
        raise _missing(name)
    return known.edited and await app.limits.release(name)


async def reset_limit(app: Coordination, name: str, key: str = EVERYONE) -> None:
    """Forget what was counted for a key, and its penalty, also if it cannot be read.

    CoordinationError if there is no limit of this name and nothing is counted for the key: until
    its next use, a limit that was released is known by its counts alone. Five round trips at most.
    """
    limit = Limit(app.redis, name, LimitSetting((Rate(1, _ANY_MS),)))  # only its keys count
    keys = limit.keys(key)
    is_known = await _is_registered(app, name)
    if not is_known and not await app.redis.call("EXISTS", keys.log, keys.state):
        raise _missing(name)
    await limit.reset(key=key)


async def try_limit(
    app: Coordination,
    name: str,
    *,
    key: str = EVERYONE,
    cost: int = 1,
    count: int = 1,
    use: bool = False,
) -> list[LimitResult]:
    """Ask a limit `count` times, and give all back in the end unless they are for `use`.

    CoordinationError if there is none of this name. One round trip for each, and for each that is
    given back; meanwhile others find less.
    """
    limit = await _known(app, name)
    answers: list[LimitResult] = []
    try:
        for _ in range(count):
            answers.append(await limit.try_acquire(cost, key=key))  # noqa: PERF401  some, on errors
    finally:
        if not use:
            for answer in reversed(answers):
                if answer.allowed:
                    await Reservation(limit, key, answer).refund()
    return answers


async def _known(app: Coordination, name: str) -> Limit:
    found = await app.limits.find(name)
    if found is None:
        raise _missing(name)
    # Should it be released at this moment, it is not we who edit it.
    return Limit(app.redis, name, replace(found, edited=False))


async def _is_registered(app: Coordination, name: str) -> bool:
    try:
        return await app.limits.find(name) is not None
    except DecodeError:
        return True


def _in(seconds: float) -> str:
    end = datetime.now(UTC) + timedelta(seconds=seconds)
    return end.isoformat(timespec="seconds").replace("+00:00", "Z")


def _missing(name: str) -> CoordinationError:
    return CoordinationError(f"there is no limit {name!r}")


def _line(name: str, setting: LimitSetting) -> LimitLine:
    return LimitLine(
        name=name,
        rates=list(map(str, setting.rates)),
        algorithm=setting.algorithm,
        burst=setting.burst,
        buffer=setting.buffer,
        margin_s=setting.margin_ms / 1000,
        edited=setting.edited,
    )
