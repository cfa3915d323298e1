"""What every store of vectors can do.

A point belongs to a *document* and to one of its *generations*. The generation is a fence: a write
never replaces a point of a later one, so a worker that was taken for dead cannot undo newer work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

__all__ = ["CollectionInfo", "Hit", "Point", "VectorHealth", "VectorStore"]


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One vector with its payload."""

    id: str
    """A UUID, as text."""
    vector: bytes
    """Little-endian float32."""
    payload: dict[str, Any]
    """Any fields but `document` and `generation`, which the store adds."""


class Hit(msgspec.Struct, frozen=True, array_like=True):
    """A point that was found."""

    id: str
    score: float
    """Cosine similarity: 1 for the same direction."""
    document: str
    generation: int
    payload: dict[str, Any]


class CollectionInfo(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dimension: int
    points: int


class VectorHealth(msgspec.Struct, frozen=True, array_like=True):
    ok: bool
    detail: str
    """The engine and where it is; if not ok, why."""


class VectorStore(Protocol):
    """Collections of points. Made by `open_vectors`. Every write may be repeated.

    StoreAway, StoreFull or StoreMismatch for what it cannot do. A write is safe against the death
    of any process when it returns.
    """

    async def open(self) -> None:
        """Be ready for use. May come twice. Does not wait for a server that is away."""
        ...

    async def close(self) -> None: ...

    async def health(self) -> VectorHealth:
        """Whether it answers; never raises, and waits no longer than two seconds."""
        ...

    async def create(self, collection: str, dimension: int) -> None:
        """Make a collection unless it exists; StoreMismatch if its dimension is another."""
        ...

    async def drop(self, collection: str) -> None:
        """Remove a collection with all its points, if it exists."""
        ...

    async def collections(self) -> list[CollectionInfo]: ...

    async def describe(self, collection: str) -> CollectionInfo | None:
        """None if it does not exist."""
        ...

    async def upsert(
        self, collection: str, document: str, generation: int, points: Sequence[Point]
    ) -> None:
        """Add points, or replace those of the same ids that are not of a later generation."""
        ...

    async def delete_before(self, collection: str, document: str, generation: int) -> None:
        """Remove a document's points of earlier generations."""
        ...

    async def delete_generation(self, collection: str, document: str, generation: int) -> None:
        """Remove a document's points of one generation."""
        ...

    async def vectors(self, collection: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The stored vectors by their ids; empty if the collection does not exist."""
        ...

    async def search(
        self,
        collection: str,
        vector: bytes,
        *,
        limit: int,
        documents: Sequence[str] = (),
        threshold: float | None = None,
    ) -> list[Hit]:
        """The nearest points, best first: of these documents, and with at least this score."""
        ...

    async def counts(self, collection: str, documents: Sequence[str]) -> dict[str, int]:
        """How many points each of these documents has."""
        ...

    async def alias(self, name: str, collection: str) -> None:
        """Point an alias to a collection, atomically."""
        ...

    async def aliases(self) -> Mapping[str, str]: ...
