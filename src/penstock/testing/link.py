"""One proxied connection: bytes wait their time, then pass, are answered, or end it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, TypeAlias, cast

import hiredis

from penstock.testing.resp import Address, FrameSplitter

__all__ = ["Lane", "Link", "Rule", "RuleKind", "Side", "Way", "reset_on_close"]

Side = Literal["client", "server"]
Way = Literal["to_server", "to_client"]

_CHUNK = 65_536
_CHUNKS_HELD = 64  # beyond them the sender feels back-pressure, as with full socket buffers
_CLOSE_TIMEOUT_S = 0.2
_TLS_HANDSHAKE = 0x16
_LINGER_NONE = struct.pack("ii", 1, 0)
_STREAMING = {b"MONITOR", b"PSUBSCRIBE", b"PSYNC", b"SSUBSCRIBE", b"SUBSCRIBE", b"SYNC"}
"""After these, what the server sends is no longer one reply per request."""


class RuleKind(Enum):
    """What happens to a request that matches."""

    SWALLOW = auto()
    CUT = auto()
    ANSWER = auto()


class Rule:
    """Something that shall happen to the next requests of one kind."""

    def __init__(self, command: str, kind: RuleKind, times: int | None, reply: bytes = b"") -> None:
        self.kind, self.reply = kind, reply
        self.hits = 0
        """How often it has happened."""
        self._words = [] if command == "*" else command.upper().encode().split()
        self._times_left = times

    def takes(self, request: Sequence[bytes]) -> bool:
        """Whether the rule is for this request; one that is counts."""
        words = [word.upper() for word in request[: len(self._words)]]
        if words != self._words or self._times_left == 0:
            return False
        if self._times_left is not None:
            self._times_left -= 1
        return True


@dataclass(slots=True)
class Lane:
    """The switches of one direction, shared by all connections."""

    latency_s: float = 0.0
    bytewise: bool = False
    bytes_until_reset: int | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    def heal(self) -> None:
        self.latency_s, self.bytewise, self.bytes_until_reset = 0.0, False, None
        self.open.set()

    def admit(self, data: bytes) -> tuple[bytes, bool]:
        """Return the bytes that may pass, and whether the connection is reset after them."""
        if self.bytes_until_reset is None:
            return data, False
        passing = data[: self.bytes_until_reset]
        self.bytes_until_reset -= len(passing)
        if self.bytes_until_reset > 0:
            return passing, False
        self.bytes_until_reset = None
        return passing, True


Timed: TypeAlias = "asyncio.Queue[tuple[float, bytes | None]]"
"""Bytes and the loop's time at which they are due; None is the end of the stream."""


class Link:
    """One client's connection and, once it runs, the one to the server behind it."""

    def __init__(
        self,
        client: socket.socket,
        tls: ssl.SSLContext | None,
        to_server: Lane,
        to_client: Lane,
        rules: list[Rule],
    ) -> None:
        self._client, self._tls = client, tls
        self._writers: list[asyncio.StreamWriter] = []
        self._to_server, self._to_client = to_server, to_client
        self._rules = rules
        self._requests, self._replies = FrameSplitter(), FrameSplitter()
        self._owed: deque[Rule | None] = deque()  # one entry per reply the client waits for
        self._opaque = False
        self._seen_any = False
        self._latest: list[bytes] = []
        self._mute: set[Way] = set()
        """Directions in which bytes vanish, for the rest of the connection."""
        self._cut_side: Side | None = None
        self._keep_s = 0.0

    def last_sent(self, command: str | None) -> bool:
        """Whether the latest request was this command (None: any)."""
        words = [] if command is None else command.upper().encode().split()
        return [word.upper() for word in self._latest[: len(words)]] == words

    def drop(self, way: Way) -> None:
        """Let all bytes vanish in one direction from now on; the connection stays open."""
        self._mute.add(way)

    async def cut_side(self, side: Side, *, reset: bool, keep_s: float) -> None:
        """End the connection on one side only; the other side learns of it after `keep_s`.

        Requests that had come before still pass. Replies, and what the other side sends from now
        on, vanish.
        """
        if len(self._writers) <= 1 or self._cut_side is not None:
            return
        self._cut_side, self._keep_s = side, keep_s
        self._mute.add("to_client")
        if side == "server":
            self._mute.add("to_server")
        writer = self._writers[0 if side == "client" else 1]
        _close(writer, reset=reset)
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await writer.wait_closed()

    async def run(self, upstream: Address) -> None:
        """Pass bytes both ways until both sides have ended, or one was reset."""
        try:
            client_reader, client_writer = await _adopt(self._client, self._tls)
            self._writers.append(client_writer)
            server_reader, server_writer = await _open(upstream)
            self._writers.append(server_writer)
        except OSError:
            self.end(reset=True)
            return
        requests: Timed = asyncio.Queue(_CHUNKS_HELD)
        replies: Timed = asyncio.Queue(_CHUNKS_HELD)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_fill(requests, client_reader, self._to_server))
                tasks.create_task(_fill(replies, server_reader, self._to_client))
                tasks.create_task(self._send_requests(requests, server_writer, replies))
                tasks.create_task(self._send_replies(replies, client_writer))
        except* OSError:
            self.end(reset=True)
        finally:
            self.end(reset=False)

    def end(self, *, reset: bool) -> None:
        """End both connections, orderly or by a reset; a second end changes nothing."""
        for writer in self._writers:
            _close(writer, reset=reset)

    async def wait_ended(self) -> None:
        """Return when all is closed, which a silent peer cannot hold up for long.

        For links whose task is done: only then the client's socket is free.
        """
        for writer in self._writers:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await writer.wait_closed()
            writer.transport.abort()
        self._client.close()

    async def _send_requests(
        self, queue: Timed, server: asyncio.StreamWriter, replies: Timed
    ) -> None:
        while (data := await _take(queue, self._to_server)) is not None:
            passing, cut = self._forwarded(data)
            await self._write(server, self._to_server, passing, cut=cut)
            if self._owed and self._owed[0] is not None:
                # Wakes the other side, which gives the answer that no server will.
                await replies.put((_now() + self._to_client.latency_s, b""))
        await self._write(server, self._to_server, self._requests.rest())
        await self._end_of_stream(server)

    async def _send_replies(self, queue: Timed, client: asyncio.StreamWriter) -> None:
        while (data := await _take(queue, self._to_client)) is not None:
            passing, cut = self._returned(data)
            await self._write(client, self._to_client, passing, cut=cut)
        await self._write(client, self._to_client, self._replies.rest())
        await self._end_of_stream(client)

    async def _end_of_stream(self, writer: asyncio.StreamWriter) -> None:
        if self._cut_side is not None:
            await asyncio.sleep(self._keep_s)
        if writer.is_closing():
            return
        if writer.can_write_eof():
            writer.write_eof()
        else:  # TLS knows no half-closed connection
            writer.close()

    async def _write(
        self, writer: asyncio.StreamWriter, lane: Lane, data: bytes, *, cut: bool = False
    ) -> None:
        if ("to_server" if lane is self._to_server else "to_client") in self._mute:
            return
        passing, worn_out = lane.admit(data)
        size = 1 if lane.bytewise else max(len(passing), 1)
        for start in range(0, len(passing), size):
            writer.write(passing[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        if cut or worn_out:
            self.end(reset=True)
            raise ConnectionResetError

    def _forwarded(self, data: bytes) -> tuple[bytes, bool]:
        """Return the bytes for the server, and whether the connection is cut after them."""
        if not self._seen_any:
            self._seen_any, self._opaque = True, data[0] == _TLS_HANDSHAKE
        if self._opaque:
            return data, False
        passing: list[bytes] = []
        for frame in self._requests.feed(data):
            self._latest = words = _words(frame)
            rule = next((rule for rule in list(self._rules) if words and rule.takes(words)), None)
            if rule is not None and rule.kind is RuleKind.CUT:
                rule.hits += 1
                return b"".join(passing), True
            if words:
                self._owed.append(rule)
            if rule is None or rule.kind is RuleKind.SWALLOW:
                passing.append(frame)
            if words and words[0].upper() in _STREAMING:
                self._opaque = True
        if self._opaque:
            passing.append(self._requests.rest())
        return b"".join(passing), False

    def _returned(self, data: bytes) -> tuple[bytes, bool]:
        """Return the bytes for the client, and whether the connection is cut after them."""
        if self._opaque:
            return self._replies.rest() + data, False
        passing = self._answers()
        for frame in self._replies.feed(data):
            is_reply = self._owed and not frame.startswith(b">")
            rule = self._owed.popleft() if is_reply else None
            if rule is not None:
                rule.hits += 1
                return b"".join(passing), True
            passing += [frame, *self._answers()]
        return b"".join(passing), False

    def _answers(self) -> list[bytes]:
        """Replies that may be sent now; one that is to be swallowed comes alone."""
        answers: list[bytes] = []
        while self._owed and (rule := self._owed[0]) and rule.kind is RuleKind.ANSWER:
            self._owed.popleft()
            rule.hits += 1
            answers.append(rule.reply)
        return answers


def reset_on_close(connection: socket.socket) -> None:
    """Let the close of a connection be a reset instead of an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)


async def _adopt(
    client: socket.socket, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    client.setblocking(False)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _open(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(address, str):
        return await asyncio.open_unix_connection(address)
    return await asyncio.open_connection(*address)


async def _fill(queue: Timed, reader: asyncio.StreamReader, lane: Lane) -> None:
    """Note of all bytes when they are due, until the stream ends."""
    while data := await reader.read(_CHUNK):
        await queue.put((_now() + lane.latency_s, data))
    await queue.put((_now() + lane.latency_s, None))


async def _take(queue: Timed, lane: Lane) -> bytes | None:
    """Return the next bytes when they are due and the lane is open; None at the end."""
    due, data = await queue.get()
    await asyncio.sleep(max(due - _now(), 0))
    await lane.open.wait()
    return data


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if writer.is_closing():  # to close a TLS transport twice is to lose hold of it
        return
    if reset:
        reset_on_close(writer.get_extra_info("socket"))
        writer.transport.abort()
    else:
        writer.close()


def _words(frame: bytes) -> list[bytes]:
    """Return a request's command and arguments; none for an empty line, which gets no reply."""
    if not frame.startswith(b"*"):
        return frame.split()
    reader = hiredis.Reader()
    reader.feed(frame)
    request = reader.gets()
    return cast("list[bytes]", request) if isinstance(request, list) else []


def _now() -> float:
    return asyncio.get_running_loop().time()
