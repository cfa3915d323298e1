"""Slots: at most so many holders of a name at once, over all processes."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import msgspec

from penstock.coordination.hints import Hints
from penstock.coordination.leases import Leases
from penstock.coordination.repeating import until_known
from penstock.coordination.saying import seconds_of
from penstock.coordination.slot import REPEAT_WITHIN_S, Holder, Slot, SlotState
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
# A caller in line that has not asked for so many of its rounds has gone.
_ROUNDS = 3
# Fences rise without a memory, too, as long as clocks do: it is for clocks that were set back.
_KEEP_FENCE_MS = 7 * 86_400_000
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
        self._line: dict[asyncio.Event, None] = {}

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
        attempt = _Attempt(f"{uuid.uuid4().hex}:{about[:MAX_ABOUT]}", lease_s, patience_s)
        try:
            slot = await until_known(lambda: self._try(attempt), within_s=REPEAT_WITHIN_S)
            if slot is None and patience_s > 0:
                slot = await self._wait(attempt)
        except BaseException:
            await self._withdraw(attempt)
            raise
        if slot is None:
            if patience_s > 0:
                await self._withdraw(attempt)
            raise SlotsTaken(self.name, self._limit)
        slot.hold(self._leases, attempt.began)
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

    async def _try(self, attempt: _Attempt) -> Slot | None:
        limit = await self.limit()
        again, attempt.is_sent, attempt.is_unsure = attempt.is_unsure, True, True
        attempt.began = time.monotonic()
        patience_ms = _ROUNDS * self._settings.recheck_s * 1000
        answer = await self._client.scripts.take_slot(
            keys=self._keys,
            token=attempt.token,
            limit=limit,
            lease_ms=round(attempt.lease_s * 1000),
            ticket_ms=math.ceil(patience_ms) if attempt.patience_s > 0 else 0,
            again=again,
            keep_ms=_KEEP_FENCE_MS,
        )
        attempt.is_unsure = False
        if not answer[0]:
            attempt.wait_s = answer[2] / 1000 if answer[2] >= 0 else math.inf
            return None
        return Slot(
            self._client, self.name, token=attempt.token, fence=answer[1], lease_s=attempt.lease_s
        )

    async def _wait(self, attempt: _Attempt) -> Slot | None:
        """Stand in line until there is a slot, or until patience ends."""
        woken, is_watching = asyncio.Event(), False
        self._line[woken] = None
        try:
            is_watching = await self._watch(attempt)
            while True:
                left_s = attempt.ends - time.monotonic()
                woken.clear()
                slot, trouble = await self._ask_again(attempt)
                if slot is not None:
                    return slot
                if left_s <= 0:
                    if trouble is not None:
                        raise trouble  # we could not look, which is not "all taken"
                    return None
                await self._sleep(woken, min(attempt.wait_s, left_s))
        finally:
            del self._line[woken]
            # For those behind us in this process: there may be more than one free slot.
            self._wake_first()
            if self._hints is not None and is_watching:
                await self._hints.unwatch(self._keys.holders, self._wake_first)

    async def _watch(self, attempt: _Attempt) -> bool:
        """Have us woken when slots are released; it is no matter if that takes too long."""
        if self._hints is None:
            return False
        try:
            async with asyncio.timeout(attempt.ends - time.monotonic()):
                await self._hints.watch(self._keys.holders, self._wake_first)
        except TimeoutError:
            return False
        return True

    async def _ask_again(self, attempt: _Attempt) -> tuple[Slot | None, ServerError | None]:
        try:
            return await self._try(attempt), None
        except ServerError as error:
            if not error.transient:
                raise
            quiet.warning("wait", "waiting for a slot of %r: %s", self.name, error)
            attempt.wait_s = math.inf
            return None, error

    async def _sleep(self, woken: asyncio.Event, wait_s: float) -> None:
        # The server's lease ends at a whole ms; later by one, and we find it ended.
        wait_s = min(wait_s + 0.001, self._settings.recheck_s)
        try:
            async with asyncio.timeout(wait_s):
                await woken.wait()
        except TimeoutError:
            pass

    def _wake_first(self) -> None:
        """Wake the first in line here; who gets a slot wakes the next, who gets none need not."""
        for woken in self._line:
            woken.set()
            return

    async def _withdraw(self, attempt: _Attempt) -> None:
        """Leave the line, and give back a slot that we may have got without knowing it."""
        if not attempt.is_sent:
            return
        try:
            async with asyncio.timeout(_WITHDRAW_S):
                await until_known(
                    lambda: self._client.scripts.release_slot(
                        keys=self._keys, holder="", token=attempt.token
                    ),
                    insist=True,
                )
        except (ServerError, NotOpen, TimeoutError) as error:
            quiet.warning("withdraw", "not taken out of the line of %r: %s", self.name, error)


class _Attempt:
    """One caller's attempt to get a slot."""

    def __init__(self, token: str, lease_s: float, patience_s: float) -> None:
        self.token, self.lease_s, self.patience_s = token, lease_s, patience_s
        self.began = time.monotonic()
        """When the server was asked for the last time."""
        self.ends = self.began + patience_s
        self.is_sent = False
        self.is_unsure = False
        """Whether an answer was lost that may have given us a slot."""
        self.wait_s = math.inf
        """How long it will be, by the leases of the present holders."""


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
