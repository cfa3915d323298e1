"""Vectors in a Qdrant server, by its address.

The server compares generations when it writes (`update_filter`, since Qdrant 1.16), so concurrent
workers cannot overwrite newer points. Older servers, which ignore it, are refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import ConfigError, StoreAway, StoreMismatch
from penstock.hosts import public_url
from penstock.settings import OutboundSettings, VectorSettings
from penstock.stores.vectors.port import CollectionInfo, Hit, Point, VectorHealth
from penstock.stores.vectors.server_errors import NoCollection, VectorsTooOld, failure

if TYPE_CHECKING:
    from penstock.stores.vectors.server_calls import QdrantCalls

__all__ = ["QdrantServer"]

_HEALTH_S = 1.8
_OLDEST = (1, 16)
# Qdrant refuses requests of more than 32 MB, and a float is up to 24 bytes of JSON.
_MOST_FLOATS = 500_000
_MOST_AT_ONCE = 1_000
# Generations are compared as floats.
_LAST_GENERATION = 2**53

T = TypeVar("T")


class QdrantServer:
    """A `VectorStore` over Qdrant's REST interface. Connects with the first request."""

    def __init__(
        self,
        settings: VectorSettings,
        outbound: OutboundSettings | None = None,
        *,
        calls: QdrantCalls | None = None,
    ) -> None:
        self._settings, self._outbound = settings, outbound or OutboundSettings()
        self._calls = calls
        self._where = public_url(settings.url or "")
        self._version = ""
        self._dimensions: dict[str, int | None] = {}

    async def open(self) -> None:
        if self._calls is None:
            # The import takes a second: not on the loop, where leases are renewed.
            await asyncio.to_thread(_library)
        self._connected()

    async def close(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            await calls.close()

    async def health(self) -> VectorHealth:
        self._version = ""
        try:
            async with asyncio.timeout(_HEALTH_S):
                await self._check_version()
                # The version needs no key; this does.
                await self.aliases()
        except Exception as error:  # noqa: BLE001  any error is the answer
            return VectorHealth(False, str(failure(error, self._where)))
        return VectorHealth(True, f"Qdrant {self._version} at {self._where}")

    async def create(self, collection: str, dimension: int) -> None:
        await self._check_version()
        if (target := (await self.aliases()).get(collection)) is not None:
            raise StoreMismatch(f"{collection!r} is an alias for collection {target!r}")
        calls = self._connected()
        try:
            has, indexed = await self._ask(calls.schema(collection))
        except NoCollection:
            has, indexed = await self._create(collection, dimension)
        if has is None:
            raise StoreMismatch(f"collection {collection!r} was not made for cosine similarity")
        if has != dimension:
            raise StoreMismatch(f"collection {collection!r} has {has} dimensions, not {dimension}")
        # Also if it was there: its creator may have been killed before this step.
        await self._ask(calls.index(collection, indexed))

    async def drop(self, collection: str) -> None:
        with suppress(NoCollection):
            await self._ask(self._connected().drop(collection))

    async def collections(self) -> list[CollectionInfo]:
        """Those made for cosine similarity: other programs may use the server, too."""
        infos = [await self.describe(name) for name in await self._ask(self._connected().names())]
        return [info for info in infos if info is not None and info.dimension]

    async def describe(self, collection: str) -> CollectionInfo | None:
        """Its dimension is 0 if it was not made for cosine similarity."""
        calls = self._connected()
        try:
            dimension, _ = await self._ask(calls.schema(collection))
            points = await self._ask(calls.count(collection))
        except NoCollection:
            return None
        name = (await self.aliases()).get(collection, collection)
        return CollectionInfo(name, dimension or 0, points)

    async def upsert(
        self, collection: str, document: str, generation: int, points: Sequence[Point]
    ) -> None:
        _check_generation(generation)
        await self._check_version()
        for batch in _batches(points):
            await self._ask(self._connected().upsert(collection, document, generation, batch))

    async def delete_before(self, collection: str, document: str, generation: int) -> None:
        _check_generation(generation)
        with suppress(NoCollection):
            await self._ask(self._connected().delete_before(collection, document, generation))

    async def delete_generation(self, collection: str, document: str, generation: int) -> None:
        _check_generation(generation)
        with suppress(NoCollection):
            await self._ask(self._connected().delete_generation(collection, document, generation))

    async def vectors(self, collection: str, ids: Sequence[str]) -> dict[str, bytes]:
        vectors: dict[str, bytes] = {}
        try:
            dimension = await self._dimension(collection)
            for some in _some(ids if dimension else ()):
                calls = self._connected()
                vectors |= await self._ask(calls.vectors(collection, some, dimension or 0))
        except NoCollection:
            return {}
        return vectors

    async def search(
        self,
        collection: str,
        vector: bytes,
        *,
        limit: int,
        documents: Sequence[str] = (),
        threshold: float | None = None,
    ) -> list[Hit]:
        if limit < 1:
            return []
        return await self._ask(
            self._connected().search(collection, vector, limit, documents, threshold)
        )

    async def counts(self, collection: str, documents: Sequence[str]) -> dict[str, int]:
        counts = dict.fromkeys(documents, 0)
        try:
            for some in _some(list(counts)):
                counts |= await self._ask(self._connected().counts(collection, some))
        except NoCollection:
            return dict.fromkeys(documents, 0)
        return counts

    async def alias(self, name: str, collection: str) -> None:
        await self._ask(self._connected().alias(name, collection))

    async def aliases(self) -> Mapping[str, str]:
        return await self._ask(self._connected().aliases())

    async def _create(self, collection: str, dimension: int) -> tuple[int | None, set[str]]:
        calls = self._connected()
        try:
            await self._ask(calls.create(collection, dimension))
        except StoreMismatch as refusal:
            try:  # another process may have been first
                return await self._ask(calls.schema(collection))
            except NoCollection:
                raise refusal from None
        return dimension, set()

    async def _dimension(self, collection: str) -> int | None:
        """That of the collection, which bounds answers; asked once."""
        if collection not in self._dimensions:
            dimension, _ = await self._ask(self._connected().schema(collection))
            self._dimensions[collection] = dimension
        return self._dimensions[collection]

    async def _check_version(self) -> None:
        """VectorsTooOld if the server would write without comparing generations."""
        if self._version:
            return
        version = await self._ask(self._connected().version())
        match = re.match(r"v?(\d+)\.(\d+)", version)
        if match is None or (int(match[1]), int(match[2])) < _OLDEST:
            raise VectorsTooOld(
                f"{self._where} is Qdrant {version[:40]!r}; "
                f"at least {'.'.join(map(str, _OLDEST))} is needed"
            )
        self._version = version

    async def _ask(self, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except Exception as error:
            ours = failure(error, self._where)
            if isinstance(ours, StoreAway):
                # It may come back as an older one, and with other collections.
                self._version = ""
                self._dimensions.clear()
            raise ours from error

    def _connected(self) -> QdrantCalls:
        if self._calls is None:
            self._calls = _linked(self._settings, self._outbound)
        return self._calls


def _library() -> type[QdrantCalls]:
    try:
        from penstock.stores.vectors.server_calls import QdrantCalls  # noqa: PLC0415  needs an extra
    except ImportError:
        raise ConfigError(
            "vectors.url needs Qdrant's client library: pip install 'penstock[qdrant]'"
        ) from None
    return QdrantCalls


def _linked(settings: VectorSettings, outbound: OutboundSettings) -> QdrantCalls:
    calls = _library()
    from penstock.bounded_http import guard_key  # noqa: PLC0415  needs what the library has

    url = settings.url or ""
    if settings.api_key or "@" in url:
        guard_key(public_url(url), url, outbound)
    try:
        return calls.to(settings, outbound)
    except (ValueError, TypeError):  # without its text, which would repeat a password
        raise ConfigError(
            f"vectors.url {public_url(settings.url or '')!r} or vectors.api_key cannot be used"
        ) from None


def _check_generation(generation: int) -> None:
    if not 0 <= generation < _LAST_GENERATION:
        raise StoreMismatch(f"no document has a generation {generation}")


def _batches(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    longest = max((len(point.vector) // 4 for point in points), default=1)
    size = min(_MOST_AT_ONCE, max(1, _MOST_FLOATS // max(1, longest)))
    return (points[at : at + size] for at in range(0, len(points), size))


def _some(values: Sequence[str]) -> Iterator[Sequence[str]]:
    return (values[at : at + _MOST_AT_ONCE] for at in range(0, len(values), _MOST_AT_ONCE))
