"""One RESP connection for the hot paths: commands go out together, replies come back in order.

hiredis packs and parses; this class keeps the order. A command whose caller was cancelled still
owns its place in line, so its reply is dropped and never handed to somebody else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import hiredis
from hiredis import ProtocolError, Reader

from penstock.errors import OutcomeUnknown, ServerError, TlsFailed, Unreachable
from penstock.redis.address import Credentials, Endpoint
from penstock.redis.refusals import refusal

__all__ = ["Argument", "Command", "Reply", "Wire"]

Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = tuple[Argument, ...]
Reply: TypeAlias = Any
"""bytes, int, None, a list of replies, or (inside a list) a ServerError."""

# hiredis' own annotation describes a tuple of one.
_pack = cast("Callable[[Command], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
_MORE = object()
# Above this many unsent bytes callers wait: enough to keep the socket busy over a slow link.
_UNSENT_HIGH = 1024 * 1024


class _Batch:
    """Commands sent together, waiting for their replies."""

    __slots__ = ("future", "missing", "replies", "sent_at", "timeout_s")

    def __init__(
        self, future: asyncio.Future[list[Reply]], missing: int, sent_at: float, timeout_s: float
    ) -> None:
        self.future = future
        self.missing = missing
        self.replies: list[Reply] = []
        self.sent_at = sent_at
        self.timeout_s = timeout_s


class Wire(asyncio.Protocol):
    """A connection to one endpoint. Made by `Wire.open`; ended by `close` or by the first fault.

    A wire that has ended stays ended: whoever holds it opens another.
    """

    def __init__(self, endpoint: Endpoint, *, command_s: float) -> None:
        self.endpoint = endpoint
        self.hello: dict[str, Reply] = {}
        """What the server said of itself: server, version, mode, role …"""
        self._command_s = command_s
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(protocolError=ProtocolError, replyError=refusal, notEnoughData=_MORE)
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Batch] = deque()
        self._unsent: list[bytes] = []
        self._flushing = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._progress_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reason: str | None = None
        self._fault: Exception | None = None

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        *,
        connect_s: float,
        command_s: float,
        credentials: Credentials | None = None,
        database: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> Wire:
        """Connect, authenticate and select the database.

        Raises `Unreachable` or one of the server's refusals; in each case nothing was asked.
        """
        wire = cls(endpoint, command_s=command_s)
        try:
            async with asyncio.timeout(connect_s):
                await wire._connect(tls)
                await wire._greet(credentials or Credentials(), database)
        except (OSError, OutcomeUnknown) as error:  # a TimeoutError is an OSError too
            raise wire._not_opened(error, connect_s) from error
        finally:
            if not wire.hello:
                wire._end("it was not opened")
        return wire

    @property
    def alive(self) -> bool:
        return self._reason is None

    @property
    def idle(self) -> bool:
        """Whether no reply is outstanding."""
        return not self._pending

    def send(
        self, commands: Sequence[Command], *, timeout_s: float | None = None
    ) -> asyncio.Future[list[Reply]]:
        """Send `commands` and return the future of their replies, without waiting for the socket.

        Every command has its own end in the list: a reply, the server's refusal, `OutcomeUnknown`
        if the connection ended before its reply came, `Unreachable` if it never left. Whoever sends
        a lot awaits `writable()` in between.
        """
        if self._reason is not None or self._transport is None:
            raise Unreachable(f"{self.endpoint}: {self._reason or 'not connected yet'}")
        packed = b"".join([_pack(command) for command in commands])
        batch = _Batch(
            self._loop.create_future(),
            len(commands),
            self._loop.time(),
            self._command_s if timeout_s is None else timeout_s,
        )
        if not commands:
            batch.future.set_result([])
            return batch.future
        if self._flushing:
            self._unsent.append(packed)
        else:
            # A lone command leaves at once. What other tasks send in this turn of the loop follows
            # together: the next turn is one system call for all of it.
            self._flushing = True
            self._loop.call_soon(self._flush)
            self._transport.write(packed)
        self._pending.append(batch)
        if self._timer is None:
            self._timer = self._loop.call_at(batch.sent_at + batch.timeout_s, self._check_deadline)
        return batch.future

    async def call(self, *command: Argument, timeout_s: float | None = None) -> Reply:
        """Send one command and return its reply; an error reply is raised."""
        if not self._writable.is_set():
            await self._writable.wait()
        reply = (await self.send((command,), timeout_s=timeout_s))[0]
        if isinstance(reply, ServerError):
            raise reply
        return reply

    async def call_many(
        self, commands: Sequence[Command], *, timeout_s: float | None = None
    ) -> list[Reply]:
        """Send `commands` in one go; errors stand in the list in their places."""
        if not self._writable.is_set():
            await self._writable.wait()
        return await self.send(commands, timeout_s=timeout_s)

    async def writable(self) -> None:
        """Wait until the socket keeps up with what was sent."""
        await self._writable.wait()

    async def close(self) -> None:
        """Let what was sent leave, end the connection and wait for the end. May come twice."""
        if self._transport is not None:
            self._flush()
            self._transport.close()
            await asyncio.wait([self._ended], timeout=self._command_s)
        self._end("it was closed")

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_HIGH)

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        reader.feed(data)
        self._progress_at = self._loop.time()
        try:
            while (reply := reader.gets()) is not _MORE:
                if not pending:
                    # Nobody asked: the server says why it is about to hang up.
                    self._end(str(reply))
                    return
                batch = pending[0]
                batch.replies.append(reply)
                batch.missing -= 1
                if not batch.missing:
                    pending.popleft()
                    if not batch.future.done():
                        batch.future.set_result(batch.replies)
        except ProtocolError:
            self._end("it does not speak the Redis protocol (is it a TLS port?)")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fault = exc
        self._end(f"connection lost ({exc})" if exc else "connection closed by the server")
        self._ended.set_result(None)

    # inside

    async def _connect(self, tls: ssl.SSLContext | None) -> None:
        place = self.endpoint
        if place.path:
            await self._loop.create_unix_connection(lambda: self, place.path)
        else:
            await self._loop.create_connection(lambda: self, place.host, place.port, ssl=tls)

    async def _greet(self, credentials: Credentials, database: int) -> None:
        hello: list[Argument] = ["HELLO", 2]
        if credentials.password is not None:
            hello += ["AUTH", credentials.username or "default", credentials.password]
        commands: list[Command] = [(*hello, "SETNAME", "penstock")]
        if database:
            commands.append(("SELECT", database))
        replies = await self.send(commands)
        for reply in replies:
            if isinstance(reply, ServerError):
                raise reply
        fields = iter(cast("list[Reply]", replies[0]))
        self.hello = {
            name.decode(): _text(value) for name, value in zip(fields, fields, strict=False)
        }

    def _not_opened(self, error: OSError | OutcomeUnknown, connect_s: float) -> Unreachable:
        """Say why, knowing that nothing was asked yet."""
        cause = self._fault or error
        if isinstance(cause, ssl.SSLError):
            return TlsFailed(f"{self.endpoint}: {cause.reason or cause}")
        if isinstance(cause, TimeoutError):
            return Unreachable(f"{self.endpoint}: no answer within {connect_s:g} s")
        if isinstance(error, OutcomeUnknown):
            return Unreachable(str(error))
        return Unreachable(f"{self.endpoint}: {error.strerror or error}")

    def _flush(self) -> None:
        self._flushing = False
        if self._unsent and self._transport is not None and self._reason is None:
            unsent, self._unsent = self._unsent, []
            self._transport.write(b"".join(unsent))

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._pending:
            return
        head = self._pending[0]
        due = max(head.sent_at, self._progress_at) + head.timeout_s
        if self._loop.time() >= due:
            self._end(f"no reply within {head.timeout_s:g} s")
        else:
            self._timer = self._loop.call_at(due, self._check_deadline)

    def _end(self, reason: str) -> None:
        """Fail what is outstanding, each with the truth about it. Later reasons do not count."""
        if self._reason is not None:
            return
        self._reason = reason
        text = f"{self.endpoint}: {reason}"
        never_sent = len(self._unsent)
        while self._pending:
            batch = self._pending.pop()
            if not batch.future.done():
                kind = Unreachable if never_sent > 0 else OutcomeUnknown
                missing = [kind(text) for _ in range(batch.missing)]
                batch.future.set_result(batch.replies + missing)
            never_sent -= 1
        self._unsent.clear()
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()


def _text(value: Reply) -> Reply:
    return value.decode() if isinstance(value, bytes) else value
