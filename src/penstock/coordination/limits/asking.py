"""Questions to the server about a limit, the commonest in the fewest steps."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from penstock.coordination.limits.answer import Answer, Reason
from penstock.coordination.limits.book import LimitBook
from penstock.coordination.limits.setting import LimitSetting
from penstock.errors import (
    ClusterDown,
    ReadOnlyReplica,
    Redirected,
    ScriptMissing,
    ServerError,
    SettingError,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.keys.coordination import LimitKeys
from penstock.redis.keys.slots import key_slot
from penstock.redis.node import Role
from penstock.redis.wire import Argument, Wire, pack

__all__ = ["NOTHING_BACK", "Asker", "GroupAnswer", "Question", "check_priority"]

NOTHING_BACK: Final[tuple[Argument, ...]] = ("", 0, 0, 0)
_HIGHEST_PRIORITY: Final = 1000
_MOST_KNOWN: Final = 1024
_REASONS: Final[tuple[Reason, ...]] = ("", "limit", "line", "penalty")
_WINDOWS_FROM: Final = 6
_LONGEST_PACE_S: Final = 0.01
# Of a window: a permit that is taken so much later is missing for so long.
_PACE_PART: Final = 0.005
# Where gcra soon loses what is not taken in time, a process asks for it before. By as much its
# period is longer then, so that permits that are used late bring no period over the limit.
_LONGEST_EARLY_S: Final = 0.03
_EARLY_PART: Final = 0.02
_NOTHING_DONE: Final = (ClusterDown, ReadOnlyReplica, Redirected, ScriptMissing, Unreachable)


@dataclass(frozen=True, slots=True)
class Question:
    """What a caller wants of a limit: see `acquire_limit.lua`."""

    key: str
    cost: int
    priority: int = 0
    fewest: int | None = None
    share: float = 1
    hold_ms: int = 0
    given_back: Sequence[Argument] = NOTHING_BACK
    ticket: str = ""
    waiting: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What was granted to a group of callers, and when the next of them should ask."""

    answer: Answer
    wait_s: float
    """Until there are permits for the next caller of the group."""
    pause_s: float
    """Until it should ask again, to be next when those before it have gone."""
    ahead: int
    """Tickets of other processes that are before."""
    waits_s: list[float]
    """For each depth of the line that was asked for."""
    ready_s: list[float]
    """For each caller that was granted permits ahead, until it may use them."""


class Asker:
    """Knows how a limit is set, and asks the server about it."""

    def __init__(self, client: Client, name: str, declared: LimitSetting) -> None:
        self.book = LimitBook(client)
        self._client, self._name, self._declared = client, name, declared
        settings = client.settings.limits
        self._refresh_s, self._buckets = settings.refresh_s, settings.buckets
        self._known: LimitSetting | None = None
        self._rates = declared.used_rates
        self._arguments: tuple[Argument, ...] = ()
        self._fresh_until = 0.0
        self._keys: dict[str, LimitKeys] = {}
        # Whole commands, in the protocol's form: a plain question is the same every time.
        self._packed: dict[tuple[str, int, int], bytes] = {}
        self._packed_for: object = None
        self._wires: dict[int | None, Wire] = {}

    @property
    def setting(self) -> LimitSetting:
        """How it is set, as far as this process knows."""
        return self._known or self._declared

    @property
    def most(self) -> int:
        """The largest cost that can be granted."""
        return min(map(self.setting.most_of, self._rates))

    @property
    def pace_s(self) -> float:
        """How long permits may lie unused while callers wait, with hardly any loss of the rate.

        So long a process waits for more of them before it asks again.
        """
        setting = self.setting
        if setting.algorithm != "gcra":
            return min(_LONGEST_PACE_S, setting.rates[0].period_s * _PACE_PART)
        return min(_LONGEST_PACE_S, (self._slack_s + self.early_s) / 3)

    @property
    def early_s(self) -> float:
        """How long before permits are there a process may be granted them, to use them then."""
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
            known = self._client.keys.limit(self._name, key)
            if len(self._keys) < _MOST_KNOWN:
                self._keys[key] = known
        return known

    async def current(self) -> LimitSetting:
        """How it is set now."""
        self.forget()
        await self.refresh()
        return self.setting

    def forget(self) -> None:
        """Look up how the limit is set before the next question."""
        self._fresh_until = 0.0

    async def refresh(self) -> tuple[Argument, ...]:
        """Learn how the limit is set now, unless we know; as the scripts take it."""
        if time.monotonic() < self._fresh_until:
            return self._arguments
        found = await self.book.find(self._name) if self._known is not None else None
        if found is None:
            found = await self.book.declare(self._name, self._declared)
        if found != self._known or not self._arguments:
            self._known, self._rates = found, found.used_rates
            self._arguments = found.arguments(self._buckets)
            self._packed.clear()
        self._fresh_until = time.monotonic() + self._refresh_s
        return self._arguments

    async def plain(self, key: str, cost: int, priority: int) -> Answer:
        """Ask for permits without waiting for them."""
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        slot = key_slot(self.keys(key).state) if self._client.keys.cluster else None
        wire = self._wires.get(slot)
        if wire is None or not wire.alive or wire.behind:
            answer = await self.ask(Question(key, cost, priority))
            if len(self._wires) < _MOST_KNOWN:
                with suppress(ServerError):  # the permits are taken: that is what the caller asks
                    self._wires[slot] = await self._client.wire(Role.RATELIMIT, slot=slot)
            return answer
        reply: Any = (await wire.send_packed((self._command(key, cost, priority),)))[0]
        if isinstance(reply, ServerError):
            if not isinstance(reply, _NOTHING_DONE):
                raise reply
            self._wires.pop(slot, None)
            return await self.ask(Question(key, cost, priority))
        return self._answer(reply, cost)

    async def ask(self, question: Question) -> Answer:
        """Ask the server."""
        return self._answer(await self._reply_to(question), question.cost)

    async def ask_for_group(self, question: Question, depths: int) -> GroupAnswer:
        """Ask for callers that wait, and for the waits of so many depths of their line."""
        reply = await self._reply_to(question)
        windows_to = _WINDOWS_FROM + 2 * len(self._rates)
        pause_s, *rest = map(_seconds, reply[windows_to:])
        answer = self._answer(reply[:windows_to], question.cost)
        waits_s, ready_s = rest[:depths], rest[depths:]
        return GroupAnswer(answer, _seconds(reply[1]), pause_s, reply[5], waits_s, ready_s)

    async def _reply_to(self, question: Question) -> list[Any]:
        await self.refresh()
        check_priority(question.priority)
        return await self._client.scripts.acquire_limit(
            keys=self.keys(question.key), **self._words(question)
        )

    def _answer(self, reply: list[Any], cost: int) -> Answer:
        granted, wait_ms, logged_ms, permit, why = reply[:5]
        return Answer(
            granted > 0 or (not cost and not why),
            granted,
            _seconds(wait_ms) if not granted else 0.0,
            _REASONS[int(why)],
            self._rates,
            reply[_WINDOWS_FROM:],
            (permit, logged_ms),
        )

    def _words(self, question: Question) -> dict[str, Any]:
        return {
            "algorithm": self.setting.algorithm,
            "wanted": question.cost,
            "fewest": question.cost if question.fewest is None else question.fewest,
            "share": question.share,
            "hold_ms": question.hold_ms,
            "ticket": question.ticket,
            "priority": question.priority,
            "waiting": question.waiting,
            "given_back": question.given_back,
            "setting": self._arguments,
        }

    def _command(self, key: str, cost: int, priority: int) -> bytes:
        script, version = self._client.scripts.load("acquire_limit"), self._client.server_version
        if self._packed_for != (script, version):
            self._packed.clear()
            self._packed_for = (script, version)
        packed = self._packed.get((key, cost, priority))
        if packed is None:
            check_priority(priority)
            keys, words = self.keys(key), self._words(Question(key, cost, priority))
            setting, given_back = words.pop("setting"), words.pop("given_back")
            packed = pack(
                script.by_digest(
                    version,
                    (keys.log, keys.state, keys.waiting, keys.tickets),
                    (*words.values(), *given_back, *setting),
                )
            )
            if len(self._packed) < _MOST_KNOWN:
                self._packed[key, cost, priority] = packed
        return packed


def _seconds(ms: int) -> float:
    return ms / 1000 if ms >= 0 else math.inf


def check_priority(priority: int) -> None:
    if type(priority) is not int or abs(priority) > _HIGHEST_PRIORITY:
        raise SettingError("priority", priority, f"a whole number, ±{_HIGHEST_PRIORITY} at most")
