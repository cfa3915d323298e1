"""Messages over a stream of bytes, each with its length before it."""

from __future__ import annotations

import socket
import struct
from typing import Final

__all__ = ["LENGTH", "FrameBuffer", "FrameRefused", "frame", "receive_frame"]
__all__ += ["receive_frame_and_file"]

LENGTH: Final = struct.Struct(">Q")
"""The header between a parent and its children."""

_CHUNK: Final = 1 << 20


class FrameRefused(Exception):
    """The other side has sent an invalid or too large message."""


class FrameBuffer:
    """Splits received bytes into the bodies of frames."""

    __slots__ = ("_header", "_largest", "_received")

    def __init__(self, largest: int | None = None, header: struct.Struct = LENGTH) -> None:
        self._largest, self._header = largest, header
        self._received = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._received)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes; FrameRefused if one is too large."""
        received, head = self._received, self._header.size
        if not received and len(data) >= head:  # one whole frame, the usual case
            (length,) = self._header.unpack_from(data)
            if len(data) == head + length and (self._largest is None or length <= self._largest):
                return [data[head:]]
        received += data
        frames: list[bytes] = []
        start = 0
        while len(received) - start >= head:
            (length,) = self._header.unpack_from(received, start)
            if self._largest is not None and length > self._largest:
                received.clear()  # what follows is no frame
                raise FrameRefused(f"a message of {length} bytes")
            end = start + head + length
            if len(received) < end:
                break
            frames.append(bytes(memoryview(received)[start + head : end]))
            start = end
        if start:
            del received[:start]
        return frames


def frame(*parts: bytes, header: struct.Struct = LENGTH) -> bytes:
    """A frame whose body is these parts."""
    return b"".join((header.pack(sum(map(len, parts))), *parts))


def receive_frame(connection: socket.socket) -> bytes:
    """Receive a frame's body, blocking; EOFError at the end of the stream."""
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    return _exactly(connection, length)


def receive_frame_and_file(connection: socket.socket) -> tuple[bytes, int | None]:
    """As `receive_frame`, with the descriptor that came with the frame, if any."""
    data, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    if not data:
        raise EOFError
    (length,) = LENGTH.unpack(data + _exactly(connection, LENGTH.size - len(data)))
    return _exactly(connection, length), next(iter(descriptors), None)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = connection.recv(min(length, _CHUNK)) if length else b""
    if len(data) == length:
        return data
    received = bytearray(data)
    while len(received) < length:
        if not data:
            raise EOFError
        data = connection.recv(min(length - len(received), _CHUNK))
        received += data
    return bytes(received)
