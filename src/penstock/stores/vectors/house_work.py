"""The work of the house: one thread, which alone touches the engine and takes requests in order.

What waits is taken together: neighbouring upserts to one collection become one write of the engine.
Once a second, after writes, everything is brought to the disk, so a crash of the machine costs no
more than that; against the death of the process the engine's log is enough.
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
from penstock.stores.vectors.tidying import Tidying

__all__ = ["Errand", "HouseWork"]

logger = logging.getLogger(__name__)

FLUSH_S = 1.0
# Nobody has to wait for a collection's tidying when nobody has asked for anything for this long.
QUIET_S = 5.0
_TIDYING_POLL_S = 0.1
_MOST_POINTS_AT_ONCE = 1_000
_PANIC = 70

_DOINGS: dict[type[ask.Request], Callable[[EdgeEngine, Any], Any]] = {
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
    ask.Counts: lambda engine, r: engine.counts(r.collection, r.documents),
    ask.Describe: lambda engine, r: engine.describe(r.collection),
    ask.Collections: lambda engine, _: engine.collections(),
    ask.Create: lambda engine, r: engine.create(r.collection, r.dimension),
    ask.Drop: lambda engine, r: engine.drop(r.collection),
    ask.Alias: lambda engine, r: engine.alias(r.name, r.target),
    ask.Aliases: lambda engine, _: engine.aliases(),
}


@dataclass(frozen=True, slots=True)
class Errand:
    """A request, and the sender of its answer, which is called in the work's thread."""

    request: ask.Request
    reply: Callable[[bytes], None]


class HouseWork:
    """Does what it is given, until it is stopped."""

    def __init__(self, directory: Path, still_ours: Callable[[], bool]) -> None:
        self._engine = EdgeEngine(directory)
        self._still_ours = still_ours
        self._waiting: deque[Errand] = deque()
        self._news = Condition()
        self._stopping = False
        self._flush_at: float | None = None
        self._busy_at = time.monotonic()
        # A collection that is being tidied, and what waits for it.
        self._tidying: tuple[str, Tidying] | None = None
        self._held: list[Errand] = []
        self._thread = Thread(target=self._run, name="engine")
        self._thread.start()

    def give(self, errands: list[Errand]) -> None:
        with self._news:
            self._waiting.extend(errands)
            self._news.notify()

    def stop(self) -> None:
        """End, with everything on the disk. What still waits is not done, and not answered."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (errands := self._next()) is not None:
                for run in _runs(errands):
                    self._do(run)
                self._look_after()
            if self._tidying:
                self._tidying[1].stop()
            if self._still_ours():
                self._engine.close()
        except BaseException:
            # The engine has panicked, or we have: what it has in memory cannot be trusted any more,
            # its log can. Nobody was told that his request was done.
            logger.exception("the engine's thread has ended")
            os._exit(_PANIC)

    def _next(self) -> list[Errand] | None:
        """What waits; nothing if there is something else to do; None if it is time to end."""
        with self._news:
            if not self._waiting and not self._stopping:
                self._news.wait(self._rest_s())
            if self._stopping:
                return None
            errands = list(self._waiting)
            self._waiting.clear()
        if errands:
            self._busy_at = time.monotonic()
        return errands

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

    def _do(self, run: list[Errand]) -> None:
        if self._tidying and self._is_held(run[0].request):
            self._held += run
            return
        if isinstance(run[0].request, ask.Upsert):
            writes = [errand.request for errand in run]
            outcomes = self._engine.upsert(writes)  # pyright: ignore[reportArgumentType]
            self._will_flush()
            for errand, outcome in zip(run, outcomes, strict=True):
                self._answer(errand, outcome)
            return
        for errand in run:
            try:
                outcome = _DOINGS[type(errand.request)](self._engine, errand.request)
            except StoreError as error:
                outcome = error
            self._answer(errand, outcome)
        self._will_flush()

    def _answer(self, errand: Errand, outcome: Any) -> None:
        if isinstance(outcome, StoreError):
            if not self._still_ours():
                return  # no wonder; who asked learns it when we hang up
            word, value = ask.word_for(outcome), str(outcome)
        else:
            word, value = "", outcome
        answer = ask.Answer(errand.request.id, word, msgspec.Raw(ask.encode(value)))
        errand.reply(ask.framed(answer))

    def _will_flush(self) -> None:
        if self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_S

    def _look_after(self) -> None:
        """Flush and tidy, if it is time."""
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
                self._tidying = collection.name, Tidying(shard, points)
                logger.info("tidying collection %r", collection.name)
                return

    def _resume(self, name: str, code: int) -> None:
        logger.info("collection %r is tidied, code %d", name, code)
        self._engine.get(name).resume(tidied=code == 0)
        self._tidying = None
        held, self._held = self._held, []
        for run in _runs(held):
            self._do(run)

    def _is_held(self, request: ask.Request) -> bool:
        """Whether it needs the collection that is being tidied."""
        name = getattr(request, "collection", None)
        if name is None or isinstance(request, ask.Describe):
            return False
        collection = self._engine.find(name)
        return collection is not None and collection.resting


def _runs(errands: list[Errand]) -> Iterator[list[Errand]]:
    """Neighbours that can be done as one: upserts to one collection; anything else is alone."""
    run: list[Errand] = []
    points = 0
    for errand in errands:
        request = errand.request
        if not isinstance(request, ask.Upsert):
            if run:
                yield run
            yield [errand]
            run = []
            continue
        if run and (_collection(run[0]) != request.collection or points > _MOST_POINTS_AT_ONCE):
            yield run
            run = []
        if not run:
            points = 0
        run.append(errand)
        points += len(request.points)
    if run:
        yield run


def _collection(errand: Errand) -> str | None:
    return getattr(errand.request, "collection", None)
