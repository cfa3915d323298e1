"""Waiting on the server for jobs: tokens that wake workers, and pushes of other programs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from penstock.delivery.queries import is_wrong_type
from penstock.errors import CommandRefused, NotOpen, PermissionRefused, ServerError
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.client import Client
from penstock.redis.keys.hash_slot import key_slot
from penstock.redis.wire import Wire
from penstock.runtime.service import Service
from penstock.runtime.service_tasks import ServiceTasks
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["ArrivalWakeups", "RawPushes"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A connection that is dead without our knowing is noticed after this. The tender of a queue, which
# reads it on its own, does not depend on it.
BLOCK_S = 30.0
_MARGIN_S = 1.0
# One connection keeps the queues that are idle for long, the other those that come and go.
_CONNECTIONS = 2
# As many may be used where the server refuses to end a blocked command.
_WITHOUT_UNBLOCK = 16
_FOREIGN_FOR_S = 10.0
_UNBLOCK_AGAIN_S = 0.01
_RAW_BLOCK_S = 10.0
# A worker that was woken by the push itself gets this long to claim, before others are woken.
_HEAD_START_S = 0.003
_RAW_PAUSE_S = 0.004
_GIVE_UP_S = 60.0

WhenWoken = Callable[[], bool]
"""Called once per token; False if the member cannot take jobs now: then another is woken."""


class ArrivalWakeups(Service):
    """Waits for the tokens that wake idle workers, for all queues of a process.

    A queue's list of tokens (`penstock:queue:<queue>:wakeup`) is popped with `BLPOP` of many such
    lists at once, so the server wakes one process for each token. A token that is lost with a
    connection costs no job: the queue's tender sees jobs that wait and adds another.

    On a cluster each slot needs a connection of its own.
    """

    restartable = True

    def __init__(self, client: Client) -> None:
        super().__init__("queue wake-ups")
        self._client = client
        self._waiting: dict[str, list[WhenWoken]] = {}
        """Whom to wake, by the key of the tokens."""
        self._listeners: list[_Listener] = []
        self.tasks = ServiceTasks()
        self._may_unblock = True
        self._foreign: set[str] = set()
        """Keys of another type, which are left out for a while."""
        self._is_covering = False
        """Whether `_cover` is about to be called."""

    @property
    def is_deaf(self) -> bool:
        """Whether members have to poll for jobs: some tokens would not reach them."""
        deaf = any(one.is_deaf for one in self._listeners)
        return deaf or bool(self._foreign) or not self.tasks.is_open

    def wait_for(self, key: str, when_woken: WhenWoken) -> None:
        """Call `when_woken` for the next token, once."""
        waiting = self._waiting.setdefault(key, [])
        if when_woken not in waiting:
            waiting.append(when_woken)
            if not self._is_covering:  # after the jobs that were just claimed
                self._is_covering = True
                asyncio.get_running_loop().call_soon(self._cover)

    def forget(self, key: str, when_woken: WhenWoken) -> None:
        """Wait no longer. A token that comes all the same is passed on."""
        waiting = self._waiting.get(key, [])
        if when_woken in waiting:
            waiting.remove(when_woken)
            if not waiting:
                del self._waiting[key]

    async def run(self) -> None:
        try:
            async with self.tasks.open():
                self._cover()
                await self.stop_asked.wait()
        finally:
            self._listeners.clear()

    # ---- which connection waits for what

    def _cover(self) -> None:
        """Let a connection wait for each key on which a member waits."""
        self._is_covering = False
        if not self.tasks.is_open:
            return
        slots = {self._slot_of(key) for key in self._uncovered()}
        for slot in slots:
            listeners = [one for one in self._listeners if one.slot == slot]
            free = next((one for one in listeners if not one.keys), None)
            most = 1 if slot is not None else _CONNECTIONS
            if not self._may_unblock:
                most = _WITHOUT_UNBLOCK
            if free is not None:
                free.changed.set()
            elif len(listeners) < most:
                listener = _Listener(self, self._client, slot)
                self._listeners.append(listener)
                self.tasks.start(listener.listen(), "wait for jobs")
            else:
                min(listeners, key=lambda one: len(one.keys)).answer_soon()

    def _uncovered(self) -> list[str]:
        if not self._waiting:
            return []
        covered = self._foreign.union(*(one.keys for one in self._listeners))
        return [key for key in self._waiting if key not in covered]

    def keys_for(self, listener: _Listener) -> tuple[str, ...]:
        """What a connection is to wait for next."""
        return tuple(key for key in self._uncovered() if self._slot_of(key) == listener.slot)

    def _slot_of(self, key: str) -> int | None:
        return key_slot(key) if self._client.keys.cluster else None

    # ---- what a connection reports

    def woken(self, key: str) -> None:
        """Handle a token: wake one member, or another process if none here can take jobs."""
        waiting = self._waiting.pop(key, [])
        while waiting:
            if waiting.pop(0)():
                break
        else:
            self._pass_on(key)
        if waiting:
            self._waiting[key] = waiting

    def interrupted(self, slot: int | None) -> None:
        """Wake all who wait: tokens may have been lost, and more may be."""
        for key in [key for key in self._waiting if self._slot_of(key) == slot]:
            for when_woken in self._waiting.pop(key):
                when_woken()

    def may_not_unblock(self) -> None:
        """Use more connections instead: the server refuses CLIENT UNBLOCK."""
        if self._may_unblock:
            self._may_unblock = False
            self._cover()

    async def leave_out_foreign(self, keys: Sequence[str]) -> None:
        """Leave out keys of another type, on which BLPOP fails."""
        kinds = await self._client.pipeline([("TYPE", key) for key in keys])
        for key, kind in zip(keys, kinds, strict=True):
            if kind not in (b"list", b"none") and not isinstance(kind, ServerError):
                self._foreign.add(key)
                asyncio.get_running_loop().call_later(_FOREIGN_FOR_S, self._try_again, key)
                quiet.error(f"foreign {key}", "%s is a %s, not a list", key, kind.decode())

    def _try_again(self, key: str) -> None:
        self._foreign.discard(key)
        self._cover()

    def _pass_on(self, key: str) -> None:
        self.tasks.start(self._push(key), f"pass on {key}")

    async def _push(self, key: str) -> None:
        try:
            await self._client.call("RPUSH", key, 1)
        except ServerError as error:
            logger.debug("a wake-up for %s was not passed on: %s", key, error)


class _Listener:
    """One connection, and what it waits for."""

    def __init__(self, owner: ArrivalWakeups, client: Client, slot: int | None) -> None:
        self.slot = slot
        self.keys: tuple[str, ...] = ()
        """What it waits for now."""
        self.is_deaf = False
        """Whether it has failed, and does not wait yet."""
        self.changed = asyncio.Event()
        self._owner, self._client = owner, client
        self._failures = 0
        self._connection: int | None = None
        self._unblocking: asyncio.Task[None] | None = None
        self._outdated: tuple[str, ...] = ()
        """What it waits for in a command that is to be ended."""

    def answer_soon(self) -> None:
        """Have the blocked command answered, so that it can be asked for more keys."""
        self._outdated = self.keys
        if self._unblocking is None or self._unblocking.done():
            self._unblocking = self._owner.tasks.start(self._unblock(), "unblock")

    async def listen(self) -> None:
        """Endless, unless the client is closed."""
        while True:
            asked: tuple[str, ...] = ()
            try:
                async with self._client.dedicated(slot=self.slot) as wire:
                    self._connection = wire.hello.get("id")
                    while True:
                        asked = await self._next_keys()
                        await self._wait(wire, asked)
            except NotOpen:
                return  # the client was closed
            except ServerError as error:
                self._failures += 1
                quiet.warning(
                    f"wake-ups {type(error).__name__}", "waiting for jobs: %s; trying again", error
                )
                self.is_deaf = True
                self._owner.interrupted(self.slot)
                if is_wrong_type(error):
                    await self._leave_out_foreign(asked)
                else:
                    await asyncio.sleep(retry_delay_s(self._failures))

    async def _next_keys(self) -> tuple[str, ...]:
        while not (keys := self._owner.keys_for(self)):
            self.changed.clear()
            await self.changed.wait()
        return keys

    async def _wait(self, wire: Wire, keys: tuple[str, ...]) -> None:
        self.keys, self.is_deaf = keys, False
        try:
            reply = await wire.call("BLPOP", *keys, BLOCK_S, timeout_s=BLOCK_S + _MARGIN_S)
        finally:
            self.keys = ()
        self._failures = 0
        if reply is not None:
            self._owner.woken(reply[0].decode())

    async def _unblock(self) -> None:
        """Repeated until an answer has come: the first may be there before what it is to end.

        While it pauses, the next command may have to be ended as well.
        """
        keys, pause_s = self._outdated, _UNBLOCK_AGAIN_S
        while self.keys and self.keys is self._outdated and self._connection is not None:
            if keys is not self._outdated:
                keys, pause_s = self._outdated, _UNBLOCK_AGAIN_S
            try:
                wire = await self._client.wire(slot=self.slot)
                await wire.call("CLIENT", "UNBLOCK", self._connection)
            except (CommandRefused, PermissionRefused):
                self._owner.may_not_unblock()
                return
            except (NotOpen, ServerError):
                return
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _leave_out_foreign(self, keys: Sequence[str]) -> None:
        try:
            await self._owner.leave_out_foreign(keys)
        except ServerError:
            await asyncio.sleep(retry_delay_s(self._failures))


class RawPushes:
    """Blocks until the plain list of a queue has jobs, and then calls `when_pushed`.

    `BLMOVE list list LEFT LEFT` waits until the list has a first element and moves it to where it
    is: nothing changes and nothing is taken. The tender of a queue uses it where it has found jobs
    for which no worker was woken, and stops when that has not happened for a minute.
    """

    def __init__(
        self, client: Client, keys: QueueKeyring, when_pushed: Callable[[], None], poll_s: float
    ) -> None:
        self._client, self._keys, self._when_pushed = client, keys, when_pushed
        self._poll_s = poll_s
        self._armed = asyncio.Event()
        self._pause_s = self._again_at = self._look_again_s = 0.0
        self._useful_at = time.monotonic()

    @property
    def is_useless(self) -> bool:
        """Whether it has reported nothing new for long."""
        return time.monotonic() - self._useful_at > _GIVE_UP_S

    def note(self, *, was_needed: bool, is_empty: bool) -> float:
        """Note what the tender has found; seconds until it should look again.

        If no worker had been woken for them, it looks soon whether they have been taken, so that
        the next ones are heard. Pushes that wake workers themselves are heard more and more rarely.
        """
        now = time.monotonic()
        if was_needed:
            self._useful_at, self._pause_s, self._again_at = now, 0.0, now
            self._look_again_s = _RAW_PAUSE_S
        elif is_empty:
            self._look_again_s = 0.0
            if not self._armed.is_set() and now >= self._again_at:
                self._pause_s = min(self._poll_s, max(_RAW_PAUSE_S, 2 * self._pause_s))
                self._armed.set()
        self._look_again_s = min(2 * self._look_again_s, self._poll_s)
        return self._look_again_s or self._poll_s

    async def listen(self) -> None:
        """Endless."""
        name, failures = self._keys.waiting, 0
        slot = key_slot(name) if self._client.keys.cluster else None
        while True:
            try:
                async with self._client.dedicated(slot=slot) as wire:
                    while True:
                        await self._armed.wait()
                        there = await wire.call(
                            *("BLMOVE", name, name, "LEFT", "LEFT", _RAW_BLOCK_S),
                            timeout_s=_RAW_BLOCK_S + _MARGIN_S,
                        )
                        failures = 0
                        if there is not None:
                            self._armed.clear()
                            self._again_at = time.monotonic() + self._pause_s
                            await asyncio.sleep(_HEAD_START_S)
                            self._when_pushed()
            except ServerError as error:  # until then jobs are found by looking
                failures += 1
                quiet.warning(f"raw {type(error).__name__}", "waiting for %s: %s", name, error)
                await asyncio.sleep(retry_delay_s(failures))
