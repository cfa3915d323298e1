"""The server's protocol as far as the kit needs it: a blocking client, and whole frames of bytes.

It shares nothing with the connections of `penstock.redis`, so that it can judge them.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Generator
from typing import Any, Self, TypeAlias, cast

import hiredis

__all__ = ["REFUSALS", "Address", "FrameSplitter", "RespClient", "pack"]

Address: TypeAlias = tuple[str, int] | str
"""Host and port, or the path of a unix socket."""

REFUSALS = {
    "OOM": "-OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY": "-READONLY You can't write against a read only replica.",
    "LOADING": "-LOADING Redis is loading the dataset in memory",
    "MISCONF": "-MISCONF Errors writing to the AOF file: No space left on device",
    "NOREPLICAS": "-NOREPLICAS Not enough good replicas to write.",
    "CLUSTERDOWN": "-CLUSTERDOWN The cluster is down",
    "MASTERDOWN": "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.",
    "NOAUTH": "-NOAUTH Authentication required.",
    "NOPERM": "-NOPERM this user has no permissions to run the command",
    "NOSCRIPT": "-NOSCRIPT No matching script. Please use EVAL.",
    "BUSY": "-BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
    "TRYAGAIN": "-TRYAGAIN Multiple keys request during rehashing of slot",
}
"""How servers word their refusals, by code: what `FaultProxy.answer` can be given."""

_pack_command = cast(
    "Callable[[tuple[bytes | float, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]  its stub names no result
)
_PENDING = object()
_SIZED = re.compile(rb"[$=!*~>%|]-?\d+")
_BULKS = (b"$", b"=", b"!")
_ATTRIBUTES = b"|"
_VALUES_PER_ITEM = {b"*": 1, b"~": 1, b">": 1, b"%": 2, _ATTRIBUTES: 2}


class RespClient:
    """One blocking connection. Replies are text; bytes that are not UTF-8 survive a round trip."""

    def __init__(
        self,
        address: Address,
        *,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self.socket = _connected(address, timeout_s)
        if tls is not None:
            with self._closed_on_error():
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._reader = hiredis.Reader(
            encoding="utf-8", errors="surrogateescape", notEnoughData=_PENDING
        )
        if password is not None:
            with self._closed_on_error():
                self.call("AUTH", password)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, *arguments: str | bytes | float) -> Any:
        """Send one command and return its reply; an error reply is raised (hiredis.ReplyError)."""
        self.send(*arguments)
        return self.receive()

    def send(self, *arguments: str | bytes | float) -> None:
        """Send one command without waiting, as a pipeline does."""
        self.socket.sendall(pack(*arguments))

    def receive(self) -> Any:
        """Return the next reply; ConnectionError when the server has closed."""
        while (reply := self._reader.gets()) is _PENDING:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        self.socket.close()

    @contextlib.contextmanager
    def _closed_on_error(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


class FrameSplitter:
    """Cuts a byte stream into whole requests or replies, however it was split or glued.

    Knows RESP2, RESP3 and inline commands; a frame is kept to the byte. What it cannot read, it
    takes for a line.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._values_missing = 1

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes."""
        self._buffer += data
        frames: list[bytes] = []
        while self._step():
            if self._values_missing == 0:
                frames.append(bytes(self._buffer[: self._position]))
                del self._buffer[: self._position]
                self._position, self._values_missing = 0, 1
        return frames

    def rest(self) -> bytes:
        """Return, and forget, the bytes of the frame that is not complete."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._position, self._values_missing = 0, 1
        return rest

    def _step(self) -> bool:
        """Pass over one header line, and the body of a bulk; False if bytes are missing."""
        end = self._buffer.find(b"\r\n", self._position)
        if end < 0:
            return False
        header, after = bytes(self._buffer[self._position : end]), end + 2
        kind = header[:1]
        is_sized = _SIZED.fullmatch(header) is not None
        size = int(header[1:]) if is_sized else 0  # -1 is null
        if is_sized and kind in _BULKS and size >= 0:
            after += size + 2
            if after > len(self._buffer):
                return False
        self._values_missing += _VALUES_PER_ITEM.get(kind, 0) * max(size, 0) - 1
        if kind == _ATTRIBUTES:  # they precede the value they belong to
            self._values_missing += 1
        self._position = after
        return True


def pack(*arguments: str | bytes | float) -> bytes:
    """Bytes of one request."""
    encoded = tuple(
        argument.encode("utf-8", "surrogateescape") if isinstance(argument, str) else argument
        for argument in arguments
    )
    return _pack_command(encoded)


def _connected(address: Address, timeout_s: float) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_connection(address, timeout_s)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
