"""Calls of `acquire_limit` for one limit; plain ones are prepared once."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Final

from penstock.coordination.limits.keys import LimitKeys
from penstock.coordination.limits.registry import LimitRegistry
from penstock.coordination.limits.result import LimitResult
from penstock.coordination.limits.scripts import (
    NO_PERMITS,
    REASONS,
    WINDOWS_FROM,
    LimitScripts,
    PermitUse,
)
from penstock.coordination.limits.setting import LimitSetting
from penstock.errors import SettingError
from penstock.redis.client import Client
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.node import Role
from penstock.redis.prepared_call import Prepared, SharedLink
from penstock.redis.wire import Argument

__all__ = ["AcquireRequest", "GroupResult", "LimitClient", "check_priority"]

_HIGHEST_PRIORITY: Final = 1000
_MOST_KNOWN: Final = 1024
_LONGEST_PACE_S: Final = 0.01
# Of a window: a permit that is taken later by this part is lost for as long.
_PACE_PART: Final = 0.005
# Where gcra soon loses what is not taken in time, a process asks for it earlier. Its period is
# extended by as much, so that permits that are used late bring no period over the limit.
_LONGEST_EARLY_S: Final = 0.03
_EARLY_PART: Final = 0.02


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A request for permits: see `acquire_limit.lua`."""

    key: str
    cost: int
    priority: int = 0
    fewest: int | None = None
    share: float = 1
    hold_ms: int = 0
    returned: PermitUse = NO_PERMITS
    ticket: str = ""
    waiting: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What was granted to a group of callers, and when the next of them should ask."""

    result: LimitResult
    wait_s: float
    """Until there are permits for the next caller of the group."""
    pause_s: float
    """Until it should ask again, to be next when those ahead have been served."""
    ahead: int
    """Tickets of other processes that come first."""
    waits_s: list[float]
    """For each depth that was asked for."""
    ready_s: list[float]
    """For each caller that was granted permits early, until it may use them."""


class LimitClient:
    """Keeps the setting of a limit up to date, and asks the server for permits."""

    def __init__(self, client: Client, name: str, declared: LimitSetting) -> None:
        self.registry = LimitRegistry(client)
        self._scripts = LimitScripts.of(client)
        self._client, self._name, self._declared = client, name, declared
        settings = client.settings.limits
        self._refresh_s, self._buckets = settings.refresh_s, settings.buckets
        self._known: LimitSetting | None = None
        self._rates = declared.used_rates
        self._arguments: tuple[Argument, ...] = ()
        self._fresh_until = 0.0
        self._keys: dict[str, LimitKeys] = {}
        # Plain requests, by key, cost and priority: each is the same every time.
        self._plain: dict[tuple[str, int, int], Prepared] = {}
        self._links: dict[int | None, SharedLink] = {}

    @property
    def setting(self) -> LimitSetting:
        """The setting as this process last read it."""
        return self._known or self._declared

    @property
    def most(self) -> int:
        """The largest cost that can be granted."""
        return min(map(self.setting.most_of, self._rates))

    @property
    def pace_s(self) -> float:
        """How long a process waits for more permits to accumulate before it asks again.

        Permits may stay unused for so long with hardly any loss of the rate.
        """
        setting = self.setting
        if setting.algorithm != "gcra":
            return min(_LONGEST_PACE_S, setting.rates[0].period_s * _PACE_PART)
        return min(_LONGEST_PACE_S, (self._slack_s + self.early_s) / 3)

    @property
    def early_s(self) -> float:
        """How long before permits are free a process may be granted them, to use them then."""
        if self.setting.algorithm != "gcra":
            return 0.0
        most_s = self.setting.rates[0].period_s * _EARLY_PART
        return min(most_s, max(0.0, _LONGEST_EARLY_S - self._slack_s))

    @property
    def _slack_s(self) -> float:
        return min(map(self.setting.slack_s, self._rates))

    def keys(self, key: str) -> LimitKeys:
        known = self._keys.get(key)
        if known is None:
            known = LimitKeys.of(self._client.keys, self._name, key)
            if len(self._keys) < _MOST_KNOWN:
                self._keys[key] = known
        return known

    async def current(self) -> LimitSetting:
        """The setting as it is stored now."""
        self.forget()
        await self.refresh()
        return self.setting

    def forget(self) -> None:
        """Read the setting again before the next request."""
        self._fresh_until = 0.0

    async def refresh(self) -> tuple[Argument, ...]:
        """Read the setting unless it is fresh; returned as the scripts take it."""
        if time.monotonic() < self._fresh_until:
            return self._arguments
        stored = await self.registry.find(self._name) if self._known is not None else None
        if stored is None:
            stored = await self.registry.declare(self._name, self._declared)
        if stored != self._known or not self._arguments:
            self._known, self._rates = stored, stored.used_rates
            self._arguments = stored.arguments(self._buckets)
            self._plain.clear()
        self._fresh_until = time.monotonic() + self._refresh_s
        return self._arguments

    async def plain(self, key: str, cost: int, priority: int) -> LimitResult:
        """Ask for permits without waiting for them."""
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        call = self._plain.get((key, cost, priority))
        if call is None:
            call = self._call(AcquireRequest(key, cost, priority))
            if len(self._plain) < _MOST_KNOWN:
                self._plain[key, cost, priority] = call
        return self._result(await call.send(), cost)

    async def ask(self, request: AcquireRequest) -> LimitResult:
        """Ask the server."""
        await self.refresh()
        return self._result(await self._call(request).send(), request.cost)

    async def ask_for_group(self, request: AcquireRequest, depths: int) -> GroupResult:
        """Ask for callers that wait, and for the waits of so many depths among them."""
        await self.refresh()
        reply = await self._call(request).send()
        windows_to = WINDOWS_FROM + 2 * len(self._rates)
        pause_s, *rest = map(_seconds, reply[windows_to:])
        result = self._result(reply[:windows_to], request.cost)
        waits_s, ready_s = rest[:depths], rest[depths:]
        return GroupResult(result, _seconds(reply[1]), pause_s, reply[5], waits_s, ready_s)

    def _call(self, request: AcquireRequest) -> Prepared:
        check_priority(request.priority)
        keys = self.keys(request.key)
        return self._scripts.acquire_limit(
            link=self._link(keys),
            keys=keys,
            algorithm=self.setting.algorithm,
            wanted=request.cost,
            fewest=request.cost if request.fewest is None else request.fewest,
            share=request.share,
            hold_ms=request.hold_ms,
            ticket=request.ticket,
            priority=request.priority,
            waiting=request.waiting,
            returned=request.returned,
            setting=self._arguments,
        )

    def _link(self, keys: LimitKeys) -> SharedLink:
        slot = key_slot(keys.state) if self._client.keys.cluster else None
        link = self._links.get(slot)
        if link is None:
            link = self._links[slot] = SharedLink(self._client, role=Role.RATELIMIT, slot=slot)
        return link

    def _result(self, reply: list[Any], cost: int) -> LimitResult:
        granted, wait_ms, logged_ms, permit, why = reply[:5]
        return LimitResult(
            granted > 0 or (not cost and not why),
            granted,
            _seconds(wait_ms) if not granted else 0.0,
            REASONS[int(why)],
            self._rates,
            reply[WINDOWS_FROM:],
            (permit, logged_ms),
        )


def _seconds(ms: int) -> float:
    return ms / 1000 if ms >= 0 else math.inf


def check_priority(priority: int) -> None:
    if type(priority) is not int or abs(priority) > _HIGHEST_PRIORITY:
        raise SettingError("priority", priority, f"a whole number, ±{_HIGHEST_PRIORITY} at most")
