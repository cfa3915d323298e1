"""Slots: at most so many holders of a name at once, over all processes."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import msgspec

from penstock.coordination.hints import Hints
from penstock.coordination.leases import Leases
from penstock.coordination.repeating import until_known
from penstock.coordination.saying import seconds_of
from penstock.coordination.slot import REPEAT_WITHIN_S, Holder, Slot, SlotState
from penstock.coordination.slot_line import KEEP_FENCE_MS, SlotLine, Waiter
from penstock.delivery.times import wait_s
from penstock.errors import (
    DecodeError,
    InvalidName,
    NotOpen,
    ServerError,
    SettingError,
    SlotsTaken,
)
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.settings_coordination import SlotSettings

__all__ = ["Slots", "holder_of", "limit_in", "read_limit"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

MOST_SLOTS: Final = 1_000_000
MAX_ABOUT: Final = 200
# How old the knowledge of a limit that an operator has set may be.
_REFRESH_S = 0.5
# Callers that ask side by side before they stand in line; more of them stand in line at once.
_MOST_TRYING = 64
_MOST_LOOKS = 20
# When callers came that stand in no line: after all others.
_AFTER_ALL = "9e15"
# A caller that went away asks to be forgotten, and does not wait for long to be heard.
_WITHDRAW_S = 1.0


class Slots:
    """At most `limit` holders of a name at once, over all processes that use it.

        gpu = app.slots("gpu", 4)

        async with gpu.hold() as slot:       # waits its turn: first come, first served
            ...                              # no more than four of us are here

        slot = await gpu.take(timeout=2)     # or SlotsTaken
        ...
        await slot.release()

    A slot is held by a lease, which is renewed as long as the process lives and its event loop
    runs: the slots of a killed process are free again after one lease at the latest. The number of
    slots that are taken is counted from the leases, so none can leak.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        limit: int,
        *,
        leases: Leases,
        hints: Hints | None = None,
        lease: float | timedelta | None = None,
        about: str | None = None,
    ) -> None:
        self._keys = client.keys.slot(name)
        self.name = _checked_name(name)
        self.declared = checked_limit(limit, 1)
        self._client, self._leases, self._hints = client, leases, hints
        self._registry = client.keys.slots().registry
        self._settings = client.settings.slots
        self._lease_s = self._settings.lease_s if lease is None else checked_lease(lease)
        self._about = about
        self._limit, self._limit_known_until = limit, 0.0
        self._trying = 0
        self._line = SlotLine(client, name, self.limit, self._hold, hints)

    def __repr__(self) -> str:
        return f"Slots({self.name!r}, {self.declared})"

    @asynccontextmanager
    async def hold(
        self,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  not of the block
        lease: float | timedelta | None = None,
    ) -> AsyncGenerator[Slot]:
        """Hold a slot for the time of a block; as `take`, but waits for ever unless told.

        If the server cannot be told at the end that the slot is free, its lease ends by itself.
        """
        slot = await self.take(timeout, lease)
        try:
            yield slot
        finally:
            try:
                await slot.release()
            except (ServerError, NotOpen) as error:
                quiet.warning("release", "%r is free only after its lease: %s", slot, error)

    async def take(
        self,
        timeout: float | timedelta | None = 0,  # noqa: ASYNC109  a place in line is given back
        lease: float | timedelta | None = None,
    ) -> Slot:
        """Take a slot, waiting for at most `timeout` seconds; None waits for ever.

        Callers that wait get slots in the order in which they came, and before anybody who does
        not wait. `lease` in seconds is for this slot alone. Raises `SlotsTaken`; and what the
        server says, if it could not be asked. Who waits already goes on waiting while the server
        is away, for as long as `timeout` says.
        """
        patience_s = math.inf if timeout is None else seconds_of(timeout, "timeout")
        lease_s = self._lease_s if lease is None else checked_lease(lease)
        about = _who_we_are() if self._about is None else self._about
        waiter = Waiter(f"{uuid.uuid4().hex}:{about[:MAX_ABOUT]}", lease_s, patience_s)
        slot = None
        try:
            if patience_s <= 0 or not (self._line or self._trying >= _MOST_TRYING):
                self._trying += 1
                try:
                    slot = await until_known(self._first_try(waiter), within_s=REPEAT_WITHIN_S)
                finally:
                    self._trying -= 1
            if slot is None and patience_s > 0:
                slot = await self._line.wait(waiter)
        except BaseException:
            await self._withdraw(waiter)
            raise
        if slot is None:
            raise SlotsTaken(self.name, self._limit)
        return slot

    async def set_limit(self, limit: int) -> None:
        """Have so many slots from now on, whatever the code says; 0 gives out no more.

        All processes follow within a second. Slots that are held above the limit stay so until
        they are released.
        """
        text = msgspec.json.encode({"limit": checked_limit(limit, 0), "edited": True})
        await self._client.call("HSET", self._registry, self.name, text)
        self._limit_known_until = 0.0

    async def reset_limit(self) -> None:
        """Have as many slots again as the code says."""
        await self._client.call("HDEL", self._registry, self.name)
        self._limit_known_until = 0.0

    async def limit(self) -> int:
        """How many slots there are, as an operator has set it or else by the code."""
        if time.monotonic() >= self._limit_known_until:
            text = await self._client.scripts.note_slots(
                registry=self._registry,
                name=self.name,
                declared=msgspec.json.encode({"limit": self.declared}),
            )
            self._limit = limit_in(text, self.declared)
            self._limit_known_until = time.monotonic() + _REFRESH_S
        return self._limit

    async def holders(self) -> list[Holder]:
        """Who holds slots, the oldest first."""
        _, holders = await self._look()
        return sorted(holders, key=lambda holder: holder.fence)

    async def state(self) -> SlotState:
        """How many slots there are, are taken, and are waited for."""
        self._limit_known_until = 0.0
        limit = await self.limit()
        waiting, holders = await self._look()
        return SlotState(limit, len(holders), waiting)

    # inside

    async def _look(self) -> tuple[int, list[Holder]]:
        told: list[Any] = await self._client.scripts.look_at_slots(
            holders=self._keys.holders, tickets=self._keys.tickets
        )
        holders: list[Holder] = []
        for member, until in zip(told[1::2], told[2::2], strict=True):
            holder = holder_of(member.decode(errors="replace"), until)
            if holder is not None:
                holders.append(holder)
        return told[0], holders

    def _first_try(self, waiter: Waiter) -> Callable[[], Awaitable[Slot | None]]:
        """Ask for a slot without standing in line; may be repeated."""

        async def ask() -> Slot | None:
            limit, fence, began = await self.limit(), 0, 0.0
            for _ in range(_MOST_LOOKS):
                again, waiter.is_sent, began = waiter.is_sent, True, time.monotonic()
                _, wait_ms, fence = await self._client.scripts.take_slot(
                    keys=self._keys,
                    ticket="",
                    limit=limit,
                    ticket_ms=0,
                    again=again,
                    keep_ms=KEEP_FENCE_MS,
                    waiting=1,
                    next_came=_AFTER_ALL,
                    callers=[(waiter.token, round(waiter.lease_s * 1000), _AFTER_ALL)],
                )
                waiter.is_sent = False
                if fence or wait_ms:
                    break  # else very many dead stand in line, and some of them have left it now
            if not fence:
                return None
            slot = Slot(
                self._client, self.name, token=waiter.token, fence=fence, lease_s=waiter.lease_s
            )
            self._hold(slot, began)
            return slot

        return ask

    def _hold(self, slot: Slot, began: float) -> None:
        slot.hold(self._leases, began)

    async def _withdraw(self, waiter: Waiter) -> None:
        """Give back a slot that a caller that has gone may have got without knowing it."""
        if not waiter.is_sent:
            return
        try:
            async with asyncio.timeout(_WITHDRAW_S):
                await until_known(
                    lambda: self._client.scripts.release_slot(
                        keys=self._keys, holder="", token=waiter.token
                    ),
                    insist=True,
                )
        except (ServerError, NotOpen, TimeoutError) as error:
            quiet.warning("withdraw", "a slot of %r may be free only later: %s", self.name, error)


def checked_limit(limit: object, least: int) -> int:
    """Return a number of slots, or raise `SettingError`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not least <= limit <= MOST_SLOTS:
        raise SettingError("slots.limit", limit, f"a whole number from {least} to {MOST_SLOTS}")
    return limit


def checked_lease(lease: float | timedelta) -> float:
    """Return a lease in seconds, or raise `SettingError`."""
    return SlotSettings(lease_s=wait_s(lease, "lease")).lease_s


def _checked_name(name: str) -> str:
    try:
        name.encode()  # the registry has it as it is
    except UnicodeEncodeError:
        raise InvalidName(
            "slots", name, "holds half of a surrogate pair, which is no text"
        ) from None
    return name


def holder_of(member: str, until: bytes) -> Holder | None:
    """Read who holds a slot; None for what is no holder of ours."""
    fence, _, token = member.partition(":")
    id_, _, about = token.partition(":")
    try:
        return Holder(id_, int(fence), int(float(until)), about)
    except (ValueError, OverflowError):
        quiet.warning("holder", "what is no holder of a slot takes one: %.100r", member)
        return None


def limit_in(text: bytes, declared: int) -> int:
    """The limit in the registry; what nobody can read there counts for nothing."""
    try:
        return read_limit(text)
    except DecodeError:
        quiet.warning("registry", "unreadable number of slots in the registry: %.100r", text)
        return declared


def read_limit(text: bytes) -> int:
    """Read an entry of the registry, or raise `DecodeError`."""
    try:
        return checked_limit(msgspec.json.decode(text)["limit"], 0)
    except (ValueError, TypeError, LookupError, RecursionError, SettingError) as error:
        raise DecodeError(f"no number of slots: {error}", text) from None


def _who_we_are() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
