"""One collection in Qdrant's in-process engine: a shard in a directory of its own.

Only one process can have it open: the engine locks its write-ahead log. Every call keeps Python's
global lock until it returns, so none may take long; `optimize` does, and is therefore run by a
process of its own, while the shard is closed here (see `optimizing.py`).
"""

from __future__ import annotations

import math
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import qdrant_edge as qdrant

from penstock.errors import StoreAway, StoreError, StoreFull, StoreMismatch
from penstock.stores.vectors.edge_files import LITTLE_ROOM, check_room, write_durably
from penstock.stores.vectors.port import CollectionInfo, Hit, Point
from penstock.stores.vectors.requests import Upsert

__all__ = ["EdgeCollection", "store_error"]

DOCUMENT, GENERATION = "document", "generation"

# An HNSW graph is built for more points than this. Below, each search compares every vector, which
# takes milliseconds and misses none.
_EXACT_BELOW = 50_000
# Least points of the graph that a search compares: more find more, and take longer.
_CANDIDATES = 256
# Fewest points written since the last time for which optimizing is worth it.
_WORTH_TIDYING = 20_000
# The engine compares generations as floats.
_LAST_GENERATION = 2**53
# A successor may start before the kernel has released the lock of a killed process.
_LOCK_S = 5.0
_POLL_S = 0.02
_LARGEST_DIMENSION = 65_536
_LONGEST_TEXT = 500


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Stored beside the shard."""

    dimension: int


class EdgeCollection:
    """One shard, opened when it is needed first."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        facts = msgspec.json.decode((folder / "collection.json").read_bytes(), type=_Facts)
        self.dimension = facts.dimension
        self._vector = struct.Struct(f"<{self.dimension}f")
        self._shard: qdrant.EdgeShard | None = None
        self._points = 0
        self._dirty = False
        self._written = self._written_then = self._written_before()
        self.resting = False
        """Whether another process has the shard: only `info` may be called then."""

    @staticmethod
    def make(folder: Path, dimension: int) -> None:
        """Write an empty collection to a new folder."""
        if not 0 < dimension <= _LARGEST_DIMENSION:
            raise StoreMismatch(f"no vector has {dimension} dimensions")
        folder.mkdir(mode=0o700, parents=True)
        indexed_above_kb = _EXACT_BELOW * dimension * 4 // 1024
        config = qdrant.EdgeConfig(
            vectors=qdrant.EdgeVectorParams(size=dimension, distance=qdrant.Distance.Cosine),
            optimizers=qdrant.EdgeOptimizersConfig(indexing_threshold=max(1, indexed_above_kb)),
        )
        shard = qdrant.EdgeShard.create(str(folder / "shard"), config)
        kinds = qdrant.PayloadSchemaType
        for field, kind in ((DOCUMENT, kinds.Keyword), (GENERATION, kinds.Integer)):
            shard.update(qdrant.UpdateOperation.create_field_index(field, kind))
        shard.flush()
        shard.close()
        facts = _Facts(dimension=dimension)
        write_durably(folder / "collection.json", msgspec.json.encode(facts))

    @property
    def wants_tidying(self) -> bool:
        """Whether it has doubled, or half of it was replaced."""
        return self._written > max(_WORTH_TIDYING, self._points // 2)

    @property
    def wants_tidying_badly(self) -> bool:
        """Whether so much was replaced that requests have to wait, to bound its size."""
        return self._written > 4 * max(_WORTH_TIDYING, self._points)

    def info(self) -> CollectionInfo:
        if not self.resting:
            self._points = self._open().count(qdrant.CountRequest(exact=True))
        return CollectionInfo(self.name, self.dimension, self._points)

    def upsert(self, writes: Sequence[Upsert]) -> list[StoreError | None]:
        """Write each request's points, as if one after the other; an error for each that failed."""
        shard = self._open()
        outcomes: list[StoreError | None] = []
        # One update for each generation, in any order: the later generation wins.
        points: defaultdict[int, list[qdrant.Point]] = defaultdict(list)
        for write in writes:
            try:
                checked = self._checked(write)
            except StoreMismatch as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            points[write.generation] += checked
        for generation, batch in points.items():
            fence = qdrant.Filter(must=[_generation(qdrant.RangeFloat(lte=generation))])
            self._dirty = True
            try:
                shard.update(qdrant.UpdateOperation.upsert_points(batch, fence))
            except Exception as error:  # noqa: BLE001  the engine has no error types
                failure = store_error(error)
                outcomes = [
                    failure if outcome is None and write.generation == generation else outcome
                    for write, outcome in zip(writes, outcomes, strict=True)
                ]
            self._written += len(batch)
        return outcomes

    def delete_before(self, document: str, generation: int) -> None:
        _check_generation(generation)
        self._delete(document, qdrant.RangeFloat(lt=generation))

    def delete_generation(self, document: str, generation: int) -> None:
        _check_generation(generation)
        self._delete(document, qdrant.RangeFloat(gte=generation, lte=generation))

    def vectors(self, ids: Iterable[str]) -> dict[str, bytes]:
        wanted = cast("list[qdrant.PointId]", list(ids))
        records = self._open().retrieve(wanted, with_payload=False, with_vector=True)
        return {
            str(record.id): self._vector.pack(*cast("list[float]", record.vector))
            for record in records
        }

    def search(
        self, vector: bytes, limit: int, documents: Sequence[str], threshold: float | None
    ) -> list[Hit]:
        if limit < 1:
            return []
        found = self._open().query(
            qdrant.QueryRequest(
                limit=limit,
                query=cast("Any", qdrant.Query).Nearest(self._floats(vector).tolist()),
                with_payload=True,
                filter=_of(documents) if documents else None,
                score_threshold=threshold,
                params=qdrant.SearchParams(hnsw_ef=_CANDIDATES),
            )
        )
        return [_hit(point) for point in found]

    def counts(self, documents: Sequence[str]) -> dict[str, int]:
        shard = self._open()
        return {
            document: shard.count(qdrant.CountRequest(exact=True, filter=_of([document])))
            for document in documents
        }

    def flush(self) -> bool:
        """Sync writes to the disk; False if there were none since the last time."""
        if not self._dirty or self._shard is None:
            return False
        self._shard.flush()
        self._dirty = False
        if self._written - self._written_then > max(_WORTH_TIDYING, self._points) // 10:
            # Counting takes longer the more there are: only when much can have changed.
            self._points, self._written_then = self._shard.info().points_count, self._written
        (self.folder / "written").write_bytes(str(self._written).encode())
        return True

    def close(self) -> None:
        """Close the shard; the next call opens it again."""
        if self._shard is not None:
            self.flush()
            self._shard.close()
            self._shard = None

    def rest(self) -> None:
        """Leave the shard to another process."""
        self.info()
        self.close()
        self.resting = True

    def resume(self, *, tidied: bool) -> None:
        """The other process has ended."""
        self.resting = False
        self.put_off()
        if tidied:
            (self.folder / "written").unlink(missing_ok=True)

    def put_off(self) -> None:
        """Try to optimize after as many writes again."""
        self._written = self._written_then = 0

    def _open(self) -> qdrant.EdgeShard:
        if self.resting:
            raise StoreAway(f"collection {self.name!r} is being optimized")
        if self._shard is None:
            self._shard = self._load()
            self._points = self._shard.count(qdrant.CountRequest(exact=True))
        return self._shard

    def _load(self) -> qdrant.EdgeShard:
        check_room(self.folder, LITTLE_ROOM)
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                return qdrant.EdgeShard.load(str(self.folder / "shard"))
            except Exception as error:  # noqa: BLE001
                if "WouldBlock" not in str(error):
                    raise store_error(error, f"collection {self.name!r} cannot be opened") from None
                if time.monotonic() > deadline:
                    raise StoreAway(f"another process has collection {self.name!r}") from None
            time.sleep(_POLL_S)

    def _written_before(self) -> int:
        try:
            return int((self.folder / "written").read_bytes())
        except (OSError, ValueError):
            return 0

    def _checked(self, write: Upsert) -> list[qdrant.Point]:
        _check_generation(write.generation)
        added = {DOCUMENT: write.document, GENERATION: write.generation}
        return [self._point(point, point.payload | added) for point in write.points]

    def _point(self, point: Point, payload: dict[str, Any]) -> qdrant.Point:
        floats = self._floats(point.vector)
        try:
            return qdrant.Point(point.id, cast("list[float]", floats), payload)
        except (ValueError, TypeError, OverflowError) as error:
            raise store_error(error, f"point {point.id!r}") from None

    def _floats(self, vector: bytes) -> memoryview[float]:
        if len(vector) != self._vector.size:
            raise StoreMismatch(
                f"a vector of {len(vector) / 4:g} dimensions; "
                f"those of collection {self.name!r} have {self.dimension}"
            )
        # Without a copy, which would take longer than all the rest.
        floats = memoryview(vector).cast("f")
        if not math.isfinite(sum(floats)):  # as doubles they cannot add up to infinity
            raise StoreMismatch("a vector with a component that is not a number")
        return floats

    def _delete(self, document: str, generations: qdrant.RangeFloat) -> None:
        matching = qdrant.Filter(must=[_document([document]), _generation(generations)])
        self._dirty = True
        self._open().update(qdrant.UpdateOperation.delete_points_by_filter(matching))


def store_error(error: BaseException, what: str = "") -> StoreError:
    """Our error for one of the engine, by its text: it has no types."""
    if isinstance(error, StoreError):
        return error
    text = (f"{what}: {error}" if what else str(error))[:_LONGEST_TEXT]
    lower = text.lower()
    if "no space left" in lower or "os error 28" in lower or "quota exceeded" in lower:
        return StoreFull(f"no room for vectors: {text}")
    if isinstance(error, ValueError | TypeError | OverflowError):
        return StoreMismatch(text)
    return StoreError(text)


def _check_generation(generation: int) -> None:
    if not 0 <= generation < _LAST_GENERATION:
        raise StoreMismatch(f"no document has a generation {generation}")


def _document(documents: Sequence[str]) -> qdrant.FieldCondition:
    return qdrant.FieldCondition(key=DOCUMENT, match=qdrant.MatchAny(any=list(documents)))


def _generation(generations: qdrant.RangeFloat) -> qdrant.FieldCondition:
    return qdrant.FieldCondition(key=GENERATION, range=generations)


def _of(documents: Sequence[str]) -> qdrant.Filter:
    return qdrant.Filter(must=[_document(documents)])


def _hit(point: qdrant.ScoredPoint) -> Hit:
    payload = dict(point.payload or {})
    document, generation = payload.pop(DOCUMENT), payload.pop(GENERATION)
    return Hit(str(point.id), point.score, document, generation, payload)
