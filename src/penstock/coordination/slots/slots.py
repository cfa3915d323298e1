"""Slots: a semaphore over all processes, by name."""

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
from typing import Final

import msgspec

from penstock.coordination.leases import Leases
from penstock.coordination.slots.keys import SlotKeys, SlotsKeys
from penstock.coordination.slots.scripts import SlotScripts
from penstock.coordination.slots.slot import REPEAT_WITHIN_S, Holder, Slot, SlotState
from penstock.coordination.slots.waiters import KEEP_FENCE_MS, SlotWaiter, SlotWaiters
from penstock.coordination.values import seconds_of
from penstock.coordination.wakeups import Wakeups
from penstock.delivery.times import wait_s
from penstock.errors import (
    DecodeError,
    InvalidName,
    NotOpen,
    ServerError,
    SettingError,
    SlotsTaken,
)
from penstock.redis.client import Client
from penstock.redis.retry import repeat_until_known
from penstock.settings.coordination import SlotSettings
from penstock.throttled_log import RateLimitedLog

__all__ = ["Slots", "holder_of", "limit_in", "read_limit"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

MOST_SLOTS: Final = 1_000_000
MAX_ABOUT: Final = 200
# How old a cached limit may be: an operator may have changed it.
_REFRESH_S = 0.5
# Callers that ask side by side before they wait; above it they wait at once, as one group.
_MOST_TRYING = 64
_MOST_TRIES = 20
# The time of callers that do not wait: after all others.
_AFTER_ALL = "9e15"
# How long a cancelled caller waits for the server to take back what it may have been given.
_WITHDRAW_S = 1.0


class Slots:
    """At most `limit` holders of a name at once, over all processes that use it.

        gpu = app.slots("gpu", 4)

        async with gpu.hold() as slot:       # first come, first served
            ...                              # at most four callers are here

        slot = await gpu.take(timeout_s=2)   # or SlotsTaken
        ...
        await slot.release()

    A slot is held by a lease, which is renewed as long as the process lives and its event loop
    runs: the slots of a killed process are free again after one lease at the latest. Taken slots
    are counted by their leases, so none can leak.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        limit: int,
        *,
        leases: Leases,
        wakeups: Wakeups | None = None,
        lease: float | timedelta | None = None,
        about: str | None = None,
    ) -> None:
        self._keys = SlotKeys.of(client.keys, name)
        self.name = _checked_name(name)
        self.declared = checked_limit(limit, 1)
        self._client, self._leases, self._wakeups = client, leases, wakeups
        self._registry = SlotsKeys.of(client.keys).registry
        self._settings = client.settings.slots
        self._lease_s = self._settings.lease_s if lease is None else checked_lease(lease)
        self._about = about
        self._limit, self._limit_known_until = limit, 0.0
        self._trying = 0
        self._waiters = SlotWaiters(client, name, self.limit, self._hold, wakeups)

    def __repr__(self) -> str:
        return f"Slots({self.name!r}, {self.declared})"

    @asynccontextmanager
    async def hold(
        self,
        timeout_s: float | timedelta | None = None,
        lease: float | timedelta | None = None,
    ) -> AsyncGenerator[Slot]:
        """Hold a slot for the time of a block; as `take`, but waits without limit by default.

        If the server cannot be reached at the end, the slot is free when its lease ends.
        """
        slot = await self.take(timeout_s, lease)
        try:
            yield slot
        finally:
            try:
                await slot.release()
            except (ServerError, NotOpen) as error:
                quiet.warning("release", "%r is free only after its lease: %s", slot, error)

    async def take(
        self,
        timeout_s: float | timedelta | None = 0,
        lease: float | timedelta | None = None,
    ) -> Slot:
        """Take a slot, waiting for at most `timeout_s` seconds; None waits without limit.

        Callers that wait get slots in the order in which they came, and before callers that do not
        wait. `lease` in seconds is for this slot alone. Raises `SlotsTaken`, or a `ServerError` if
        the server could not be asked. Callers that wait already keep waiting while the server is
        away, up to `timeout_s`.
        """
        patience_s = math.inf if timeout_s is None else seconds_of(timeout_s, "timeout_s")
        lease_s = self._lease_s if lease is None else checked_lease(lease)
        about = _host_and_pid() if self._about is None else self._about
        waiter = SlotWaiter(f"{uuid.uuid4().hex}:{about[:MAX_ABOUT]}", lease_s, patience_s)
        slot = None
        try:
            if patience_s <= 0 or not (self._waiters or self._trying >= _MOST_TRYING):
                self._trying += 1
                try:
                    slot = await repeat_until_known(
                        self._first_try(waiter), within_s=REPEAT_WITHIN_S
                    )
                finally:
                    self._trying -= 1
            if slot is None and patience_s > 0:
                slot = await self._waiters.wait(waiter)
        except BaseException:
            await self._withdraw(waiter)
            raise
        if slot is None:
            raise SlotsTaken(self.name, self._limit)
        return slot

    async def set_limit(self, limit: int) -> None:
        """Change the number of slots, whatever the code declares; 0 grants no more.

        All processes follow within a second. Slots above the limit are held until released.
        """
        text = msgspec.json.encode({"limit": checked_limit(limit, 0), "edited": True})
        await self._client.call("HSET", self._registry, self.name, text)
        self._limit_known_until = 0.0

    async def reset_limit(self) -> None:
        """Return to the number of slots that the code declares."""
        await self._client.call("HDEL", self._registry, self.name)
        self._limit_known_until = 0.0

    async def limit(self) -> int:
        """How many slots there are: as set by an operator, else as declared."""
        if time.monotonic() >= self._limit_known_until:
            text = await SlotScripts.of(self._client).note_slots(
                registry=self._registry,
                name=self.name,
                declared=msgspec.json.encode({"limit": self.declared}),
            )
            self._limit = limit_in(text, self.declared)
            self._limit_known_until = time.monotonic() + _REFRESH_S
        return self._limit

    async def holders(self) -> list[Holder]:
        """Holders of slots, the oldest first."""
        _, holders = await self._read()
        return sorted(holders, key=lambda holder: holder.fence)

    async def state(self) -> SlotState:
        """How many slots there are, are taken, and are waited for."""
        self._limit_known_until = 0.0
        limit = await self.limit()
        waiting, holders = await self._read()
        return SlotState(limit, len(holders), waiting)

    async def close(self) -> None:
        """Refuse callers that wait with `NotOpen`; slots that are held stay so."""
        await self._waiters.close()

    # inside

    async def _read(self) -> tuple[int, list[Holder]]:
        waiting, *members = await SlotScripts.of(self._client).look_at_slots(
            holders=self._keys.holders, tickets=self._keys.tickets
        )
        holders: list[Holder] = []
        for member, until in zip(members[::2], members[1::2], strict=True):
            holder = holder_of(member.decode(errors="replace"), until)
            if holder is not None:
                holders.append(holder)
        return waiting, holders

    def _first_try(self, waiter: SlotWaiter) -> Callable[[], Awaitable[Slot | None]]:
        """Ask for a slot without waiting; may be repeated."""

        async def ask() -> Slot | None:
            limit, fence, began = await self.limit(), 0, 0.0
            for _ in range(_MOST_TRIES):
                again, waiter.is_sent, began = waiter.is_sent, True, time.monotonic()
                _, wait_ms, fence = await SlotScripts.of(self._client).take_slot(
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
                    break  # else some of very many void tickets were removed
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

    async def _withdraw(self, waiter: SlotWaiter) -> None:
        """Release a slot that a cancelled caller may have been granted."""
        if not waiter.is_sent:
            return
        try:
            async with asyncio.timeout(_WITHDRAW_S):
                await repeat_until_known(
                    lambda: SlotScripts.of(self._client).release_slot(
                        keys=self._keys, holder="", token=waiter.token
                    ),
                    insist=True,
                )
        except (ServerError, NotOpen, TimeoutError) as error:
            quiet.warning(
                "withdraw", "a slot of %r may be free only after its lease: %s", self.name, error
            )


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
        name.encode()  # the registry stores it unencoded
    except UnicodeEncodeError:
        raise InvalidName(
            "slots", name, "holds half of a surrogate pair, which is no text"
        ) from None
    return name


def holder_of(member: str, until: bytes) -> Holder | None:
    """Read a holder of a slot; None for a member that Penstock has not written."""
    fence, _, token = member.partition(":")
    id_, _, about = token.partition(":")
    try:
        return Holder(id_, int(fence), int(float(until)), about)
    except (ValueError, OverflowError):
        quiet.warning("holder", "a member that is not a holder takes a slot: %.100r", member)
        return None


def limit_in(text: bytes, declared: int) -> int:
    """The limit in the registry; the declared one if that cannot be decoded."""
    try:
        return read_limit(text)
    except DecodeError:
        quiet.warning("registry", "cannot decode the number of slots in the registry: %.100r", text)
        return declared


def read_limit(text: bytes) -> int:
    """Read an entry of the registry, or raise `DecodeError`."""
    try:
        return checked_limit(msgspec.json.decode(text)["limit"], 0)
    except (ValueError, TypeError, LookupError, RecursionError, SettingError) as error:
        raise DecodeError(f"no number of slots: {error}", text) from None


def _host_and_pid() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
