"""The worker thread of the vector daemon: it alone uses the engine, and runs requests in order.

Adjacent upserts to one collection become one write of the engine. Once a second, after writes,
everything is flushed to the disk, so a crash of the machine costs no more than that; against the
death of the process the engine's log is enough.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import msgspec

from penstock.errors import StoreError
from penstock.stores.vectors import requests as ask
from penstock.stores.vectors.edge import EdgeEngine
from penstock.stores.vectors.optimizing import OptimizeProcess

__all__ = ["DaemonWorker", "QueuedRequest"]

logger = logging.getLogger(__name__)

FLUSH_S = 1.0
# A collection is optimized when no request has come for this long: none should have to wait.
QUIET_S = 5.0
_TIDYING_POLL_S = 0.1
_MOST_POINTS_AT_ONCE = 1_000
_PANIC = 70

_HANDLERS: dict[type[ask.Request], Callable[[EdgeEngine, Any], Any]] = {
    ask.Vectors: lambda engine, r: engine.vectors(r.collection, r.ids),
    ask.DeleteBefore: lambda engine, r: engine.delete_before(
        r.collection, r.document, r.generation
    ),
    ask.DeleteGeneration: lambda engine, r: engine.delete_generation(
        r.collection, r.document, r.generation
    ),
    ask.Search: lambda engine, r: engine.search(
        r.collection, r.vector, r.limit, r.documents, r.threshold
    ),
    ask.CountPoints: lambda engine, r: engine.counts(r.collection, r.documents),
    ask.Describe: lambda engine, r: engine.describe(r.collection),
    ask.Collections: lambda engine, _: engine.collections(),
    ask.Create: lambda engine, r: engine.create(r.collection, r.dimension),
    ask.Drop: lambda engine, r: engine.drop(r.collection),
    ask.Alias: lambda engine, r: engine.alias(r.name, r.target),
    ask.Aliases: lambda engine, _: engine.aliases(),
}


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request, and the function that sends its reply, called in the worker's thread."""

    request: ask.Request
    reply: Callable[[bytes], None]


class DaemonWorker:
    """Runs requests until it is stopped."""

    def __init__(self, directory: Path, still_ours: Callable[[], bool]) -> None:
        self._engine = EdgeEngine(directory)
        self._still_ours = still_ours
        self._waiting: deque[QueuedRequest] = deque()
        self._news = Condition()
        self._stopping = False
        self._flush_at: float | None = None
        self._busy_at = time.monotonic()
        # A collection that is being optimized, and the requests that wait for it.
        self._tidying: tuple[str, OptimizeProcess] | None = None
        self._held: list[QueuedRequest] = []
        self._thread = Thread(target=self._run, name="engine")
        self._thread.start()

    def put(self, queued: list[QueuedRequest]) -> None:
        with self._news:
            self._waiting.extend(queued)
            self._news.notify()

    def stop(self) -> None:
        """Flush everything and end. Requests that still wait get no reply."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (queued := self._next()) is not None:
                for run in _runs(queued):
                    self._do(run)
                self._maintain()
            if self._tidying:
                self._tidying[1].stop()
            if self._still_ours():
                self._engine.close()
        except BaseException:
            # The engine has panicked, or we have: its memory cannot be trusted any more, its log
            # can. No reply has been sent for what is lost.
            logger.exception("the engine's thread has ended")
            os._exit(_PANIC)

    def _next(self) -> list[QueuedRequest] | None:
        """Requests that wait; an empty list if there is other work; None at the end."""
        with self._news:
            if not self._waiting and not self._stopping:
                self._news.wait(self._rest_s())
            if self._stopping:
                return None
            queued = list(self._waiting)
            self._waiting.clear()
        if queued:
            self._busy_at = time.monotonic()
        return queued

    def _rest_s(self) -> float | None:
        now = time.monotonic()
        ends: list[float] = []
        if self._flush_at is not None:
            ends.append(self._flush_at - now)
        if self._tidying:
            ends.append(_TIDYING_POLL_S)
        elif any(self._engine.wanting_tidying()):
            ends.append(self._busy_at + QUIET_S - now)
        return max(0.0, min(ends)) if ends else None

    def _do(self, run: list[QueuedRequest]) -> None:
        if self._tidying and self._is_held(run[0].request):
            self._held += run
            return
        if isinstance(run[0].request, ask.Upsert):
            writes = [one.request for one in run]
            outcomes = self._engine.upsert(writes)  # pyright: ignore[reportArgumentType]
            self._will_flush()
            for one, outcome in zip(run, outcomes, strict=True):
                self._answer(one, outcome)
            return
        for one in run:
            try:
                outcome = _HANDLERS[type(one.request)](self._engine, one.request)
            except StoreError as error:
                outcome = error
            self._answer(one, outcome)
        self._will_flush()

    def _answer(self, one: QueuedRequest, outcome: Any) -> None:
        if isinstance(outcome, StoreError):
            if not self._still_ours():
                return  # the directory was removed; the user sees the connection close
            code, value = ask.error_code(outcome), str(outcome)
        else:
            code, value = "", outcome
        answer = ask.VectorReply(one.request.id, code, msgspec.Raw(ask.encode(value)))
        one.reply(ask.framed(answer))

    def _will_flush(self) -> None:
        if self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_S

    def _maintain(self) -> None:
        """Flush and optimize when due."""
        if self._tidying and (code := self._tidying[1].ended()) is not None:
            self._resume(self._tidying[0], code)
        now = time.monotonic()
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at = None
            try:
                self._engine.flush()
            except StoreError as error:
                logger.error("not on the disk yet: %s", error)  # noqa: TRY400  no trace needed
                self._flush_at = now + FLUSH_S
        if self._tidying:
            return
        quiet = now - self._busy_at >= QUIET_S
        for collection in self._engine.wanting_tidying():
            if quiet or collection.wants_tidying_badly:
                if not self._engine.can_tidy(collection):
                    collection.put_off()
                    continue
                collection.rest()
                shard, points = collection.folder / "shard", collection.info().points
                self._tidying = collection.name, OptimizeProcess(shard, points)
                logger.info("optimizing collection %r", collection.name)
                return

    def _resume(self, name: str, code: int) -> None:
        logger.info("collection %r is optimized, code %d", name, code)
        self._engine.get(name).resume(tidied=code == 0)
        self._tidying = None
        held, self._held = self._held, []
        for run in _runs(held):
            self._do(run)

    def _is_held(self, request: ask.Request) -> bool:
        """Whether it needs the collection that is being optimized."""
        name = getattr(request, "collection", None)
        if name is None or isinstance(request, ask.Describe):
            return False
        collection = self._engine.find(name)
        return collection is not None and collection.resting


def _runs(queued: list[QueuedRequest]) -> Iterator[list[QueuedRequest]]:
    """Group adjacent upserts to one collection; anything else is alone."""
    run: list[QueuedRequest] = []
    points = 0
    for one in queued:
        request = one.request
        if not isinstance(request, ask.Upsert):
            if run:
                yield run
            yield [one]
            run = []
            continue
        if run and (_collection(run[0]) != request.collection or points > _MOST_POINTS_AT_ONCE):
            yield run
            run = []
        if not run:
            points = 0
        run.append(one)
        points += len(request.points)
    if run:
        yield run


def _collection(one: QueuedRequest) -> str | None:
    return getattr(one.request, "collection", None)
