"""An OpenAI-compatible API for vectors on the loopback, which misbehaves when told to."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, Self

__all__ = ["EmbeddingApi", "vector_of"]


def vector_of(text: str, dimension: int = 4) -> list[float]:
    """What the API answers for a text: not of length 1, and never zero."""
    digest = blake2b(text.encode(), digest_size=dimension).digest()
    return [byte / 16 + 0.5 for byte in digest]


class EmbeddingApi:
    """Answers `POST /v1/embeddings`, except where something else comes first.

    async with EmbeddingApi() as api:
        api.then(status=429, headers={"Retry-After": "1"})
        api.then(body=b'{"data": [')
        api.then(change=lambda answer: answer["data"].reverse())
    """

    def __init__(self, dimension: int = 4) -> None:
        self.dimension = dimension
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.texts: list[str] = []
        """All that came, in their order."""
        self.connections = 0
        self.before: Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]] | None = None
        """Asked before each answer; what it returns is done instead, as by `then`."""
        self.url = ""
        self._next: deque[dict[str, Any]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()

    def then(self, **what: Any) -> None:
        """Do so once, after what was told before."""
        self._next.append(what)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Be away."""
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # the client has gone, or the test has ended
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        headers: dict[str, str] = {}
        while (field := await reader.readline()) not in {b"\r\n", b""}:
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        asked = json.loads(await reader.readexactly(int(headers["content-length"])))
        assert line.split(b" ")[1].partition(b"?")[0] == b"/v1/embeddings"
        self.asked.append(asked)
        self.headers.append(headers)
        self.texts += asked["input"]
        what = self._next.popleft() if self._next else None
        if what is None and self.before is not None:
            what = await self.before(asked)
        what = what or {}
        if what.get("hang"):
            await asyncio.Event().wait()
        if what.get("cut"):
            return False
        body = what.get("body")
        if body is None:
            answer = self._answer(asked)
            if "change" in what:
                what["change"](answer)
            body = json.dumps(answer).encode()
        elif not isinstance(body, bytes):
            body = json.dumps(body).encode()
        status = what.get("status", 200)
        told = {"Content-Length": str(what.get("length", len(body))), **what.get("headers", {})}
        head = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in told.items())]
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        await writer.drain()
        return not what.get("close")

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        dimension = asked.get("dimensions", self.dimension)
        data = [
            {"object": "embedding", "index": index, "embedding": vector_of(text, dimension)}
            for index, text in enumerate(asked["input"])
        ]
        tokens = 7 * len(data)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": asked["model"], "data": data, "usage": usage}
