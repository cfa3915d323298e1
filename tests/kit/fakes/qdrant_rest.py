"""The part of Qdrant's REST interface that we use, on the loopback, over the library's local mode.

There is no Qdrant server to be had for tests. This one reads every request with the library's own
models, which refuse unknown fields, and answers in a Qdrant server's words. What is stored, found
and compared is computed by the library's local mode, which its authors test against real servers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Self, cast
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter, ValidationError
from qdrant_client import AsyncQdrantClient, models

__all__ = ["QdrantRest", "Refusal"]

_TEXT = {"content-type": "application/json"}


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(
        self, status: int, words: str, headers: dict[str, str] | None = None, *, raw: bool = False
    ) -> None:
        super().__init__(status, words)
        self.status, self.words, self.headers, self.raw = status, words, headers or {}, raw


class QdrantRest:
    """async with QdrantRest() as server: QdrantServer(VectorSettings(url=server.url))"""

    def __init__(self, *, api_key: str | None = None, version: str = "1.16.0") -> None:
        self.api_key, self.version = api_key, version
        self.asked: list[tuple[str, str, Any]] = []
        """Method, path with its query, and body of every request."""
        self.refusals: list[Refusal] = []
        """Answered next, one for each request that changes or reads something."""
        self.before: Callable[[], Awaitable[None]] | None = None
        """Awaited before each answer."""
        self.url = ""
        self._local = AsyncQdrantClient(location=":memory:")
        self.indexes: dict[str, dict[str, models.PayloadIndexInfo]] = {}
        """The local mode has none."""
        self._serving: set[asyncio.Task[None]] = set()
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._local.close()

    async def start(self) -> None:
        """Listen, after `stop` with the same address and the same points."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=2**26)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while line := await reader.readline():
                method, target, _ = line.decode("latin-1").split(" ")
                headers: dict[str, str] = {}
                while (line := await reader.readline()) not in {b"\r\n", b""}:
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                status, told, answer = await self._answer(method, target, headers, body)
                head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
                told = {**_TEXT, **told, "content-length": str(len(answer))}
                head += [f"{name}: {value}" for name, value in told.items()]
                writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client has gone
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((method, target, json.loads(body) if body else None))
        path = urlsplit(target).path
        try:
            if self.before is not None:
                await self.before()
            if (method, path) == ("GET", "/"):  # for this one nobody needs a key
                about = {"title": "qdrant - vector search engine", "version": self.version}
                return 200, {}, json.dumps(about).encode()
            self._refuse(headers)
            result = await self._dispatch(method, path, body)
        except Refusal as refusal:
            words: Any = {"status": {"error": refusal.words}, "time": 0.0}
            text = refusal.words if refusal.raw else json.dumps(words)
            return refusal.status, refusal.headers, text.encode()
        told = {"result": _plain(result), "status": "ok", "time": 0.001}
        return 200, {}, json.dumps(told).encode()

    def _refuse(self, headers: dict[str, str]) -> None:
        if self.api_key is not None and headers.get("api-key") != self.api_key:
            words = "Must provide an API key or an Authorization bearer token"
            raise Refusal(401, words, raw=True)
        if self.refusals:
            raise self.refusals.pop(0)

    async def _dispatch(self, method: str, path: str, body: bytes) -> Any:
        for (wanted, pattern), route in self._routes().items():
            if wanted == method and (found := re.fullmatch(pattern, path)):
                names = [unquote(name) for name in found.groups()]
                try:
                    return await route(*names, body)
                except ValidationError as error:
                    raise Refusal(422, f"Format error in JSON body: {error}") from None
                except ValueError as error:
                    raise _as_server(error) from None
        raise Refusal(404, f"no route for {method} {path}", raw=True)

    def _routes(self) -> dict[tuple[str, str], Callable[..., Awaitable[Any]]]:
        return {
            ("GET", "/collections"): self._collections,
            ("GET", "/aliases"): self._aliases,
            ("POST", "/collections/aliases"): self._change_aliases,
            ("GET", _NAME): self._collection,
            ("PUT", _NAME): self._create,
            ("DELETE", _NAME): self._drop,
            ("PUT", f"{_NAME}/index"): self._index,
            ("PUT", f"{_NAME}/points"): self._upsert,
            ("POST", f"{_NAME}/points"): self._retrieve,
            ("POST", f"{_NAME}/points/delete"): self._delete,
            ("POST", f"{_NAME}/points/query"): self._query,
            ("POST", f"{_NAME}/points/count"): self._count,
            ("POST", f"{_NAME}/facet"): self._facet,
        }

    async def _collections(self, _: bytes) -> Any:
        return await self._local.get_collections()

    async def _collection(self, name: str, _: bytes) -> Any:
        info = await self._local.get_collection(name)
        real = (await self._aliases_now()).get(name, name)
        return info.model_copy(update={"payload_schema": self.indexes.get(real, {})})

    async def _create(self, name: str, body: bytes) -> Any:
        wanted = models.CreateCollection.model_validate_json(body)
        if isinstance(wanted.vectors, models.VectorParams) and wanted.vectors.size < 1:
            raise Refusal(422, "vectors.size: value 0 invalid, must be 1 or larger")
        if name in [each.name for each in (await self._local.get_collections()).collections]:
            raise Refusal(409, f"Wrong input: Collection `{name}` already exists!")
        if name in await self._aliases_now():
            raise Refusal(400, f"Wrong input: Can't create collection with name {name}.")
        return await self._local.create_collection(name, vectors_config=wanted.vectors)

    async def _drop(self, name: str, _: bytes) -> Any:
        self.indexes.pop(name, None)
        return await self._local.delete_collection(name)

    async def _index(self, name: str, body: bytes) -> Any:
        wanted = models.CreateFieldIndex.model_validate_json(body)
        await self._local.get_collection(name)
        self.indexes.setdefault(name, {})[wanted.field_name] = models.PayloadIndexInfo(
            data_type=models.PayloadSchemaType(wanted.field_schema), points=0
        )
        return _DONE

    async def _upsert(self, name: str, body: bytes) -> Any:
        wanted = models.PointsList.model_validate_json(body)
        # A server before 1.16 does not know the field, and writes without it.
        fence = wanted.update_filter if self.version >= "1.16" else None
        return await self._local.upsert(name, wanted.points, update_filter=fence)

    async def _retrieve(self, name: str, body: bytes) -> Any:
        wanted = models.PointRequest.model_validate_json(body)
        return await self._local.retrieve(
            name,
            wanted.ids,
            with_payload=wanted.with_payload or False,
            with_vectors=wanted.with_vector or False,
        )

    async def _delete(self, name: str, body: bytes) -> Any:
        wanted = TypeAdapter(models.PointsSelector).validate_json(body)
        return await self._local.delete(name, wanted)

    async def _query(self, name: str, body: bytes) -> Any:
        wanted = models.QueryRequest.model_validate_json(body)
        return await self._local.query_points(
            name,
            query=wanted.query,
            query_filter=wanted.filter,
            limit=wanted.limit or 10,
            score_threshold=wanted.score_threshold,
            with_payload=wanted.with_payload or False,
        )

    async def _count(self, name: str, body: bytes) -> Any:
        wanted = models.CountRequest.model_validate_json(body)
        return await self._local.count(name, wanted.filter, exact=bool(wanted.exact))

    async def _facet(self, name: str, body: bytes) -> Any:
        wanted = models.FacetRequest.model_validate_json(body)
        await self._local.get_collection(name)
        real = (await self._aliases_now()).get(name, name)
        if wanted.key not in self.indexes.get(real, {}):
            raise Refusal(400, f'Bad request: Index required but not found for "{wanted.key}"')
        return await self._local.facet(
            name, wanted.key, wanted.filter, limit=wanted.limit or 10, exact=bool(wanted.exact)
        )

    async def _change_aliases(self, body: bytes) -> Any:
        wanted = models.ChangeAliasesOperation.model_validate_json(body)
        return await self._local.update_collection_aliases(wanted.actions)

    async def _aliases(self, _: bytes) -> Any:
        return await self._local.get_aliases()

    async def _aliases_now(self) -> dict[str, str]:
        told = await self._local.get_aliases()
        return {each.alias_name: each.collection_name for each in told.aliases}


_DONE = models.UpdateResult(operation_id=1, status=models.UpdateStatus.COMPLETED)
_NAME = "/collections/([^/]+)"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in cast("list[Any]", value)]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _as_server(error: ValueError) -> Refusal:
    """What a server says where the local mode says this."""
    words = str(error)
    if found := re.fullmatch("Collection (.*) not found", words, re.DOTALL):
        return Refusal(404, f"Not found: Collection `{found[1]}` doesn't exist!")
    return Refusal(400, words if words.startswith("Wrong input") else f"Wrong input: {words}")
