"""What is to happen once: reserve it, do it, and mark it as done."""

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
from penstock.coordination.repeating import until_known
from penstock.coordination.saying import lasting_ms, to_bytes, to_text
from penstock.errors import (
    InvalidJob,
    NotOpen,
    OutcomeUnknown,
    ReservationLost,
    ServerError,
)
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.coordination import DedupeKeys
from penstock.redis.keys.names import encode_id
from penstock.redis.once_scripts import REMEMBER_MS

if TYPE_CHECKING:
    from penstock.queues.adding import UniqueMark
    from penstock.queues.options import Overflow, SendWords
    from penstock.queues.queue import Queue

__all__ = ["Enqueued", "Mark", "MarkWords", "Once"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_RELEASE_WITHIN_S: Final = 2.0
"""How long an answer to a release is sought: later it runs out by itself."""


class MarkWords(TypedDict, total=False):
    """What can be said about a reservation: see `Once.reserve`."""

    ttl: float | timedelta | None
    scope: str | None
    value: str
    replay: bool


@dataclass(slots=True)
class Mark:
    """Who is first. It is true for the one who is to do the work."""

    first: bool
    value: str
    """What the mark says: the path, say, of whoever was first."""
    lease: Lease | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.first

    @property
    def lost(self) -> bool:
        """Whether another may be at it by now, because this process was silent for too long."""
        return self.lease is not None and self.lease.lost


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of `Once.enqueue`. It is true if a job was added."""

    first: bool
    value: str
    """What the mark says: of whoever was first."""
    job_id: str = ""
    """Id of the job that was added, if it has one."""

    def __bool__(self) -> bool:
        return self.first


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a caller wants to happen once."""

    name: str
    keys: DedupeKeys
    value: bytes
    ttl_ms: int
    token: str


class Once:
    """Marks of what has happened, so that it does not happen again for a time.

        async with app.once(sha256, value=path) as mark:    # ttl: 300 seconds unless told
            if mark.first:
                await store(path)                           # an error here leaves no mark

        if await app.seen(sha256, path): ...                # mark it, and hear whether it was there
        await app.marks.enqueue(sha256, queue, job)         # mark it and queue a job, or neither

    A mark is the key `dedupe:<key>` with a text of the caller's, `value`. With a `scope` (a camera,
    a tenant) the same key in another scope is another mark. `replay` does it again on purpose.
    """

    def __init__(self, client: Client, codec: Codec, leases: Leases) -> None:
        self._client, self._codec, self._leases = client, codec, leases
        settings = client.settings.once
        self._ttl_s, self._hold_s = settings.ttl_s, settings.hold_s
        self._hold_ms = round(settings.hold_s * 1000)

    def reserve(self, key: str, **words: Unpack[MarkWords]) -> AbstractAsyncContextManager[Mark]:
        """Reserve what the block does: of all who ask, one is first, until its block ends.

        - At the end of the block the mark is set, for `ttl` seconds from then on. An error or a
          cancellation in the block releases it instead: the next one is first.
        - While the block runs the reservation is renewed. If the process dies, it runs out after
          `once.hold_s`. One that was silent for that long, and was overtaken, learns it at the end
          of its block, by `ReservationLost`, or from `mark.lost` within it.
        - `scope`: a camera or a tenant to which the key belongs; `value`: what the mark says.
        - `replay`: be first whoever was; the mark is set anew.

        Calls whose answer is lost are repeated. An `OutcomeUnknown` at the end of the block says
        that the work is done, but perhaps not marked.
        """
        scope, value, ttl = words.get("scope"), words.get("value", ""), words.get("ttl")
        wanted = self._wanted(key, scope, value, ttl)
        return self._replayed(wanted) if words.get("replay") else self._reserved(wanted)

    async def seen(
        self,
        key: str,
        value: str = "",
        *,
        ttl: float | timedelta | None = None,
        scope: str | None = None,
    ) -> bool:
        """Mark it, unless it is marked: True if it was there, False if it is marked now.

        One command, so of all who ask one hears False. The mark is there before the work is done:
        use `reserve` where the work may fail. `OutcomeUnknown` if no answer came: it may be marked.
        """
        wanted = self._wanted(key, scope, value, ttl)
        command = ("SET", wanted.keys.mark, wanted.value, "PX", wanted.ttl_ms, "NX")
        return await self._client.call(*command) is None

    async def peek(self, key: str, *, scope: str | None = None) -> str | None:
        """What the mark says; None if there is none. A reservation has its mark already."""
        value: bytes | None = await self._client.call("GET", self._keys(_name(key, scope)).mark)
        return None if value is None else to_text(value)

    async def forget(
        self, key: str, *, scope: str | None = None, queue: Queue | None = None
    ) -> bool:
        """Delete the mark, so that it may happen again; False if there was none.

        Who is at work on it goes on, and marks it in the end unless another took it meanwhile.
        What `enqueue` has marked on a cluster is noted in the queue's slot as well: name the queue.
        """
        name = _name(key, scope)
        keys = self._keys(name)
        if queue is not None and self._client.keys.cluster:
            for place in _beside(queue, name):
                await self._client.call("DEL", place)
        return await self._client.scripts.forget_once(mark=keys.mark, holder=keys.holder)

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
        **options: Unpack[SendWords],
    ) -> Enqueued:
        """Mark it and add a job to `queue`, or neither: one script on one server.

        If it is marked already, no job is added. QueueFull leaves no mark. Options are those of
        `Queue.push`; what is unique here is the mark.

        On a cluster the mark and the queue live apart: it is reserved, added under a unique key of
        the queue's own that lasts as long, and marked. Whatever happens in between, one is added.
        """
        from penstock.queues.options import SendOptions  # noqa: PLC0415
        from penstock.queues.raw import RawJobs  # noqa: PLC0415

        for name in ("unique", "unique_for", "idempotency_key"):
            if options.get(name) is not None:
                raise InvalidJob(f"{name}: what is unique about the job is the mark's key")
        wanted = self._wanted(key, scope, value, ttl)
        told: dict[str, Any] = {
            **options,
            "unique": wanted.name,
            "unique_for": timedelta(milliseconds=wanted.ttl_ms),
        }
        said = SendOptions(**told)
        target = queue.target(said, max_size, overflow)
        raw = RawJobs(queue)
        now_ms = await queue.server_ms() if said.expires is not None else 0
        job = await raw.made(data, said, now_ms)

        async def submit(mark: str, by: str) -> Enqueued:
            added = await raw.submit(job, target, _unique_mark(wanted, mark, by, replay=replay))
            if added.created:
                return Enqueued(True, value, added.id)
            return Enqueued(False, to_text(added.says))

        if not self._client.keys.cluster:
            return await submit(wanted.keys.mark, wanted.keys.holder)
        enqueued = Enqueued(False, "")
        # Whoever has the reservation in the end: the queue's own key has decided who is first.
        with suppress(ReservationLost):
            async with self._replayed(wanted) if replay else self._reserved(wanted) as reserved:
                if not reserved.first:
                    return Enqueued(False, reserved.value)
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
        return self._client.keys.dedupe(name)

    @asynccontextmanager
    async def _reserved(self, wanted: _Wanted) -> AsyncGenerator[Mark]:
        began = time.monotonic()
        try:
            first, value = await until_known(lambda: self._reserve(wanted))
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
            partial(_tell_of_loss, wanted.name),
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
        return await self._client.scripts.reserve_once(
            mark=wanted.keys.mark,
            holder=wanted.keys.holder,
            token=wanted.token,
            value=wanted.value,
            hold_ms=self._hold_ms,
        )

    async def _renew(self, wanted: _Wanted) -> bool:
        return await self._client.scripts.renew_once(
            mark=wanted.keys.mark,
            holder=wanted.keys.holder,
            token=wanted.token,
            hold_ms=self._hold_ms,
        )

    async def _commit(self, wanted: _Wanted, *, regardless: bool = False) -> bool:
        # The work is done: a server that is away for a moment is worth a wait.
        return await until_known(
            lambda: self._client.scripts.commit_once(
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
            await until_known(
                lambda: self._client.scripts.release_once(
                    mark=keys.mark, holder=keys.holder, token=wanted.token
                ),
                within_s=_RELEASE_WITHIN_S,
            )
        except (ServerError, NotOpen) as error:
            # What went wrong before matters more, and the reservation runs out by itself.
            quiet.warning("release", "%s stays reserved for a while: %s", wanted.name, error)


def _tell_of_loss(name: str) -> None:
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
    from penstock.queues.adding import UniqueMark  # noqa: PLC0415

    says = (b"!" if replay else b"=") + wanted.token.encode() + wanted.value
    return UniqueMark(mark, by, says, REMEMBER_MS)
