"""Embedders: the protocol, calls that serve many documents at once, and vectors as bytes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.errors import DocumentRefused, EmbedderFailed, NotOpen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MOST_CHARACTERS", "Batcher", "Embedder", "Embedding", "ThreadedEmbedder"]
__all__ += ["unit_vectors", "well_formed"]


class Embedding(NamedTuple):
    """Vectors for texts, in their order."""

    vectors: list[bytes]
    """Little-endian float32, of length 1."""
    tokens: int
    """Tokens that the model counted, or an estimate."""
    cached: int = 0
    """Number of vectors from the cache."""


class Embedder(Protocol):
    """Turns texts into vectors; EmbedderFailed for a failure that may pass."""

    @property
    def model(self) -> str:
        """Name and revision; a collection has vectors of one model only."""
        ...

    @property
    def dimension(self) -> int: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Embedding: ...


_TEXT_SHOWN = 40


def unit_vectors(rows: NDArray[np.floating[Any]], texts: Sequence[str]) -> list[bytes]:
    """Each row, one for each of the texts, as little-endian float32 of length 1.

    EmbedderFailed for NaN and infinity; DocumentRefused for a zero row, which is equally near to
    everything: the same text would get the same row again.
    """
    import numpy as np  # noqa: PLC0415  an extra

    wide = rows.astype(np.float64)  # the squares of large numbers do not fit into less
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    if not np.isfinite(lengths).all():
        raise EmbedderFailed(
            "the embedder returned a vector with NaN or infinity", "ERR_EMBEDDER_ANSWER"
        )
    if not lengths.all():
        text = texts[int(np.flatnonzero(lengths == 0)[0])]
        raise DocumentRefused(
            f"the embedder finds nothing in the text {text[:_TEXT_SHOWN]!r}: its vector is zero",
            "ERR_EMBEDDER_REFUSED",
        )
    units = (wide / lengths[:, None]).astype("<f4")
    return [row.tobytes() for row in units]


def well_formed(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


class ThreadedEmbedder(ABC):
    """Base of embedders that load a model and call it in a thread of their own, call by call."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._loaded: Any = None

    async def open(self) -> None:
        """Load the model; ConfigError if that is impossible. May come twice."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-embedder")
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Drop the model, and end the thread after a call under way. May come twice."""
        thread, self._thread, self._loaded = self._thread, None, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)

    async def embed(self, texts: Sequence[str]) -> Embedding:
        if self._thread is None or self._loaded is None:
            raise NotOpen("the embedder is not open: call open() first")
        if not texts:
            return Embedding([], 0)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._embed, self._loaded, list(texts))

    @abstractmethod
    def _load(self) -> None:
        """Set `_loaded`, unless it is set. Runs in the thread."""

    @abstractmethod
    def _embed(self, loaded: Any, texts: list[str]) -> Embedding:
        """Call the model. Runs in the thread."""


MOST_CHARACTERS: Final = 400_000
"""Of one call to the embedder: some 100,000 tokens, within the limits of common APIs. A longer text
is sent alone."""
# Refusals that do not depend on the texts: a call for each document would be refused too.
_SAME_FOR_ALL: Final = frozenset({"ERR_EMBEDDER_FORBIDDEN", "ERR_DIMENSION_MISMATCH"})


class Batcher:
    """An embedder that combines concurrent requests into fewer, larger calls.

        batcher = Batcher(embedder, most=256, wait_s=0.002, at_once=4)
        embeddings = await asyncio.gather(*(batcher.embed(texts) for texts in documents))

    - `most`: maximum texts of one call; equal ones are sent once.
    - `wait_s`: how long a text waits for others while another call is under way. Otherwise all
      requests of the same turn of the event loop are sent together.
    - `at_once`: maximum number of concurrent calls.

    Callers take turns, so a long document does not hold up a short one. A failed call fails all
    callers with texts in it. If it is refused for its texts, it is repeated for each document: one
    bad text fails only its own document. Of several users the last one to close it ends it.
    """

    def __init__(
        self,
        embedder: Embedder,
        most: int,
        wait_s: float,
        *,
        at_once: int = 1,
        most_characters: int = MOST_CHARACTERS,
    ) -> None:
        self._embedder, self._most, self._wait_s = embedder, most, wait_s
        self._at_once, self._most_characters = at_once, most_characters
        self._users, self._changing = 0, asyncio.Lock()
        self._waiting: deque[_Asked] = deque()
        self._running: dict[asyncio.Task[None], _Batch] = {}
        self._next_turn: asyncio.Handle | None = None

    @property
    def model(self) -> str:
        return self._embedder.model

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    async def open(self) -> None:
        """Open the embedder for the first user."""
        async with self._changing:
            if not self._users:
                await self._embedder.open()
            self._users += 1

    async def close(self) -> None:
        """Close the embedder after the last user; pending requests get EmbedderFailed."""
        async with self._changing:
            if not self._users:
                return
            self._users -= 1
            if self._users:
                return
            self._turn_at(None)
            for asked in self._waiting:
                asked.fail(_closed())
            self._waiting.clear()
            if running := list(self._running):
                for task in running:
                    task.cancel()
                await asyncio.wait(running)
            await self._embedder.close()

    async def embed(self, texts: Sequence[str]) -> Embedding:
        """Vectors of the texts; `tokens` and `cached` are their share of the calls."""
        if not self._users:
            raise NotOpen("the embedder is not open: call open() first")
        if not texts:
            return Embedding([], 0)
        asked = _Asked(texts)
        self._waiting.append(asked)
        if not self._running:
            if self._next_turn is None:
                self._next_turn = asyncio.get_running_loop().call_soon(self._turn)
        elif len(self._running) < self._at_once:
            self._turn()
        try:
            return await asked.answer
        except BaseException:
            self._forget(asked)
            raise

    def _turn(self) -> None:
        """Send the calls that are due; schedule the next turn for the rest."""
        self._turn_at(None)
        while self._waiting and len(self._running) < self._at_once:
            due = self._waiting[0].since + self._wait_s
            if self._running and not self._is_full() and time.monotonic() < due:
                self._turn_at(due)
                return
            batch = self._gathered()
            task = asyncio.get_running_loop().create_task(self._run(batch), name="penstock embed")
            self._running[task] = batch
            task.add_done_callback(self._ended)

    def _turn_at(self, due: float | None) -> None:
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if due is not None:
            loop, left_s = asyncio.get_running_loop(), due - time.monotonic()
            self._next_turn = loop.call_later(left_s, self._turn)

    def _is_full(self) -> bool:
        return sum(len(asked.texts) - asked.sent for asked in self._waiting) >= self._most

    def _gathered(self) -> _Batch:
        """Take the texts of one call, a share of each caller's in turn."""
        batch: _Batch = {}
        share = max(1, self._most // len(self._waiting))
        room, characters = self._most, self._most_characters
        while self._waiting and room:
            asked = self._waiting[0]
            end = min(len(asked.texts), asked.sent + min(share, room))
            for at in range(asked.sent, end):
                characters -= len(asked.texts[at])
                if characters < 0 and batch:
                    return batch
                batch.setdefault(asked, []).append(at)
                asked.sent, room = at + 1, room - 1
            self._waiting.popleft()
            if asked.sent < len(asked.texts):
                self._waiting.append(asked)
        return batch

    async def _run(self, batch: _Batch) -> None:
        try:
            await self._ask(batch)
        except DocumentRefused as error:
            if len(batch) == 1 or error.error_code in _SAME_FOR_ALL:
                _fail(batch, error)
                return
            for asked, places in batch.items():
                if not asked.answer.done():
                    await self._run({asked: places})
        except Exception as error:  # noqa: BLE001  it is raised in the callers
            _fail(batch, error)

    async def _ask(self, batch: _Batch) -> None:
        asked_for = (asked.texts[at] for asked, places in batch.items() for at in places)
        texts = {text: row for row, text in enumerate(dict.fromkeys(asked_for))}
        vectors, tokens, cached = await self._embedder.embed(list(texts))
        if len(vectors) != len(texts):
            raise EmbedderFailed(
                f"the embedder gave {len(vectors)} vectors for {len(texts)} texts",
                "ERR_EMBEDDER_ANSWER",
            )
        sizes = [sum(len(asked.texts[at]) for at in places) for asked, places in batch.items()]
        counts = [len(places) for places in batch.values()]
        parts = zip(_divided(tokens, sizes), _divided(cached, counts), strict=True)
        for (asked, places), (own_tokens, own_cached) in zip(batch.items(), parts, strict=True):
            asked.take({at: vectors[texts[asked.texts[at]]] for at in places})
            asked.tokens += own_tokens
            asked.cached += own_cached
            asked.finish()

    def _ended(self, task: asyncio.Task[None]) -> None:
        batch = self._running.pop(task)
        if task.cancelled():
            _fail(batch, _closed())  # unless they have gone themselves
        for asked in batch:
            if asked.answer.done() and asked.sent < len(asked.texts):
                self._forget(asked)  # a part of it has failed: the rest is of no use
        self._turn()

    def _forget(self, asked: _Asked) -> None:
        """Drop the texts of a cancelled caller; cancel calls without callers."""
        if asked in self._waiting:
            self._waiting.remove(asked)
        for task, batch in self._running.items():
            if asked in batch and all(one.answer.done() for one in batch):
                task.cancel()


class _Asked:
    """Texts of one caller, and its answer."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.sent = 0
        """How many of them have gone to the embedder."""
        self.tokens = self.cached = 0
        self.since = time.monotonic()
        self.answer: asyncio.Future[Embedding] = asyncio.get_running_loop().create_future()
        self._vectors: dict[int, bytes] = {}

    def take(self, vectors: dict[int, bytes]) -> None:
        self._vectors |= vectors

    def finish(self) -> None:
        """Answer when all vectors are there."""
        if len(self._vectors) == len(self.texts) and not self.answer.done():
            ordered = [self._vectors[at] for at in range(len(self.texts))]
            self.answer.set_result(Embedding(ordered, self.tokens, self.cached))

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


_Batch = dict[_Asked, list[int]]
"""Callers, and which of their texts go."""


def _fail(batch: _Batch, error: Exception) -> None:
    for asked in batch:
        asked.fail(error)


def _closed() -> EmbedderFailed:
    return EmbedderFailed("the embedder was closed meanwhile", "ERR_EMBEDDER_AWAY")


def _divided(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts of a total by weight; together they are the total."""
    parts: list[int] = []
    weight, given, whole = 0, 0, max(1, sum(weights))
    for own in weights:
        weight += own
        parts.append(total * weight // whole - given)
        given += parts[-1]
    return parts
