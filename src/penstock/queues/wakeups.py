"""Waiting on the server for jobs: one or two connections for all queues of a worker process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from penstock.delivery.looking import is_wrong_type
from penstock.errors import CommandRefused, NotOpen, PermissionRefused, ServerError
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.keys import key_slot
from penstock.redis.wire import Wire
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.service import Service

__all__ = ["Wakeups"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# A connection that is dead without our knowing is noticed after this. The tender of a queue, which
# looks for itself, does not depend on it.
BLOCK_S = 30.0
_MARGIN_S = 1.0
# One connection keeps the queues that are idle for long, the other those that come and go.
_CONNECTIONS = 2
# As many may be used where the server does not let us end a blocked command.
_WITHOUT_UNBLOCK = 16
_FOREIGN_FOR_S = 10.0
_UNBLOCK_AGAIN_S = 0.01

WhenWoken = Callable[[], bool]
"""Called once for a token; False if its worker cannot take jobs now, so another is to be woken."""


class Wakeups(Service):
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
        """By the key of the tokens: who is to be woken."""
        self._listeners: list[_Listener] = []
        self._broken: asyncio.Future[None]
        self._is_running = False
        self._may_unblock = True
        self._foreign: set[str] = set()
        """Keys of another type, which are left out for a while."""
        self._passing_on: set[asyncio.Task[None]] = set()
        self._is_covering = False
        """Whether the connections are about to be looked at."""

    @property
    def is_deaf(self) -> bool:
        """Whether workers have to look for jobs themselves: some tokens would not reach them."""
        deaf = any(one.is_deaf for one in self._listeners)
        return deaf or bool(self._foreign) or not self._is_running

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
        self._broken = asyncio.get_running_loop().create_future()
        self._is_running = True
        stopping = asyncio.create_task(self.stop_asked.wait())
        try:
            self._cover()
            await asyncio.wait((stopping, self._broken), return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
        finally:
            self._is_running = False
            tasks: list[asyncio.Task[Any]] = [
                stopping,
                *(one.task for one in self._listeners),
                *self._passing_on,
            ]
            self._listeners.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- which connection waits for what

    def _cover(self) -> None:
        """See to it that a connection waits for each key that somebody waits for."""
        self._is_covering = False
        if not self._is_running:
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
                self._listeners.append(_Listener(self, self._client, slot))
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

    # ---- what a connection tells

    def woken(self, key: str) -> None:
        """A token has come: wake one, or another process if nobody here can take jobs."""
        waiting = self._waiting.pop(key, [])
        while waiting:
            if waiting.pop(0)():
                break
        else:
            self._pass_on(key)
        if waiting:
            self._waiting[key] = waiting

    def interrupted(self, slot: int | None) -> None:
        """Tokens may have been lost, and more may be: let all who wait look themselves."""
        for key in [key for key in self._waiting if self._slot_of(key) == slot]:
            for when_woken in self._waiting.pop(key):
                when_woken()

    def listener_ended(self, task: asyncio.Task[None]) -> None:
        """None should, unless it is cancelled."""
        if not task.cancelled() and (error := task.exception()) and not self._broken.done():
            self._broken.set_exception(error)

    def may_not_unblock(self) -> None:
        """The server refuses it: use more connections instead."""
        if self._may_unblock:
            self._may_unblock = False
            self._cover()

    async def leave_out_foreign(self, keys: Sequence[str]) -> None:
        """Find the keys of another type, on which nothing can wait, and do without them."""
        kinds = await self._client.pipeline([("TYPE", key) for key in keys])
        for key, kind in zip(keys, kinds, strict=True):
            if kind not in (b"list", b"none") and not isinstance(kind, ServerError):
                self._foreign.add(key)
                asyncio.get_running_loop().call_later(_FOREIGN_FOR_S, self._try_again, key)
                quiet.error(f"foreign {key}", "%s is a %s, not a list of ours", key, kind.decode())

    def _try_again(self, key: str) -> None:
        self._foreign.discard(key)
        self._cover()

    def _pass_on(self, key: str) -> None:
        task = asyncio.create_task(self._push(key), name=f"pass on {key}")
        self._passing_on.add(task)
        task.add_done_callback(self._passing_on.discard)

    async def _push(self, key: str) -> None:
        try:
            await self._client.call("RPUSH", key, 1)
        except ServerError as error:
            logger.debug("a wake-up for %s was not passed on: %s", key, error)


class _Listener:
    """One connection, and what it waits for."""

    def __init__(self, owner: Wakeups, client: Client, slot: int | None) -> None:
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
        self.task = asyncio.create_task(self._listen(), name="wait for jobs")
        self.task.add_done_callback(owner.listener_ended)

    def answer_soon(self) -> None:
        """Have the blocked command answered, so that it can be asked for more keys."""
        if self._unblocking is None or self._unblocking.done():
            self._unblocking = asyncio.create_task(self._unblock(), name="unblock")

    async def _listen(self) -> None:
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
        """Repeated until an answer has come: the first may be there before what it is to end."""
        keys, pause_s = self.keys, _UNBLOCK_AGAIN_S
        while keys and self.keys is keys and self._connection is not None:
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
