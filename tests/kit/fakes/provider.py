"""A provider of an HTTP API on the loopback, which answers what a test tells it to."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

__all__ = ["Asked", "Provider"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    body: bytes
    at: float
    """On the monotonic clock."""


class Provider:
    """Answers 200, except where something else comes first.

    async with Provider() as provider:
        provider.answer(429, {"Retry-After": "1"})
        await client.get(provider.url)
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: deque[tuple[int, dict[str, str]]] = deque()
        self.usual: tuple[int, dict[str, str]] = (200, {})
        self.url = ""

    def answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Answer so once, after what was told before."""
        self._answers.append((status, headers or {}))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode("latin-1").split(" ")
                await self._note(method, path, reader)
                status, headers = self._answers.popleft() if self._answers else self.usual
                body = b"{}"
                told = {**headers, "Content-Length": str(len(body))}
                head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
                head += [f"{name}: {value}" for name, value in told.items()]
                writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client has gone
        finally:
            writer.close()

    async def _note(self, method: str, path: str, reader: asyncio.StreamReader) -> None:
        headers: dict[str, str] = {}
        while (line := await reader.readline()) not in {b"\r\n", b""}:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.asked.append(Asked(method, path, body, time.monotonic()))
