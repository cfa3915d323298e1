"""One RESP connection for the hot paths: commands go out together, replies come back in order.

hiredis packs and parses; this class keeps the order. A command whose caller was cancelled still
keeps its place among the replies, so its reply is dropped and never given to another caller.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import socket
import ssl
import struct
import termios
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import hiredis
from hiredis import ProtocolError, Reader

from penstock.errors import (
    OutcomeUnknown,
    ReadOnlyReplica,
    ServerError,
    Unreachable,
)
from penstock.hosts import is_loopback
from penstock.processes.home import NotOurs
from penstock.processes.peer import open_own_connection
from penstock.redis.address import Credentials, Endpoint
from penstock.redis.error_mapping import refusal
from penstock.redis.handshake import handshake, not_opened, read_handshake

__all__ = ["FRESH_S", "Argument", "Command", "Reply", "Wire", "pack"]

Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = tuple[Argument, ...]
Reply: TypeAlias = Any
"""bytes, int, None, a list of replies, or (inside a list) a ServerError."""

# hiredis' own annotation describes a tuple of one.
pack = cast("Callable[[Command], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""A command in the protocol's form."""
_MORE = object()
# Above this many unsent bytes callers wait: enough to keep the socket busy over a slow link.
_UNSENT_HIGH = 1024 * 1024
# So many leave together: the server is at work on them while the next ones are made.
_TOGETHER = 16
# After so many idle seconds, then so often, until so many questions were not answered.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

FRESH_S = 0.55
"""What was opened less long ago than this is not opened again: at most two tries in any second,
also for an observer whose clock reads a few milliseconds late."""


_open: weakref.WeakSet[Wire] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """After a fork the sockets are the parent's: none of them takes commands in the child."""
    for wire in _open:
        wire.alive = False


os.register_at_fork(after_in_child=_leave_to_parent)


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

    A wire that has ended stays ended: its user opens another. It is for commands that get
    one reply each; SUBSCRIBE, MONITOR and their like would shift the replies of all that follow.
    """

    def __init__(self, endpoint: Endpoint, *, command_s: float) -> None:
        self.endpoint = endpoint
        self.alive = False
        """Whether it takes commands."""
        self.opened_at = 0.0
        self.received = 0
        """Bytes that have come so far."""
        self.behind = False
        """Whether the socket does not keep up with what was sent: see `writable`."""
        self.hello: dict[str, Reply] = {}
        """Facts of the server from the handshake: server, version, mode, role …"""
        self.serves_strangers = False
        """Whether it also serves those who do not log in, if that was asked: see `open`."""
        self._command_s = command_s
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(
            protocolError=ProtocolError, replyError=self._refusal, notEnoughData=_MORE
        )
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Batch] = deque()
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._flushing = False
        self._writable = asyncio.Event()
        self._progress_at = 0.0
        self._buffered = 0
        self._silent_s = math.inf
        self._when_silent: Callable[[], object] = lambda: None
        self._silent_since = 0.0
        self._finishing = False
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
        asks_as_stranger: bool = False,
    ) -> Wire:
        """Connect, authenticate and select the database.

        With `asks_as_stranger` a server on a TCP port gets a harmless command before that: one
        whose default user has no password takes any password for it.

        Raises `Unreachable` or one of the server's refusals; in each case nothing was asked.
        """
        wire = cls(endpoint, command_s=command_s)
        try:
            async with asyncio.timeout(connect_s):
                await wire._connect(tls)
                commands = handshake(credentials or Credentials(), database)
                if asks_as_stranger and wire.peer:
                    first, *replies = await wire.send([("ROLE",), *commands])
                    wire.serves_strangers = not isinstance(first, ServerError)
                    if isinstance(first, ServerError) and isinstance(replies[0], OutcomeUnknown):
                        raise first  # it refused the connection and hung up
                else:
                    replies = await wire.send(commands)
                wire.hello = read_handshake(endpoint, replies)
        except (OSError, OutcomeUnknown) as error:  # a TimeoutError is an OSError too
            fault = wire._fault if isinstance(wire._fault, ssl.SSLError) else error
            raise not_opened(endpoint, fault, connect_s=connect_s, tls=tls is not None) from error
        finally:
            if not wire.hello:
                wire.abort("it was not opened")
        return wire

    @property
    def reason(self) -> str:
        """Why it takes no commands."""
        return self._reason or ("it is being replaced" if self._finishing else "not connected yet")

    @property
    def ended(self) -> bool:
        """Whether its socket is closed."""
        return self._ended.done()

    @property
    def idle(self) -> bool:
        """Whether no reply is outstanding."""
        return not self._pending

    @property
    def peer(self) -> str:
        """IP address of the other side, found when it was opened; empty for a unix socket."""
        if self.endpoint.path or self._transport is None:
            return ""
        peer = self._transport.get_extra_info("peername")
        return peer[0] if peer else ""  # it may have ended at once

    @property
    def is_remote(self) -> bool:
        """Whether what it carries leaves this machine."""
        return bool(self.peer) and not is_loopback(self.peer)

    @property
    def descriptor(self) -> int:
        """Number of its socket in this process; -1 if it has none any more."""
        if self._transport is None:
            return -1
        peer: socket.socket = self._transport.get_extra_info("socket")
        return peer.fileno()

    def send(
        self, commands: Sequence[Command], *, timeout_s: float | None = None
    ) -> asyncio.Future[list[Reply]]:
        """Send `commands` and return the future of their replies, without waiting for the socket.

        Every command has its own end in the list: a reply, the server's refusal, `OutcomeUnknown`
        if the connection ended before its reply came, `Unreachable` if it never left. A
        caller that sends a lot awaits `writable()` in between.
        """
        if not all(commands):
            raise ValueError("an empty command would get no reply")
        try:
            packed = [pack(command) for command in commands]
        except UnicodeEncodeError:
            packed = [pack(_in_bytes(command)) for command in commands]
        return self.send_packed(packed, timeout_s=timeout_s)

    def send_packed(
        self, commands: Sequence[bytes], *, timeout_s: float | None = None
    ) -> asyncio.Future[list[Reply]]:
        """As `send`, for commands that are in the protocol's form already (see `pack`)."""
        if not self.alive or self._transport is None:
            raise Unreachable(f"{self.endpoint}: {self.reason}")
        packed = b"".join(commands)
        now = self._loop.time()
        limit_s = self._command_s if timeout_s is None else timeout_s
        batch = _Batch(self._loop.create_future(), len(commands), now, limit_s)
        if not commands:
            batch.future.set_result([])
            return batch.future
        self._pending.append(batch)
        if self._flushing:
            self._unsent.append(packed)
            self._unsent_size += len(packed)
            if len(self._unsent) >= _TOGETHER or self._unsent_size > _UNSENT_HIGH:
                self._write_unsent()
        else:
            # A lone command leaves at once. What other tasks send in this turn of the loop follows
            # by the next turn, many in one system call.
            self._flushing = True
            self._loop.call_soon(self._flush)
            self._transport.write(packed)
        look_at = now + min(limit_s / 2, self._silent_s)
        if self._timer is None or self._timer.when() > look_at:
            self._set_timer(look_at)
        return batch.future

    async def call(self, *command: Argument, timeout_s: float | None = None) -> Reply:
        """Send one command and return its reply; an error reply is raised."""
        if self.behind:
            await self.writable()
        reply = (await self.send((command,), timeout_s=timeout_s))[0]
        if isinstance(reply, ServerError):
            raise reply
        return reply

    async def call_many(
        self, commands: Sequence[Command], *, timeout_s: float | None = None
    ) -> list[Reply]:
        """Send `commands` in one go; errors stand in the list in their places."""
        if self.behind:
            await self.writable()
        return await self.send(commands, timeout_s=timeout_s)

    async def writable(self) -> None:
        """Wait until the socket keeps up with what was sent."""
        while self.behind:
            await self._writable.wait()

    def watch(self, silent_s: float, when_silent: Callable[[], object]) -> None:
        """Have `when_silent` called when a reply has been missing for `silent_s`.

        Once for each silence, and not for commands that came with a limit of their own: these may
        block on the server.
        """
        self._silent_s, self._when_silent = silent_s, when_silent

    @property
    def quiet_since(self) -> float | None:
        """Since when a reply is missing and nothing has come or left; None if none is missing."""
        if not self._pending or self._transport is None:
            self._buffered = 0
            return None
        buffered = _on_the_way(self._transport)
        if buffered < self._buffered:
            self._progress_at = self._loop.time()  # a slow link is not a dead one
        self._buffered = buffered
        return max(self._pending[0].sent_at, self._progress_at)

    def owes(self, since: float) -> bool:
        """Whether a reply is missing to a command that was sent by then, by the loop's time."""
        return bool(self._pending) and self._pending[0].sent_at <= since

    def finish(self) -> None:
        """Take no more commands, and end when the replies still owed have come."""
        self.alive = False
        self._finishing = True
        if not self._pending:
            self._end(self.reason)

    def abort(self, reason: str) -> None:
        """End now, without waiting for anything."""
        self._end(reason)

    async def close(self) -> None:
        """Let what was sent leave, end the connection and wait for the end. May come twice."""
        self._flush()
        self._end("it was closed", abruptly=False)
        if self._transport is not None:
            try:
                await asyncio.wait([self._ended], timeout=self._command_s)
            finally:
                if not self.ended:  # asyncio breaks on the abort of what has ended
                    self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_HIGH)
        _keep_alive(transport.get_extra_info("socket"))
        self.opened_at = self._loop.time()
        if self._reason is not None:  # its caller was cancelled before it was made
            self._transport.abort()
            return
        self.alive = True
        _open.add(self)

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        reader.feed(data)
        self.received += len(data)
        self._progress_at = self._loop.time()
        try:
            while (reply := reader.gets()) is not _MORE:
                if not pending:
                    # Unsolicited: the server says why it is about to hang up.
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
        if self._finishing and not pending:
            self._end(self.reason)

    def eof_received(self) -> None:
        self._end("connection closed by the server")

    def pause_writing(self) -> None:
        self.behind = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self._progress_at = self._loop.time()
        self.behind = False
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fault = exc
        self._end(f"connection lost ({exc})" if exc else "connection closed by the server")
        self._ended.set_result(None)

    # inside

    async def _connect(self, tls: ssl.SSLContext | None) -> None:
        place = self.endpoint
        try:
            if place.own:
                connection = await open_own_connection(self._loop, place.path)
                await self._loop.create_unix_connection(lambda: self, sock=connection)
            elif place.path:
                await self._loop.create_unix_connection(lambda: self, place.path)
            else:
                await self._loop.create_connection(lambda: self, place.host, place.port, ssl=tls)
        except ssl.SSLError:
            raise
        except NotOurs as error:
            raise Unreachable(f"{place}: {error.strerror}") from error
        except ValueError as error:  # a host name that none can be, a path with a zero byte
            raise Unreachable(f"{place}: {error}") from error

    def _refusal(self, text: str) -> ServerError:
        error = refusal(text)
        if isinstance(error, ReadOnlyReplica) and self._loop.time() - self.opened_at > FRESH_S:
            # The server was demoted, or another stands behind the address: it is looked up again.
            self.alive = False
            self._finishing = True
        return error

    def _flush(self) -> None:
        self._flushing = False
        self._write_unsent()

    def _write_unsent(self) -> None:
        if self._unsent and self._transport is not None:
            unsent, self._unsent, self._unsent_size = self._unsent, [], 0
            self._transport.write(b"".join(unsent))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if (since := self.quiet_since) is None:
            return
        head, now = self._pending[0], self._loop.time()
        due, silent_at = since + head.timeout_s, since + self._silent_s
        if now >= due:
            self._end(f"no reply within {head.timeout_s:g} s")
            return
        if now >= silent_at:
            if head.timeout_s == self._command_s and since != self._silent_since:
                self._silent_since = since
                self._when_silent()
            silent_at = now + self._silent_s
        # Half-way, to see whether bytes leave; and soon even during a long read, as what
        # follows it has a shorter limit and becomes the head unseen.
        self._set_timer(min(due, silent_at, now + min(head.timeout_s, self._command_s) / 2))

    def _end(self, reason: str, *, abruptly: bool = True) -> None:
        """Fail what is outstanding, each with the truth about it. Later reasons do not count."""
        if self._reason is not None:
            return
        self.alive = False
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
        self.behind = False
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            if abruptly:
                self._transport.abort()
            else:
                self._transport.close()


def _keep_alive(peer: socket.socket) -> None:
    """Have the system ask the other side of an idle connection whether it is there.

    So no middlebox forgets it, and one that is dead ends before it is used.
    """
    if peer.family != socket.AF_UNIX:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)


def _on_the_way(transport: asyncio.Transport) -> int:
    """Bytes that have not arrived at the other side, as far as the system can tell."""
    size = transport.get_write_buffer_size()
    peer: socket.socket = transport.get_extra_info("socket")
    try:
        (unacknowledged,) = struct.unpack(
            "i", fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, b"0000")
        )
    except OSError:
        return size
    return size + unacknowledged


def _in_bytes(command: Command) -> Command:
    """Spell out texts that stand for bytes which are not UTF-8, as paths of Python's do."""
    return tuple(
        one.encode(errors="surrogateescape") if isinstance(one, str) else one for one in command
    )
