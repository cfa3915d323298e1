"""A server on the loopback that speaks RESP and answers what a test wants."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import hiredis

__all__ = ["ScriptedServer", "bulks", "slots_of"]

Answer = Callable[[list[str]], bytes | None]


class ScriptedServer:
    """Greets in a mode; any other command is answered by `answer`, or with OK.

    async with ScriptedServer("cluster", answer=lambda command: b"-MOVED 1 127.0.0.2:7000\\r\\n")
    """

    def __init__(
        self,
        mode: str = "standalone",
        *,
        answer: Answer | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.mode, self.answer, self.host, self.tls = mode, answer, host, tls
        self.port = 0
        self.commands: list[list[str]] = []
        self.connections = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
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
        self.connections += 1
        parser = hiredis.Reader(encoding="utf-8")
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    self.commands.append(command)
                    writer.write(self._reply(command))
        self._tasks.discard(task)
        writer.close()

    def _reply(self, command: list[str]) -> bytes:
        if command[0] == "HELLO":
            facts = ("server", "redis", "version", "7.2.0", "mode", self.mode, "role", "master")
            return bulks(*facts)
        answer = self.answer(command) if self.answer else None
        return answer or b"+OK\r\n"


def bulks(*texts: str) -> bytes:
    parts = (f"${len(text)}\r\n{text}\r\n" for text in texts)
    return f"*{len(texts)}\r\n{''.join(parts)}".encode()


def slots_of(host: str, port: int) -> bytes:
    """A cluster in which one node has all slots."""
    return f"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n${len(host)}\r\n{host}\r\n:{port}\r\n".encode()
