"""Qdrant's in-process engine over a directory: its collections and their aliases.

    collections/<name>/   one collection: `collection.json`, and the engine's files in `shard/`
    aliases.json          aliases and their collections
    making/               a collection that is being made or removed

Used by one thread of one process at a time (see `daemon.py`).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.errors import StoreError, StoreMismatch
from penstock.stores.vectors.edge_collection import EdgeCollection, store_error
from penstock.stores.vectors.edge_files import (
    LITTLE_ROOM,
    check_room,
    collection_name,
    folder_name,
    sync_path,
    sync_tree,
    write_durably,
)
from penstock.stores.vectors.port import CollectionInfo, Hit
from penstock.stores.vectors.requests import Upsert

__all__ = ["EdgeEngine"]

logger = logging.getLogger(__name__)

# The size of the engine's files.
_ROOM = 32 * 1024 * 1024
# A vector is in the log, in the store, and with its payload in the indexes.
_COPIES = 4
_BLOCK = 512


class EdgeEngine:
    """All collections of a directory. A write is in the engine's log when it returns."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._folders = directory / "collections"
        self._making = directory / "making"
        self._folders.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._making.exists():
            shutil.rmtree(self._making)
        self._aliases = self._read_aliases()
        self._collections: dict[str, EdgeCollection] = {}
        for folder in sorted(self._folders.iterdir()):
            if not (folder / "collection.json").is_file():
                logger.warning("%s is not a collection", folder)  # ours are renamed into place
                continue
            name = collection_name(folder.name)
            self._collections[name] = EdgeCollection(name, folder)

    def find(self, name: str) -> EdgeCollection | None:
        """The collection of this name or alias."""
        return self._collections.get(self._aliases.get(name, name))

    def get(self, name: str) -> EdgeCollection:
        if (collection := self.find(name)) is None:
            raise StoreMismatch(f"there is no collection {name!r}")
        return collection

    def create(self, name: str, dimension: int) -> None:
        if name in self._aliases:
            raise StoreMismatch(f"{name!r} is an alias for collection {self._aliases[name]!r}")
        folder = self._folders / folder_name(name)
        if there := self._collections.get(name):
            if there.dimension != dimension:
                raise StoreMismatch(
                    f"collection {name!r} has {there.dimension} dimensions, not {dimension}"
                )
            return
        self._check_room(_ROOM)
        new = self._making / folder.name
        with _engine_errors():
            EdgeCollection.make(new, dimension)
            sync_tree(new)
            new.rename(folder)
            sync_path(self._folders)
        self._collections[name] = EdgeCollection(name, folder)

    def drop(self, name: str) -> None:
        if (collection := self._collections.pop(name, None)) is None:
            return
        if self._aliases != (kept := {a: c for a, c in self._aliases.items() if c != name}):
            self._write_aliases(kept)
        with _engine_errors():
            collection.close()
            gone = self._making / collection.folder.name
            gone.parent.mkdir(mode=0o700, exist_ok=True)
            collection.folder.rename(gone)
            sync_path(self._folders)
            shutil.rmtree(gone)

    def collections(self) -> list[CollectionInfo]:
        with _engine_errors():
            return [collection.info() for collection in self._collections.values()]

    def describe(self, name: str) -> CollectionInfo | None:
        with _engine_errors():
            return collection.info() if (collection := self.find(name)) else None

    def upsert(self, writes: Sequence[Upsert]) -> list[StoreError | None]:
        """Write to one collection; an error for each request that failed."""
        size = sum(len(point.vector) for write in writes for point in write.points)
        try:
            self._check_room(_ROOM + _COPIES * size)
            return self.get(writes[0].collection).upsert(writes)
        except StoreError as error:
            return [error] * len(writes)

    def delete_before(self, name: str, document: str, generation: int) -> None:
        if collection := self.find(name):
            self._check_room(LITTLE_ROOM)
            with _engine_errors():
                collection.delete_before(document, generation)

    def delete_generation(self, name: str, document: str, generation: int) -> None:
        if collection := self.find(name):
            self._check_room(LITTLE_ROOM)
            with _engine_errors():
                collection.delete_generation(document, generation)

    def vectors(self, name: str, ids: Iterable[str]) -> dict[str, bytes]:
        with _engine_errors():
            return collection.vectors(ids) if (collection := self.find(name)) else {}

    def search(
        self,
        name: str,
        vector: bytes,
        limit: int,
        documents: Sequence[str] = (),
        threshold: float | None = None,
    ) -> list[Hit]:
        with _engine_errors():
            return self.get(name).search(vector, limit, documents, threshold)

    def counts(self, name: str, documents: Sequence[str]) -> dict[str, int]:
        if (collection := self.find(name)) is None:
            return dict.fromkeys(documents, 0)
        with _engine_errors():
            return collection.counts(documents)

    def alias(self, name: str, target: str) -> None:
        if name in self._collections:
            raise StoreMismatch(f"{name!r} is a collection, and cannot stand for another")
        if target not in self._collections:
            raise StoreMismatch(f"there is no collection {target!r}")
        folder_name(name)
        if self._aliases.get(name) != target:
            self._write_aliases(self._aliases | {name: target})

    def aliases(self) -> dict[str, str]:
        return dict(self._aliases)

    def flush(self) -> None:
        """Sync all writes to the disk."""
        for collection in self._collections.values():
            with _engine_errors():
                collection.flush()

    def close(self) -> None:
        for collection in self._collections.values():
            with _engine_errors():
                collection.close()

    def wanting_tidying(self) -> Iterator[EdgeCollection]:
        return (c for c in self._collections.values() if c.wants_tidying and not c.resting)

    def can_tidy(self, collection: EdgeCollection) -> bool:
        """Whether there is room: everything that is kept is written again."""
        files = collection.folder.rglob("*")
        try:
            self._check_room(_ROOM + sum(file.stat().st_blocks * _BLOCK for file in files))
        except StoreError:
            return False
        return True

    def _check_room(self, size: int) -> None:
        check_room(self.directory, size)

    def _read_aliases(self) -> dict[str, str]:
        try:
            data = (self.directory / "aliases.json").read_bytes()
        except FileNotFoundError:
            return {}
        return msgspec.json.decode(data, type=dict[str, str])

    def _write_aliases(self, aliases: dict[str, str]) -> None:
        with _engine_errors():
            write_durably(self.directory / "aliases.json", msgspec.json.encode(aliases))
        self._aliases = aliases


@contextmanager
def _engine_errors() -> Generator[None]:
    """Raise errors of the engine and the disk as ours."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001  the engine raises nothing more precise
        raise store_error(error) from None
