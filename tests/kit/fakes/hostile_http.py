"""An HTTP server on the loopback whose answers are meant to harm those who read them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from typing import Final, Self

__all__ = ["ANSWERS", "HostileServer"]

_PAGE: Final = b" " * 65_536
_JSON: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def _chunked(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _bomb() -> bytes:
    """A gigabyte of spaces in a megabyte."""
    return gzip.compress(_PAGE * 16, 9) * 1024


class HostileServer:
    """Answers every request in one way, one of ANSWERS.

    async with HostileServer("endless") as server: httpx.get(server.url)
    """

    def __init__(self, answer: str, *, status: int = 307, location: str = "") -> None:
        self.answer, self.status, self.location = answer, status, location
        self.url = ""
        self.sent = 0
        """Bytes of bodies."""
        self.headers: list[bytes] = []
        """Of the requests, as they came."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.headers.append(await reader.readuntil(b"\r\n\r\n"))
            await ANSWERS[self.answer](self, writer)
        self._tasks.discard(task)
        writer.close()

    async def _send(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        writer.write(piece)
        self.sent += len(piece)
        await writer.drain()

    async def compressed(self, writer: asyncio.StreamWriter) -> None:
        body = _bomb()
        head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(_JSON + head)
        await self._send(writer, body)
        await asyncio.Event().wait()

    async def endless(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        for piece in repeat(_chunked(_PAGE)):
            await self._send(writer, piece)

    async def until_closed(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_JSON + b"Connection: close\r\n\r\n")
        for piece in repeat(_PAGE):
            await self._send(writer, piece)

    async def too_long(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_JSON + b"Content-Length: 1000000000000\r\n\r\n")
        for piece in repeat(_PAGE):
            await self._send(writer, piece)

    async def in_small_pieces(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        for piece in repeat(_chunked(b"  ") * 1_000):
            await self._send(writer, piece)

    async def drip(self, writer: asyncio.StreamWriter) -> None:
        """A byte now and then: each comes before a timeout between two bytes."""
        writer.write(_JSON + b"Content-Length: 1000000\r\n\r\n")
        while True:
            await self._send(writer, b" ")
            await asyncio.sleep(0.02)

    async def elsewhere(self, writer: asyncio.StreamWriter) -> None:
        """Redirects to `location`, with `status`."""
        head = f"HTTP/1.1 {self.status} Elsewhere\r\nLocation: {self.location}\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        await writer.drain()

    async def numbers(self, writer: asyncio.StreamWriter) -> None:
        """Half a megabyte of the shortest numbers, many times as much as objects."""
        body = b'{"data": [{"embedding": [%b1]}]}' % (b"1," * 250_000)
        writer.write(_JSON + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        await self._send(writer, body)


ANSWERS: Final[dict[str, Callable[..., object]]] = {
    name: getattr(HostileServer, name)
    for name in (
        *("compressed", "endless", "until_closed", "too_long", "in_small_pieces", "drip"),
        *("numbers", "elsewhere"),
    )
}
"""By name: what they send."""
