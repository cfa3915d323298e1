"""Calls of Qdrant's client library, in the terms of the port.

Imported only when needed: the library is an extra, and takes long to import. Errors are those of
the library; see `server_errors.py`.
"""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx
from qdrant_client import AsyncQdrantClient, models

from penstock.bounded_http import BoundedTransport, answers_up_to
from penstock.errors import StoreMismatch
from penstock.hosts import is_loopback
from penstock.settings import OutboundSettings, VectorSettings
from penstock.stores.vectors.port import Hit, Point

__all__ = ["QdrantCalls"]

DOCUMENT, GENERATION = "document", "generation"
# Maximum bytes of answers: of a point with its payload, a name with a number, and a list of names.
_POINT = 256 * 1024
_COUNT = 4 * 1024
_LIST = 16 * 1024 * 1024
_BYTES_PER_FLOAT = 32
_CONNECTIONS, _KEPT = 100, 20


class QdrantCalls:
    """One client of the library, with a connection for each concurrent call."""

    def __init__(self, client: AsyncQdrantClient) -> None:
        self._client = client

    @classmethod
    def to(cls, settings: VectorSettings, outbound: OutboundSettings) -> QdrantCalls:
        # On loopback, as the library has it, each call has a connection of its own.
        kept = 0 if is_loopback(urlsplit(settings.url or "").hostname or "") else _KEPT
        transport = BoundedTransport(
            outbound,
            within_s=settings.answer_s,
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=kept),
        )
        with warnings.catch_warnings():
            # About a key over plain HTTP: `outbound.plain_http` is about that.
            warnings.simplefilter("ignore", UserWarning)
            return cls(
                AsyncQdrantClient(
                    url=settings.url,
                    api_key=settings.api_key,
                    timeout=math.ceil(settings.answer_s),
                    prefer_grpc=False,
                    check_compatibility=False,
                    transport=transport,
                    trust_env=False,
                )
            )

    async def close(self) -> None:
        await self._client.close()

    async def version(self) -> str:
        return (await self._client.info()).version

    async def names(self) -> list[str]:
        with answers_up_to(_LIST):
            return [each.name for each in (await self._client.get_collections()).collections]

    async def schema(self, collection: str) -> tuple[int | None, set[str]]:
        """Its dimension, and the indexed fields.

        No dimension if it has named vectors or another distance than ours.
        """
        there = await self._client.get_collection(collection)
        vectors, dimension = there.config.params.vectors, None
        if isinstance(vectors, models.VectorParams) and vectors.distance == models.Distance.COSINE:
            dimension = vectors.size
        return dimension, set(there.payload_schema)

    async def count(self, collection: str) -> int:
        return (await self._client.count(collection, exact=True)).count

    async def create(self, collection: str, dimension: int) -> None:
        vectors = models.VectorParams(size=dimension, distance=models.Distance.COSINE)
        await self._client.create_collection(collection, vectors_config=vectors)

    async def index(self, collection: str, there: set[str]) -> None:
        """Index the fields that we filter by, but for those in `there`."""
        kinds = models.PayloadSchemaType
        for field, kind in ((DOCUMENT, kinds.KEYWORD), (GENERATION, kinds.INTEGER)):
            if field not in there:
                await self._client.create_payload_index(collection, field, kind, wait=True)

    async def drop(self, collection: str) -> None:
        await self._client.delete_collection(collection)

    async def upsert(
        self, collection: str, document: str, generation: int, points: Sequence[Point]
    ) -> None:
        added = {DOCUMENT: document, GENERATION: generation}
        structs = [
            models.PointStruct(
                id=point.id, vector=_floats(point.vector), payload=point.payload | added
            )
            for point in points
        ]
        # Applies to existing points; new ones are added.
        fence = models.Filter(must=[_generation(models.Range(lte=generation))])
        await self._client.upsert(collection, structs, wait=True, update_filter=fence)

    async def delete_before(self, collection: str, document: str, generation: int) -> None:
        await self._delete(collection, document, models.Range(lt=generation))

    async def delete_generation(self, collection: str, document: str, generation: int) -> None:
        await self._delete(collection, document, models.Range(gte=generation, lte=generation))

    async def vectors(
        self, collection: str, ids: Sequence[str], dimension: int
    ) -> dict[str, bytes]:
        with answers_up_to(len(ids) * (_COUNT + dimension * _BYTES_PER_FLOAT)):
            records = await self._client.retrieve(
                collection, list(ids), with_payload=False, with_vectors=True
            )
        return {
            str(record.id): struct.pack(f"<{len(record.vector)}f", *record.vector)
            for record in records
            if isinstance(record.vector, list)
        }

    async def search(
        self,
        collection: str,
        vector: bytes,
        limit: int,
        documents: Sequence[str],
        threshold: float | None,
    ) -> list[Hit]:
        with answers_up_to((limit + 1) * _POINT):
            answer = await self._client.query_points(
                collection,
                query=_floats(vector),
                limit=limit,
                query_filter=_of(documents) if documents else None,
                score_threshold=threshold,
                with_payload=True,
            )
        return [_hit(point) for point in answer.points]

    async def counts(self, collection: str, documents: Sequence[str]) -> dict[str, int]:
        """Points of each document that has any."""
        with answers_up_to((len(documents) + 1) * _COUNT):
            answer = await self._client.facet(
                collection, DOCUMENT, facet_filter=_of(documents), limit=len(documents), exact=True
            )
        return {str(hit.value): hit.count for hit in answer.hits}

    async def alias(self, name: str, collection: str) -> None:
        # In one request: the alias is never missing in between.
        remove = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name))
        create = models.CreateAliasOperation(
            create_alias=models.CreateAlias(collection_name=collection, alias_name=name)
        )
        await self._client.update_collection_aliases([remove, create])

    async def aliases(self) -> dict[str, str]:
        with answers_up_to(_LIST):
            answer = await self._client.get_aliases()
        return {each.alias_name: each.collection_name for each in answer.aliases}

    async def _delete(self, collection: str, document: str, generations: models.Range) -> None:
        matching = models.Filter(must=[_document([document]), _generation(generations)])
        await self._client.delete(collection, models.FilterSelector(filter=matching), wait=True)


def _floats(vector: bytes) -> list[float]:
    if not vector or len(vector) % 4:
        raise StoreMismatch(f"a vector of {len(vector)} bytes")
    floats = list(struct.unpack(f"<{len(vector) // 4}f", vector))
    if not math.isfinite(sum(floats)):  # as doubles they cannot add up to infinity
        raise StoreMismatch("a vector with a component that is not a number")
    return floats


def _document(documents: Sequence[str]) -> models.FieldCondition:
    return models.FieldCondition(key=DOCUMENT, match=models.MatchAny(any=list(documents)))


def _generation(generations: models.Range) -> models.FieldCondition:
    return models.FieldCondition(key=GENERATION, range=generations)


def _of(documents: Sequence[str]) -> models.Filter:
    return models.Filter(must=[_document(documents)])


def _hit(point: models.ScoredPoint) -> Hit:
    payload = dict(point.payload or {})
    # A point that another program wrote has neither.
    document, generation = payload.pop(DOCUMENT, ""), payload.pop(GENERATION, 0)
    return Hit(str(point.id), point.score, document, generation, payload)
