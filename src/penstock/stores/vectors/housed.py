"""Vectors in the data directory, through the process that has the engine (see `house.py`)."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.errors import NotOpen, StoreAway, StoreError, StoreMismatch
from penstock.settings import VectorSettings
from penstock.stores.vectors import requests as ask
from penstock.stores.vectors.place import HousePlace
from penstock.stores.vectors.port import CollectionInfo, Hit, Point, VectorHealth

__all__ = ["Housed"]

_HEALTH_S = 1.9
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
_answers = msgspec.msgpack.Decoder(ask.Answer)


class _Lost(Exception):
    """The house has gone before it answered."""


class Housed:
    """A store of vectors in a directory that any number of processes may use at once.

    Requests go over one connection without waiting for each other. When the house dies, the next
    request starts another one, and what got no answer is asked again.
    """

    def __init__(self, directory: Path, settings: VectorSettings) -> None:
        self._directory, self._settings = directory, settings
        self._place = HousePlace(directory, settings)
        self._ids = itertools.count(1)
        self._line: _Line | None = None
        self._connecting = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._owner: int | None = None

    async def open(self) -> None:
        if self._owner == os.getpid():
            return
        # Of its own: in a forked child, or after a `close`, on another loop.
        self._place = HousePlace(self._directory, self._settings)
        self._line, self._watch, self._connecting = None, None, asyncio.Lock()
        self._owner = os.getpid()

    async def close(self) -> None:
        self._owner = None
        self._place.give_up()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        if self._line is not None:
            self._line.hang_up()
            self._line = None

    async def health(self) -> VectorHealth:
        try:
            async with asyncio.timeout(_HEALTH_S):
                pid = await self._ask(ask.Ping(next(self._ids)), int)
        except TimeoutError:
            return VectorHealth(False, f"Qdrant's engine in {self._place.home} does not answer")
        except (StoreError, NotOpen) as error:
            return VectorHealth(False, str(error))
        return VectorHealth(True, f"Qdrant's engine in {self._place.home}, process {pid}")

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
        request = ask.Counts(next(self._ids), collection, list(documents))
        return await self._ask(request, dict[str, int])

    async def alias(self, name: str, collection: str) -> None:
        await self._ask(ask.Alias(next(self._ids), name, collection), None)

    async def aliases(self) -> Mapping[str, str]:
        return await self._ask(ask.Aliases(next(self._ids)), dict[str, str])

    async def _ask(self, request: ask.Request, kind: Any) -> Any:
        """Get an answer, from however many houses it takes."""
        frame = _framed(request)
        patience: _Patience | None = None
        while True:
            if self._owner != os.getpid():
                raise NotOpen("the store of vectors is not open in this process")
            line = self._line
            if line is None or line.lost:
                line = await self._connected()
            try:
                answer = await line.ask(request.id, frame)
            except _Lost:
                patience = patience or _Patience(self._settings.start_timeout_s)
                if await patience.is_over():
                    raise StoreAway(
                        f"the engine of the vectors in {self._place.home} does not stay"
                    ) from None
                continue
            if answer.error:
                raise ask.error_of(answer.error, msgspec.msgpack.decode(answer.value, type=str))
            return msgspec.msgpack.decode(answer.value, type=kind) if kind else None

    async def _connected(self) -> _Line:
        async with self._connecting:
            while True:
                if self._line is not None and not self._line.lost:
                    return self._line
                loop = asyncio.get_running_loop()
                try:
                    _, line = await loop.create_unix_connection(_Line, self._place.socket)
                except OSError:
                    await asyncio.to_thread(self._place.reach)
                    continue
                if self._owner is None:
                    line.hang_up()
                    raise NotOpen("the store of vectors was closed")
                self._line = line
                if self._watch is None or self._watch.done():
                    self._watch = loop.create_task(self._look_out(), name="vectors: look out")

    async def _look_out(self) -> None:
        """End a house that stands still; what waits for it is lost then, and asked again."""
        answer_s = self._settings.answer_s
        while (line := self._line) is not None:
            await asyncio.sleep(answer_s / 4)
            if line.silent_s < answer_s:
                continue
            with suppress(OSError):
                await asyncio.to_thread(self._place.end_frozen)


class _Patience:
    """How long a request is repeated: a house that is killed again and again need not be ours."""

    def __init__(self, seconds: float) -> None:
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._pause_s = _SHORTEST_PAUSE_S

    async def is_over(self) -> bool:
        """Whether it is; if not, after a pause, so that nobody spins."""
        if asyncio.get_running_loop().time() > self._deadline:
            return True
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return False


class _Line(asyncio.Protocol):
    """One connection to a house, and what was asked over it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = ask.Frames()
        self._asked: dict[int, asyncio.Future[ask.Answer]] = {}
        self._heard_at = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self.lost = False

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard although something was asked."""
        return self._loop.time() - self._heard_at if self._asked and not self.lost else 0.0

    async def ask(self, request_id: int, frame: bytes) -> ask.Answer:
        if self.lost or self._transport is None:
            raise _Lost
        if not self._asked:
            self._heard_at = self._loop.time()
        answer = self._asked[request_id] = self._loop.create_future()
        self._transport.write(frame)
        try:
            return await answer
        finally:
            self._asked.pop(request_id, None)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: that of uvloop is one, but not of this class.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lost = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_Lost())
        self._asked.clear()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            for frame in self._frames.feed(data):
                answer = _answers.decode(frame)
                waiting = self._asked.get(answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (ask.FrameRefused, msgspec.MsgspecError):
            self.hang_up()


def _framed(request: ask.Request) -> bytes:
    try:
        frame = ask.framed(request)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise StoreMismatch(f"this cannot be stored: {error}") from None
    if len(frame) > ask.LARGEST_FRAME:
        raise StoreMismatch(f"{len(frame)} bytes are too many for one request")
    return frame
