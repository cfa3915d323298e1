"""Lines of standard input, read as they arrive."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

__all__ = ["LongLine", "read_lines"]

STANDARD_INPUT = 0
_CHUNK = 256 * 1024
_AHEAD = 2
"""Chunks that are read in advance."""


class LongLine:
    """In the place of a line that exceeds the maximum length; its bytes are discarded."""


async def read_lines(longest: int) -> AsyncIterator[list[bytes | LongLine]]:
    """Lines without their line ends, in lists of those that were read together."""
    splitter = _Splitter(longest)
    async for chunk in _chunks():
        if lines := splitter.feed(chunk):
            yield lines
    if lines := splitter.end():
        yield lines


async def _chunks() -> AsyncIterator[bytes]:
    # In a thread of our own: a file cannot be polled, and a read that waits for a person must not
    # keep the process from ending, as one in the loop's executor would.
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)

    def read() -> None:
        chunk = b" "
        while chunk:
            room.acquire()
            try:
                chunk = os.read(STANDARD_INPUT, _CHUNK)
            except OSError:
                chunk = b""  # it was closed from the start
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(queue.put_nowait, chunk)

    threading.Thread(target=read, name="penstock standard input", daemon=True).start()
    while chunk := await queue.get():
        room.release()
        yield chunk


class _Splitter:
    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | LongLine]:
        *whole, rest = chunk.split(b"\n")
        lines: list[bytes | LongLine] = []
        for part in whole:
            self._add(part)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[bytes | LongLine]:
        """The last line, if it has no line end."""
        return [self._take()] if self._size else []

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._longest:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _take(self) -> bytes | LongLine:
        line = LongLine() if self._size > self._longest else b"".join(self._parts).rstrip(b"\r")
        self._parts.clear()
        self._size = 0
        return line
