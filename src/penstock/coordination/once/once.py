"""Work that is done once per key: reserve it, do it, and mark it as done."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from penstock.coordination.leases import Lease, Leases
from penstock.coordination.once.keys import DedupeKeys
from penstock.coordination.once.scripts import REMEMBER_MS, OnceScripts
from penstock.coordination.values import lasting_ms, to_bytes, to_text
from penstock.errors import (
    InvalidJob,
    NotOpen,
    OutcomeUnknown,
    ReservationLost,
    ServerError,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.names import encode_id
from penstock.redis.retry import repeat_until_known
from penstock.throttled_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.queues.options import Overflow, SendKeywords
    from penstock.queues.producer.enqueuer import UniqueMark
    from penstock.queues.queue import Queue

__all__ = ["EnqueuedOnce", "Mark", "Once", "OnceKwargs"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_RELEASE_WITHIN_S: Final = 2.0
"""How long a release is repeated; then the reservation expires."""


class OnceKwargs(TypedDict, total=False):
    """Options of a reservation: see `Once.reserve`."""

    ttl: float | timedelta | None
    scope: str | None
    value: str
    replay: bool


@dataclass(slots=True)
class Mark:
    """A reservation. It is true for the caller that is to do the work."""

    first: bool
    value: str
    """Value of the mark, as the first caller set it."""
    lease: Lease | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.first

    @property
    def lost(self) -> bool:
        """Whether another caller may have it by now: this process was silent for too long."""
        return self.lease is not None and self.lease.lost


@dataclass(frozen=True, slots=True)
class EnqueuedOnce:
    """What became of `Once.enqueue`. It is true if a job was added."""

    first: bool
    value: str
    """Value of the mark, as the first caller set it."""
    job_id: str = ""
    """Id of the job that was added, if it has one."""

    def __bool__(self) -> bool:
        return self.first


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One request, validated."""

    name: str
    keys: DedupeKeys
    value: bytes
    ttl_ms: int
    token: str


class Once:
    """Marks of what has happened, so that it does not happen again for a time.

        async with app.once(sha256, value=path) as mark:    # ttl: 300 seconds by default
            if mark.first:
                await store(path)                           # an error here leaves no mark

        if await app.seen(sha256, path): ...                # mark it; whether it was marked before
        await app.marks.enqueue(sha256, queue, job)         # mark it and queue a job, or neither

    A mark is the key `dedupe:<key>` with the caller's text `value`. With a `scope` (a tenant, a
    device) the same key in another scope is another mark. `replay` does it again on purpose.
    """

    def __init__(self, client: Client, codec: Codec, leases: Leases) -> None:
        self._client, self._codec, self._leases = client, codec, leases
        settings = client.settings.once
        self._ttl_s, self._hold_s = settings.ttl_s, settings.hold_s
        self._hold_ms = round(settings.hold_s * 1000)

    def reserve(self, key: str, **options: Unpack[OnceKwargs]) -> AbstractAsyncContextManager[Mark]:
        """Reserve what the block does: of all callers one is first, until its block ends.

        - At the end of the block the mark is set, for `ttl` seconds from then on. An error or a
          cancellation in the block releases it instead: the next one is first.
        - While the block runs the reservation is renewed. If the process dies, it expires after
          `once.hold_s`. If another caller took it meanwhile, `ReservationLost` is raised at the end
          of the block; `mark.lost` is true within it.
        - `scope`: a tenant or device to which the key belongs; `value`: a text stored in the mark.
        - `replay`: be first in any case; the mark is set again.

        Calls whose reply is lost are repeated. After an `OutcomeUnknown` at the end of the block,
        the work is done, but perhaps not marked.
        """
        scope, value, ttl = options.get("scope"), options.get("value", ""), options.get("ttl")
        wanted = self._wanted(key, scope, value, ttl)
        return self._replayed(wanted) if options.get("replay") else self._reserved(wanted)

    async def seen(
        self,
        key: str,
        value: str = "",
        *,
        ttl: float | timedelta | None = None,
        scope: str | None = None,
    ) -> bool:
        """Mark it, unless it is marked: True if it was there, False if it is marked now.

        One command, so of all callers one gets False. The mark is set before the work is done: use
        `reserve` where the work may fail. `OutcomeUnknown` without a reply: it may be marked.
        """
        wanted = self._wanted(key, scope, value, ttl)
        command = ("SET", wanted.keys.mark, wanted.value, "PX", wanted.ttl_ms, "NX")
        return await self._client.call(*command) is None

    async def peek(self, key: str, *, scope: str | None = None) -> str | None:
        """The value of the mark, or None. A reservation has its mark already."""
        value: bytes | None = await self._client.call("GET", self._keys(_name(key, scope)).mark)
        return None if value is None else to_text(value)

    async def forget(
        self, key: str, *, scope: str | None = None, queue: Queue | None = None
    ) -> bool:
        """Delete the mark, so that it may happen again; False if there was none.

        A block that runs continues, and marks it in the end unless another caller took it.
        Marks of `enqueue` on a cluster are in the queue's slot as well: name the queue.
        """
        name = _name(key, scope)
        keys = self._keys(name)
        if queue is not None and self._client.keys.cluster:
            for place in _beside(queue, name):
                await self._client.call("DEL", place)
        return await OnceScripts.of(self._client).forget_once(mark=keys.mark, holder=keys.holder)

    async def enqueue(
        self,
        key: str,
        queue: Queue,
        data: Any,
        *,
        value: str = "",
        ttl: float | timedelta | None = None,
        scope: str | None = None,
        replay: bool = False,
        max_size: int | None = None,
        overflow: Overflow | None = None,
        **options: Unpack[SendKeywords],
    ) -> EnqueuedOnce:
        """Mark it and add a job to `queue`, or neither: one script on one server.

        If it is marked already, no job is added. QueueFull leaves no mark. Options are those of
        `Queue.push`; what is unique here is the mark.

        On a cluster the mark and the queue live apart: it is reserved, added under a unique key of
        the queue's own that lasts as long, and marked. Whatever happens in between, one is added.
        """
        from penstock.queues.options import SendOptions  # noqa: PLC0415

        for name in ("unique", "unique_for", "idempotency_key"):
            if options.get(name) is not None:
                raise InvalidJob(f"{name}: what is unique about the job is the mark's key")
        wanted = self._wanted(key, scope, value, ttl)
        arguments: dict[str, Any] = {
            **options,
            "unique": wanted.name,
            "unique_for": timedelta(milliseconds=wanted.ttl_ms),
        }
        sending = SendOptions(**arguments)
        target = queue.target(sending, max_size, overflow)
        raw = queue.raw_jobs
        now_ms = await queue.server_ms() if sending.expires is not None else 0
        job = await raw.encode(data, sending, now_ms)

        async def submit(mark: str, by: str) -> EnqueuedOnce:
            added = await raw.submit(job, target, _unique_mark(wanted, mark, by, replay=replay))
            if added.created:
                return EnqueuedOnce(True, value, added.id)
            return EnqueuedOnce(False, to_text(added.holder_value))

        if not self._client.keys.cluster:
            return await submit(wanted.keys.mark, wanted.keys.holder)
        enqueued = EnqueuedOnce(False, "")
        # Even if the reservation is lost: the queue's own key has decided who is first.
        with suppress(ReservationLost):
            async with self._replayed(wanted) if replay else self._reserved(wanted) as reserved:
                if not reserved.first:
                    return EnqueuedOnce(False, reserved.value)
                enqueued = await submit(*_beside(queue, wanted.name))
        return enqueued

    # inside

    def _wanted(
        self, key: str, scope: str | None, value: str, ttl: float | timedelta | None
    ) -> _Wanted:
        name = _name(key, scope)
        token = secrets.token_hex(16)
        return _Wanted(
            name, self._keys(name), to_bytes(value, "value"), lasting_ms(ttl, self._ttl_s), token
        )

    def _keys(self, name: str) -> DedupeKeys:
        return DedupeKeys.of(self._client.keys, name)

    @asynccontextmanager
    async def _reserved(self, wanted: _Wanted) -> AsyncGenerator[Mark]:
        began = time.monotonic()
        try:
            first, value = await repeat_until_known(lambda: self._reserve(wanted))
        except (asyncio.CancelledError, OutcomeUnknown):
            await self._release(wanted)  # it may be reserved all the same
            raise
        mark = Mark(bool(first), to_text(value))
        if not first:
            yield mark
            return
        mark.lease = self._leases.hold(
            lambda: self._renew(wanted),
            self._hold_s / 3,
            partial(_log_loss, wanted.name),
            ttl_s=self._hold_s,
            began=began,
        )
        try:
            yield mark
        except BaseException:
            await mark.lease.end()
            await self._release(wanted)
            raise
        await mark.lease.end()
        if not await self._commit(wanted):
            raise ReservationLost(wanted.name)

    @asynccontextmanager
    async def _replayed(self, wanted: _Wanted) -> AsyncGenerator[Mark]:
        """Nothing is reserved: others may be at work on it, or have done it."""
        yield Mark(True, to_text(wanted.value))
        await self._commit(wanted, regardless=True)

    async def _reserve(self, wanted: _Wanted) -> tuple[int, bytes]:
        return await OnceScripts.of(self._client).reserve_once(
            mark=wanted.keys.mark,
            holder=wanted.keys.holder,
            token=wanted.token,
            value=wanted.value,
            hold_ms=self._hold_ms,
        )

    async def _renew(self, wanted: _Wanted) -> bool:
        return await OnceScripts.of(self._client).renew_once(
            mark=wanted.keys.mark,
            holder=wanted.keys.holder,
            token=wanted.token,
            hold_ms=self._hold_ms,
        )

    async def _commit(self, wanted: _Wanted, *, regardless: bool = False) -> bool:
        # The work is done: a server that is away for a moment is worth a wait.
        return await repeat_until_known(
            lambda: OnceScripts.of(self._client).commit_once(
                mark=wanted.keys.mark,
                holder=wanted.keys.holder,
                token=wanted.token,
                value=wanted.value,
                ttl_ms=wanted.ttl_ms,
                remember_ms=REMEMBER_MS,
                regardless=regardless,
            ),
            insist=True,
        )

    async def _release(self, wanted: _Wanted) -> None:
        keys = wanted.keys
        try:
            await repeat_until_known(
                lambda: OnceScripts.of(self._client).release_once(
                    mark=keys.mark, holder=keys.holder, token=wanted.token
                ),
                within_s=_RELEASE_WITHIN_S,
            )
        except (ServerError, NotOpen) as error:
            # The error before it matters more, and the reservation expires.
            quiet.warning("release", "%s stays reserved for a while: %s", wanted.name, error)


def _log_loss(name: str) -> None:
    quiet.warning("lost", "the reservation of %s may have passed to another process", name)


def _name(key: str, scope: str | None) -> str:
    """The key within its scope. A colon in the scope is spelled out: `a:b` and `c` are not `a`."""
    return key if scope is None else f"{encode_id('scope', scope)}:{_checked(key)}"


def _checked(key: str) -> str:
    encode_id("key", key)
    return key


def _beside(queue: Queue, name: str) -> tuple[str, str]:
    """Keys in the queue's slot that stand for the mark and its holder on a cluster."""
    return queue.keyring.unique(f"once:{name}"), queue.keyring.unique(f"once-by:{name}")


def _unique_mark(wanted: _Wanted, mark: str, by: str, *, replay: bool) -> UniqueMark:
    from penstock.queues.producer.enqueuer import UniqueMark  # noqa: PLC0415

    stored = (b"!" if replay else b"=") + wanted.token.encode() + wanted.value
    return UniqueMark(mark, by, stored, REMEMBER_MS)
