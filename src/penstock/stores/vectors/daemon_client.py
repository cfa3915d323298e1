"""Vectors in the data directory, through the daemon that owns the engine (see `daemon.py`)."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.errors import NotOpen, StoreAway, StoreError, StoreMismatch
from penstock.processes.frames import FrameRefused
from penstock.processes.home import NotOurs
from penstock.processes.peer import open_own_connection
from penstock.settings import VectorSettings
from penstock.stores.vectors import requests as ask
from penstock.stores.vectors.daemon_process import DaemonProcess
from penstock.stores.vectors.port import CollectionInfo, Hit, Point, VectorHealth

__all__ = ["EmbeddedVectors"]

_HEALTH_S = 1.9
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
_replies = msgspec.msgpack.Decoder(ask.VectorReply)


class _Lost(Exception):
    """The daemon ended before it replied."""


class EmbeddedVectors:
    """A store of vectors in a directory that any number of processes may use at once.

    Requests share one connection without waiting for each other. When the daemon dies, the next
    request starts another one, and requests without a reply are repeated.
    """

    def __init__(self, directory: Path, settings: VectorSettings) -> None:
        self._directory, self._settings = directory, settings
        self._daemon = DaemonProcess(directory, settings)
        self._ids = itertools.count(1)
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._owner: int | None = None

    async def open(self) -> None:
        if self._owner == os.getpid():
            return
        # Everything is made again: in a forked child, or after `close` on another loop.
        self._daemon = DaemonProcess(self._directory, self._settings)
        self._connection, self._connecting = None, asyncio.Lock()
        self._owner = os.getpid()

    async def close(self) -> None:
        self._owner = None
        self._daemon.give_up()
        if self._connection is not None:
            self._connection.hang_up()
            self._connection = None

    async def health(self) -> VectorHealth:
        try:
            async with asyncio.timeout(_HEALTH_S):
                pid = await self._ask(ask.Ping(next(self._ids)), int)
        except TimeoutError:
            return VectorHealth(False, f"Qdrant's engine in {self._daemon.home} does not answer")
        except (StoreError, NotOpen) as error:
            return VectorHealth(False, str(error))
        return VectorHealth(True, f"Qdrant's engine in {self._daemon.home}, process {pid}")

    async def create(self, collection: str, dimension: int) -> None:
        await self._ask(ask.Create(next(self._ids), collection, dimension), None)

    async def drop(self, collection: str) -> None:
        await self._ask(ask.Drop(next(self._ids), collection), None)

    async def collections(self) -> list[CollectionInfo]:
        return await self._ask(ask.Collections(next(self._ids)), list[CollectionInfo])

    async def describe(self, collection: str) -> CollectionInfo | None:
        return await self._ask(ask.Describe(next(self._ids), collection), CollectionInfo | None)

    async def upsert(
        self, collection: str, document: str, generation: int, points: Sequence[Point]
    ) -> None:
        if points:
            request = ask.Upsert(next(self._ids), collection, document, generation, list(points))
            await self._ask(request, None)

    async def delete_before(self, collection: str, document: str, generation: int) -> None:
        request = ask.DeleteBefore(next(self._ids), collection, document, generation)
        await self._ask(request, None)

    async def delete_generation(self, collection: str, document: str, generation: int) -> None:
        request = ask.DeleteGeneration(next(self._ids), collection, document, generation)
        await self._ask(request, None)

    async def vectors(self, collection: str, ids: Sequence[str]) -> dict[str, bytes]:
        if not ids:
            return {}
        return await self._ask(
            ask.Vectors(next(self._ids), collection, list(ids)), dict[str, bytes]
        )

    async def search(
        self,
        collection: str,
        vector: bytes,
        *,
        limit: int,
        documents: Sequence[str] = (),
        threshold: float | None = None,
    ) -> list[Hit]:
        request = ask.Search(next(self._ids), collection, vector, limit, list(documents), threshold)
        return await self._ask(request, list[Hit])

    async def counts(self, collection: str, documents: Sequence[str]) -> dict[str, int]:
        request = ask.CountPoints(next(self._ids), collection, list(documents))
        return await self._ask(request, dict[str, int])

    async def alias(self, name: str, collection: str) -> None:
        await self._ask(ask.Alias(next(self._ids), name, collection), None)

    async def aliases(self) -> Mapping[str, str]:
        return await self._ask(ask.Aliases(next(self._ids)), dict[str, str])

    async def _ask(self, request: ask.Request, kind: Any) -> Any:
        """Send a request, again to the next daemon if one ends before it replies."""
        frame = _framed(request)
        deadline, pause_s = 0.0, _SHORTEST_PAUSE_S
        while True:
            if self._owner != os.getpid():
                raise NotOpen("the store of vectors is not open in this process")
            connection = self._connection
            if connection is None or connection.lost:
                connection = await self._connected()
            try:
                answer = await connection.ask(request.id, frame)
            except _Lost:
                now = asyncio.get_running_loop().time()
                deadline = deadline or now + self._settings.start_timeout_s
                if now > deadline:
                    raise StoreAway(
                        f"the engine of the vectors in {self._daemon.home} does not stay"
                    ) from None
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if answer.error:
                raise ask.error_of(answer.error, msgspec.msgpack.decode(answer.value, type=str))
            return msgspec.msgpack.decode(answer.value, type=kind) if kind else None

    async def _connected(self) -> _Connection:
        async with self._connecting:
            while True:
                if self._connection is not None and not self._connection.lost:
                    return self._connection
                try:
                    connection = await self._connect()
                except NotOurs as error:
                    raise StoreAway(f"vectors in {self._daemon.home}: {error.strerror}") from None
                except OSError:
                    await asyncio.to_thread(self._daemon.reach)
                    continue
                if self._owner is None:
                    connection.hang_up()
                    raise NotOpen("the store of vectors was closed")
                self._connection = connection

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(
            lambda: _Connection(self._settings.answer_s, self._daemon.end_frozen),
            sock=await open_own_connection(loop, self._daemon.socket),
        )
        return connection


class _Connection(asyncio.Protocol):
    """One connection to a daemon, and the requests that wait for replies.

    A daemon that sends nothing for `answer_s` although requests wait is frozen: `end_frozen` is
    called in a thread. The requests are lost then, and repeated.
    """

    def __init__(self, answer_s: float, end_frozen: Callable[[], None]) -> None:
        self._answer_s, self._end_frozen = answer_s, end_frozen
        self._loop = asyncio.get_running_loop()
        self._frames = ask.frame_buffer()
        self._requested: dict[int, asyncio.Future[ask.VectorReply]] = {}
        self._received_at = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._next_check: asyncio.TimerHandle | None = None
        self.lost = False

    async def ask(self, request_id: int, frame: bytes) -> ask.VectorReply:
        if self.lost or self._transport is None:
            raise _Lost
        if not self._requested:
            self._received_at = self._loop.time()
        answer = self._requested[request_id] = self._loop.create_future()
        self._transport.write(frame)
        try:
            return await answer
        finally:
            self._requested.pop(request_id, None)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: uvloop's transports are not of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        self._check_later()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lost = True
        if self._next_check is not None:
            self._next_check.cancel()
        for answer in self._requested.values():
            if not answer.done():
                answer.set_exception(_Lost())
        self._requested.clear()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        try:
            for frame in self._frames.feed(data):
                answer = _replies.decode(frame)
                waiting = self._requested.get(answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (FrameRefused, msgspec.MsgspecError):
            self.hang_up()

    def _check_later(self) -> None:
        self._next_check = self._loop.call_later(self._answer_s / 4, self._check_silence)

    def _check_silence(self) -> None:
        if not self._requested or self._loop.time() - self._received_at < self._answer_s:
            self._check_later()
            return
        ending = self._loop.run_in_executor(None, self._end_frozen)
        ending.add_done_callback(self._on_frozen_ended)

    def _on_frozen_ended(self, ending: asyncio.Future[None]) -> None:
        with suppress(OSError, asyncio.CancelledError):
            ending.result()
        if not self.lost:
            self._check_later()


def _framed(request: ask.Request) -> bytes:
    try:
        frame = ask.framed(request)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise StoreMismatch(f"this cannot be stored: {error}") from None
    if len(frame) > ask.LARGEST_FRAME:
        raise StoreMismatch(f"{len(frame)} bytes are too many for one request")
    return frame
