"""Vectors in a Qdrant server.

No test here talks to a real Qdrant server. Each of the port's promises is kept through the client
library twice: in its local mode, and over real HTTP to `tests.qdrant_rest`. That proves what we ask
for, how it goes over the wire, and what we make of answers, refusals and silence. It does not prove
what the local mode and a server do differently: searches in a graph, replicas, a full disk, and
writes of several clients at one moment.
"""

from __future__ import annotations

import asyncio
import builtins
import math
import pickle
import random
import struct
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from qdrant_client import AsyncQdrantClient, models
from tests.kit.fakes.qdrant_rest import QdrantRest, Refusal
from tests.kit.patience import patient

from penstock.errors import ConfigError, StoreAway, StoreError, StoreFull, StoreMismatch
from penstock.settings import VectorSettings
from penstock.stores.vectors import server as server_module
from penstock.stores.vectors.port import CollectionInfo, Point, VectorStore
from penstock.stores.vectors.server import QdrantServer
from penstock.stores.vectors.server_calls import QdrantCalls
from penstock.stores.vectors.server_errors import VectorsForbidden, VectorsTooOld

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")

X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def packed(*floats: float) -> bytes:
    return struct.pack(f"<{len(floats)}f", *floats)


def point(number: int, vector: tuple[float, ...] = X, **payload: Any) -> Point:
    return Point(str(uuid.UUID(int=number)), packed(*vector), payload)


def ident(number: int) -> str:
    return str(uuid.UUID(int=number))


@pytest.fixture
async def rest() -> AsyncIterator[QdrantRest]:
    async with QdrantRest() as server:
        yield server


@pytest.fixture
async def remote(rest: QdrantRest) -> AsyncIterator[QdrantServer]:
    store = QdrantServer(VectorSettings(url=rest.url, answer_s=10))
    await store.open()
    yield store
    await store.close()


@pytest.fixture(params=["local mode", "over HTTP"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[VectorStore]:
    if request.param == "local mode":
        link = QdrantCalls(AsyncQdrantClient(location=":memory:"))
        store = QdrantServer(VectorSettings(url="http://nowhere"), calls=link)
        await store.open()
        yield store
        await store.close()
        return
    async with QdrantRest() as rest:
        store = QdrantServer(VectorSettings(url=rest.url))
        await store.open()
        yield store
        await store.close()


class TestPromises:
    async def test_a_collection_is_made_once_and_keeps_its_dimension(
        self, store: VectorStore
    ) -> None:
        assert await store.describe("a") is None
        await store.create("a", 3)
        await store.create("a", 3)
        assert await store.describe("a") == CollectionInfo("a", 3, 0)
        with pytest.raises(StoreMismatch, match="3 dimensions, not 4"):
            await store.create("a", 4)
        await store.create("b", 2)
        assert sorted(info.name for info in await store.collections()) == ["a", "b"]
        await store.drop("a")
        await store.drop("a")
        assert await store.describe("a") is None
        assert [info.name for info in await store.collections()] == ["b"]

    async def test_processes_that_make_one_collection_at_once_all_succeed(
        self, store: VectorStore
    ) -> None:
        await asyncio.gather(*(store.create("a", 3) for _ in range(5)))
        assert await store.describe("a") == CollectionInfo("a", 3, 0)

    async def test_a_written_point_is_found_with_its_payload(self, store: VectorStore) -> None:
        await store.create("a", 3)
        payload = {"text": "naïve 😀\n", "page": 3, "tags": ["x", None], "nested": {"y": 1.5}}
        await store.upsert("a", "dir/ü.pdf", 7, [point(1, X, **payload), point(2, Y)])
        (first, second) = await store.search("a", packed(0.9, 0.1, 0), limit=10)
        assert (first.id, first.document, first.generation) == (ident(1), "dir/ü.pdf", 7)
        assert first.payload == payload
        assert first.score == pytest.approx(0.9 / math.hypot(0.9, 0.1), abs=1e-5)
        assert second.id == ident(2)

    async def test_a_search_heeds_limit_documents_and_threshold(self, store: VectorStore) -> None:
        await store.create("a", 3)
        await store.upsert("a", "one", 1, [point(1, X), point(2, Y)])
        await store.upsert("a", "two", 1, [point(3, X), point(4, Z)])
        await store.upsert("a", "three", 1, [point(5, X)])

        async def found(**options: Any) -> set[str]:
            return {hit.id for hit in await store.search("a", packed(*X), **options)}

        assert len(await found(limit=2)) == 2
        assert await found(limit=0) == set()
        assert await found(limit=9, threshold=0.5) == {ident(1), ident(3), ident(5)}
        assert await found(limit=9, documents=["one", "nobody"]) == {ident(1), ident(2)}
        assert await found(limit=9, documents=["one", "two"], threshold=0.5) == {
            ident(1),
            ident(3),
        }

    async def test_a_write_never_replaces_a_later_generation(self, store: VectorStore) -> None:
        await store.create("a", 3)
        await store.upsert("a", "doc", 5, [point(1, X, text="five")])
        await store.upsert("a", "doc", 4, [point(1, Y, text="four"), point(2, Y, text="four")])
        hits = {hit.id: hit for hit in await store.search("a", packed(*X), limit=9)}
        assert hits[ident(1)].payload == {"text": "five"}
        assert hits[ident(1)].generation == 5
        assert hits[ident(2)].generation == 4
        assert (await store.vectors("a", [ident(1)])) == {ident(1): packed(*X)}
        for generation in (5, 6):
            text = f"again {generation}"
            await store.upsert("a", "doc", generation, [point(1, Z, text=text)])
            (hit,) = await store.search("a", packed(*Z), limit=1)
            assert (hit.generation, hit.payload) == (generation, {"text": text})

    async def test_generations_in_any_order_end_with_the_latest(self, store: VectorStore) -> None:
        await store.create("a", 3)
        order = list(range(1, 30))
        random.Random(4).shuffle(order)  # noqa: S311
        for generation in order:
            await store.upsert("a", "doc", generation, [point(1, X, n=generation)])
        (hit,) = await store.search("a", packed(*X), limit=9)
        assert (hit.generation, hit.payload) == (29, {"n": 29})

    async def test_a_large_generation_is_told_from_its_neighbour(self, store: VectorStore) -> None:
        await store.create("a", 3)
        last = 2**53 - 1
        await store.upsert("a", "doc", last, [point(1)])
        await store.upsert("a", "doc", last - 1, [point(1, Y), point(2, Y)])
        await store.delete_before("a", "doc", last)
        (hit,) = await store.search("a", packed(*X), limit=9)
        assert hit.generation == last
        for generation in (-1, 2**53):
            with pytest.raises(StoreMismatch):
                await store.upsert("a", "doc", generation, [point(1)])

    async def test_earlier_generations_of_a_document_are_removed(self, store: VectorStore) -> None:
        await store.create("a", 3)
        for generation in (1, 2, 3):
            await store.upsert("a", "doc", generation, [point(generation)])
            await store.upsert("a", "other", generation, [point(10 + generation)])
        await store.delete_before("a", "doc", 3)
        await store.delete_before("a", "doc", 3)
        assert await store.counts("a", ["doc", "other", "none"]) == {
            "doc": 1,
            "other": 3,
            "none": 0,
        }
        await store.delete_generation("a", "other", 2)
        left = {hit.id for hit in await store.search("a", packed(*X), limit=99)}
        assert left == {ident(3), ident(11), ident(13)}

    async def test_vectors_come_back_as_they_are_kept(self, store: VectorStore) -> None:
        await store.create("a", 3)
        unit = (0.6, 0.0, 0.8)
        await store.upsert("a", "doc", 1, [point(1, unit), point(2, (3.0, 0.0, 4.0))])
        found = await store.vectors("a", [ident(1), ident(2), ident(99)])
        assert set(found) == {ident(1), ident(2)}
        for vector in found.values():
            assert struct.unpack("<3f", vector) == pytest.approx(unit, abs=1e-6)
        assert await store.vectors("a", []) == {}
        assert await store.vectors("nothing", [ident(1)]) == {}

    async def test_more_than_one_request_takes_are_written_and_read(
        self, store: VectorStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_module, "_MOST_AT_ONCE", 10)
        await store.create("a", 3)
        await store.upsert("a", "doc", 1, [point(n) for n in range(35)])
        for n in range(25):
            await store.upsert("a", f"doc {n}", 1, [point(100 + n)])
        assert len(await store.vectors("a", [ident(n) for n in range(40)])) == 35
        documents = ["doc", *(f"doc {n}" for n in range(25)), "none"]
        counts = await store.counts("a", documents)
        assert counts == {"doc": 35, **{f"doc {n}": 1 for n in range(25)}, "none": 0}
        assert list(counts) == documents

    async def test_nothing_to_write_is_nothing(self, store: VectorStore) -> None:
        await store.create("a", 3)
        await store.upsert("a", "doc", 1, [])
        assert await store.counts("a", []) == {}

    async def test_what_the_store_adds_cannot_be_forged(self, store: VectorStore) -> None:
        await store.create("a", 3)
        await store.upsert("a", "doc", 1, [point(1, X, document="other", generation=99)])
        assert await store.counts("a", ["doc", "other"]) == {"doc": 1, "other": 0}
        await store.upsert("a", "doc", 2, [point(1, Y)])
        (hit,) = await store.search("a", packed(*Y), limit=1)
        assert (hit.document, hit.generation) == ("doc", 2)

    @pytest.mark.parametrize(
        "vector", [packed(1.0), packed(*X, 1.0), b"", b"abc", packed(math.nan, 0, 0)]
    )
    async def test_a_vector_of_another_kind_is_refused(
        self, store: VectorStore, vector: bytes
    ) -> None:
        await store.create("a", 3)
        points = [point(1), Point(ident(2), vector, {}), point(3)]
        with pytest.raises(StoreMismatch):
            await store.upsert("a", "doc", 1, points)
        with pytest.raises(StoreMismatch):
            await store.search("a", vector, limit=1)
        assert await store.describe("a") == CollectionInfo("a", 3, 0)

    async def test_where_there_is_no_collection(self, store: VectorStore) -> None:
        with pytest.raises(StoreMismatch):
            await store.upsert("no", "doc", 1, [point(1)])
        with pytest.raises(StoreMismatch):
            await store.search("no", packed(*X), limit=1)
        await store.delete_before("no", "doc", 1)
        await store.delete_generation("no", "doc", 1)
        assert await store.counts("no", ["doc"]) == {"doc": 0}
        with pytest.raises(StoreMismatch):
            await store.alias("name", "no")
        assert await store.aliases() == {}

    async def test_an_alias_stands_for_another_collection_at_once(self, store: VectorStore) -> None:
        await store.create("a", 3)
        await store.create("b", 3)
        await store.upsert("b", "doc", 1, [point(1)])
        await store.alias("now", "a")
        await store.alias("now", "a")
        assert await store.aliases() == {"now": "a"}
        assert await store.search("now", packed(*X), limit=1) == []
        await store.alias("now", "b")
        assert await store.aliases() == {"now": "b"}
        assert [hit.id for hit in await store.search("now", packed(*X), limit=1)] == [ident(1)]
        assert await store.counts("now", ["doc"]) == {"doc": 1}
        assert await store.describe("now") == CollectionInfo("b", 3, 1)
        with pytest.raises(StoreMismatch, match="alias"):
            await store.create("now", 3)
        with pytest.raises(StoreMismatch):
            await store.alias("a", "b")
        await store.drop("b")
        assert await store.aliases() == {}

    async def test_names_of_every_kind(self, store: VectorStore) -> None:
        for name in ("with space", "ünï", "x=1&y#z", "%41", "docs__v2", "a" * 200):
            await store.create(name, 3)
            await store.upsert(name, name, 1, [point(1)])
            assert await store.counts(name, [name]) == {name: 1}
        assert len(await store.collections()) == 6
        for name in ("a/b", "..", "a?b", "a" * 256):
            with pytest.raises(StoreMismatch):
                await store.create(name, 3)

    async def test_it_tells_that_it_is_well(self, store: VectorStore) -> None:
        health = await store.health()
        assert health.ok
        assert health.detail.startswith("Qdrant 1.")


class TestWire:
    async def test_writes_wait_and_carry_the_fence(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        rest.asked.clear()
        await remote.upsert("a", "doc", 4, [point(1, X, text="x")])
        assert rest.asked == [
            (
                "PUT",
                "/collections/a/points?wait=true",
                {
                    "points": [
                        {
                            "id": ident(1),
                            "vector": [1.0, 0.0, 0.0],
                            "payload": {"text": "x", "document": "doc", "generation": 4},
                        }
                    ],
                    "update_filter": {"must": [{"key": "generation", "range": {"lte": 4.0}}]},
                },
            )
        ]

    async def test_an_alias_is_changed_by_one_request(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        rest.asked.clear()
        await remote.alias("now", "a")
        ((method, path, body),) = rest.asked
        assert (method, path) == ("POST", "/collections/aliases")
        assert [next(iter(action)) for action in body["actions"]] == [
            "delete_alias",
            "create_alias",
        ]

    async def test_fields_are_indexed_even_if_a_maker_was_killed_before(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        made = [body for _, path, body in rest.asked if path.startswith("/collections/a/index")]
        assert made == [
            {"field_name": "document", "field_schema": "keyword"},
            {"field_name": "generation", "field_schema": "integer"},
        ]
        rest.indexes["a"].pop("generation")
        rest.asked.clear()
        await remote.create("a", 3)
        assert [body for _, path, body in rest.asked if "/index" in path] == made[1:]

    async def test_the_key_is_sent_and_a_wrong_one_told(self) -> None:
        async with QdrantRest(api_key="secret") as rest:
            right = QdrantServer(VectorSettings(url=rest.url, api_key="secret"))
            await right.create("a", 3)
            assert (await right.health()).ok
            await right.close()
            for key in ("wrong", None):
                wrong = QdrantServer(VectorSettings(url=rest.url, api_key=key))
                with pytest.raises(VectorsForbidden) as refused:
                    await wrong.upsert("a", "doc", 1, [point(1)])
                assert refused.value.error_code == "ERR_VECTORS_FORBIDDEN"
                assert refused.value.suggestions
                assert "secret" not in str(refused.value)
                health = await wrong.health()
                assert not health.ok
                assert "API key" in health.detail
                await wrong.close()

    @pytest.mark.parametrize("version", ["1.15.5", "1.9.0", "0.11.0", "unknown"])
    async def test_a_server_that_cannot_compare_generations_is_not_written_to(
        self, version: str
    ) -> None:
        async with QdrantRest(version=version) as rest:
            store = QdrantServer(VectorSettings(url=rest.url))
            with pytest.raises(VectorsTooOld, match=r"1\.16 is needed") as refused:
                await store.create("a", 3)
            assert refused.value.error_code == "ERR_VECTORS_TOO_OLD"
            with pytest.raises(VectorsTooOld):
                await store.upsert("a", "doc", 1, [point(1)])
            assert {method for method, _, _ in rest.asked} == {"GET"}
            health = await store.health()
            assert not health.ok
            assert version in health.detail
            await store.close()

    async def test_a_server_that_comes_back_older_is_noticed(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        await rest.stop()
        with pytest.raises(StoreAway):
            await remote.upsert("a", "doc", 1, [point(1)])
        rest.version = "1.15.0"
        await rest.start()
        with pytest.raises(VectorsTooOld):
            await remote.upsert("a", "doc", 1, [point(1)])

    @pytest.mark.parametrize("version", ["1.16.0", "1.20.3", "1.17.0-dev", "v1.16.1", "2.0.0"])
    async def test_servers_that_can_are_used(self, version: str) -> None:
        async with QdrantRest(version=version) as rest:
            store = QdrantServer(VectorSettings(url=rest.url))
            assert (await store.health()).ok
            await store.close()


class TestFailures:
    @pytest.mark.parametrize(
        ("refusal", "kind", "retry_after"),
        [
            (Refusal(500, "Service internal error: panicked"), StoreAway, None),
            (Refusal(502, "<html>Bad gateway</html>", raw=True), StoreAway, None),
            (Refusal(503, "busy", {"Retry-After": "7"}), StoreAway, 7.0),
            (Refusal(429, "slow down", {"Retry-After": "3"}), StoreAway, 3.0),
            (Refusal(429, "slow down", {"Retry-After": "soon"}), StoreAway, None),
            (Refusal(429, "slow down"), StoreAway, None),
            (Refusal(408, "timeout"), StoreAway, None),
            (Refusal(507, "full"), StoreFull, None),
            (
                Refusal(500, "Service internal error: No space left on device: WAL buffer size"),
                StoreFull,
                None,
            ),
            (Refusal(403, "Global access is required"), VectorsForbidden, None),
            (Refusal(400, "Wrong input: Vector dimension error"), StoreMismatch, None),
            (Refusal(422, "Format error in JSON body"), StoreMismatch, None),
            (Refusal(404, "<html>no such page</html>", raw=True), StoreError, None),
            (Refusal(413, "Payload too large"), StoreError, None),
        ],
        ids=lambda value: f"{value.status} {value.words[:20]}" if type(value) is Refusal else "",
    )
    async def test_what_the_server_says_is_told_in_our_words(
        self,
        rest: QdrantRest,
        remote: QdrantServer,
        refusal: Refusal,
        kind: type[StoreError],
        retry_after: float | None,
    ) -> None:
        await remote.create("a", 3)
        rest.refusals = [refusal]
        with pytest.raises(StoreError) as failed:
            await remote.upsert("a", "doc", 1, [point(1)])
        assert type(failed.value) is kind
        if isinstance(failed.value, StoreAway):
            assert failed.value.retry_after == retry_after
            again = pickle.loads(pickle.dumps(failed.value))  # noqa: S301
            assert again.retry_after == retry_after
        await remote.upsert("a", "doc", 1, [point(1)])

    async def test_a_page_that_is_no_answer_is_not_taken_for_one(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        for raw in ("<html>Welcome</html>", "{}", '{"result": 5}', "", '{"status": "ok"}'):
            rest.refusals = [Refusal(200, raw, raw=True)]
            with pytest.raises(StoreAway):
                await remote.search("a", packed(*X), limit=1)

    async def test_a_404_that_is_not_from_qdrant_hides_nothing(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        for _ in range(2):
            rest.refusals = [Refusal(404, "404 page not found", raw=True)]
            with pytest.raises(StoreError) as failed:
                await remote.vectors("a", [ident(1)])
            assert not isinstance(failed.value, StoreMismatch)

    async def test_a_server_that_is_down_is_away_until_it_is_back(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        await remote.upsert("a", "doc", 1, [point(1)])
        await rest.stop()
        asks: list[Any] = [
            lambda: remote.create("a", 3),
            lambda: remote.upsert("a", "doc", 1, [point(1)]),
            lambda: remote.search("a", packed(*X), limit=1),
            lambda: remote.vectors("a", [ident(1)]),
            lambda: remote.delete_before("a", "doc", 1),
            lambda: remote.delete_generation("a", "doc", 9),
            lambda: remote.counts("a", ["doc"]),
            lambda: remote.describe("a"),
            remote.collections,
            lambda: remote.drop("b"),
            lambda: remote.alias("now", "a"),
            remote.aliases,
        ]
        for ask in asks:
            with pytest.raises(StoreAway):
                await ask()
        health = await remote.health()
        assert not health.ok
        assert rest.url in health.detail
        await rest.start()
        for ask in asks:
            await ask()
        assert (await remote.health()).ok

    async def test_it_opens_without_a_server_and_twice(self) -> None:
        async with QdrantRest() as rest:
            url = rest.url
        store = QdrantServer(VectorSettings(url=url))
        await store.open()
        await store.open()
        assert not (await store.health()).ok
        await store.close()
        await store.close()

    async def test_after_its_close_it_can_be_opened_again(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        await remote.close()
        await remote.open()
        assert await remote.describe("a") == CollectionInfo("a", 3, 0)

    async def test_silence_ends_after_the_time_given(self, rest: QdrantRest) -> None:
        forever = asyncio.Event()
        store = QdrantServer(VectorSettings(url=rest.url, answer_s=0.3))
        await store.create("a", 3)

        async def silent() -> None:
            await forever.wait()

        rest.before = silent
        before = time.monotonic()
        with pytest.raises(StoreAway, match="in time"):
            await store.search("a", packed(*X), limit=1)
        assert time.monotonic() - before < patient(5)
        rest.before = None
        assert await store.search("a", packed(*X), limit=1) == []
        await store.close()

    async def test_health_waits_no_longer_than_two_seconds(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        forever = asyncio.Event()

        async def silent() -> None:
            await forever.wait()

        rest.before = silent
        before = time.monotonic()
        health = await remote.health()
        assert not health.ok
        assert 1 < time.monotonic() - before < patient(15)

    async def test_a_slow_answer_is_an_answer(self, rest: QdrantRest, remote: QdrantServer) -> None:
        async def slow() -> None:
            await asyncio.sleep(0.2)

        rest.before = slow
        await remote.create("a", 3)
        assert (await remote.health()).ok

    async def test_who_gives_up_leaves_a_store_that_works(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        await remote.create("a", 3)
        arrived, go = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            arrived.set()
            await go.wait()

        rest.before = held
        asking = asyncio.create_task(remote.search("a", packed(*X), limit=1))
        await arrived.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        go.set()
        assert await remote.search("a", packed(*X), limit=1) == []

    async def test_a_foreign_collection_is_left_alone(
        self, rest: QdrantRest, remote: QdrantServer
    ) -> None:
        foreign = AsyncQdrantClient(url=rest.url, check_compatibility=False)
        dot = models.VectorParams(size=3, distance=models.Distance.DOT)
        cosine = models.VectorParams(size=3, distance=models.Distance.COSINE)
        await foreign.create_collection("dot", vectors_config=dot)
        await foreign.create_collection("named", vectors_config={"text": cosine})
        await foreign.create_collection("plain", vectors_config=cosine)
        await foreign.upsert("plain", [models.PointStruct(id=7, vector=list(X))])
        await foreign.close()
        for name in ("dot", "named"):
            with pytest.raises(StoreMismatch, match="cosine"):
                await remote.create(name, 3)
        assert [info.name for info in await remote.collections()] == ["plain"]
        (hit,) = await remote.search("plain", packed(*X), limit=1)
        assert (hit.id, hit.document, hit.generation) == ("7", "", 0)

    async def test_without_the_library_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = builtins.__import__

        def without(name: str, *rest: Any, **more: Any) -> Any:
            if name.startswith("penstock.stores.vectors.server_calls"):
                raise ImportError(name)
            return real(name, *rest, **more)

        monkeypatch.setattr(builtins, "__import__", without)
        store = QdrantServer(VectorSettings(url="http://127.0.0.1:1"))
        with pytest.raises(ConfigError, match=r"pip install 'penstock\[qdrant\]'"):
            await store.open()
        health = await store.health()
        assert not health.ok
        assert "pip install" in health.detail

    @pytest.mark.parametrize("url", ["ftp://user:hunter2@host", "http://user:hunter2@ho st:99999"])
    async def test_an_address_that_is_none_is_told_without_its_password(self, url: str) -> None:
        store = QdrantServer(VectorSettings(url=url))
        with pytest.raises(ConfigError) as refused:
            await store.open()
        assert "hunter2" not in str(refused.value)
        assert not (await store.health()).ok

    async def test_the_password_of_an_address_is_never_told(self) -> None:
        store = QdrantServer(VectorSettings(url="http://user:hunter2@127.0.0.1:1"))
        assert "hunter2" not in (await store.health()).detail
        with pytest.raises(StoreAway) as away:
            await store.aliases()
        assert "hunter2" not in str(away.value)
        await store.close()
