"""Answers of an embedder or a Qdrant server that would take the worker's memory or its time."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from tests.kit.fakes.embedding_api import EmbeddingApi, vector_of
from tests.kit.fakes.hostile_http import HostileServer

from penstock import Penstock
from penstock.errors import (
    ConfigError,
    DocumentError,
    EmbedderFailed,
    SettingError,
    StoreAway,
    StoreError,
)
from penstock.pipelines.documents.config.models import Embeddings
from penstock.pipelines.documents.embedding.http import HttpEmbedder
from penstock.settings import OutboundSettings, Settings, VectorSettings
from penstock.stores.vectors.server import QdrantServer

MOST_GROWTH = 20 * 1024 * 1024
LONG = ["compressed", "endless", "until_closed", "too_long", "in_small_pieces"]


@pytest.fixture
async def app(valkey_server, namespace):
    made = Settings(url=valkey_server.url, namespace=namespace)
    async with Penstock(settings=made) as opened:
        yield opened


def embedder_at(url, app, **words) -> HttpEmbedder:
    return HttpEmbedder(Embeddings(**{"model": "m", "url": url, "dimension": 4, **words}), app)


class Growth:
    """The most memory that Python's objects took within the block, beyond that of before."""

    def __enter__(self):
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


@pytest.mark.parametrize("answer", [*LONG, "numbers"])
async def test_an_embedders_answer_that_is_too_long_is_not_read(app, answer):
    async with HostileServer(answer) as server:
        embedder = embedder_at(server.url, app, timeout=20)
        await embedder.open()
        with Growth() as growth, pytest.raises(EmbedderFailed) as failed:
            await embedder.embed(["x"])
        await embedder.close()
    assert failed.value.error_code == "ERR_EMBEDDER_ANSWER_TOO_LONG"
    assert "embeddings.url" in failed.value.suggestions[0]
    assert growth.bytes < MOST_GROWTH
    assert b"Accept-Encoding: identity" in server.headers[0]


async def test_an_embedder_that_never_comes_to_an_end_is_given_up(app):
    async with HostileServer("drip") as server:
        embedder = embedder_at(server.url, app, timeout=0.3)
        await embedder.open()
        began = time.monotonic()
        with pytest.raises(EmbedderFailed) as failed:
            await embedder.embed(["x"])
        assert 0.2 < time.monotonic() - began < 10
        await embedder.close()
    assert failed.value.error_code == "ERR_EMBEDDER_AWAY"


@pytest.mark.parametrize("answer", LONG)
async def test_an_answer_to_the_question_for_the_dimension_is_bounded_too(app, answer):
    async with HostileServer(answer) as server:
        embedder = embedder_at(server.url, app, dimension=None, timeout=20)
        with Growth() as growth, pytest.raises(EmbedderFailed) as failed:
            await embedder.open()
    assert failed.value.error_code == "ERR_EMBEDDER_ANSWER_TOO_LONG"
    assert growth.bytes < MOST_GROWTH


async def test_long_vectors_are_asked_for_in_the_configured_dimension(app):
    """The answer in the model's own dimension is longer than the configured one allows."""
    texts = [str(number) for number in range(100)]

    async def as_asked(asked):
        if "dimensions" in asked:
            return None
        data = [{"index": at, "embedding": [0.123456789] * 4_000} for at in range(len(texts))]
        return {"body": {"data": data}}

    async with EmbeddingApi() as api:
        api.before = as_asked
        embedder = embedder_at(api.url, app)
        await embedder.open()
        assert len((await embedder.embed(texts)).vectors) == len(texts)
        assert [asked.get("dimensions") for asked in api.asked] == [None, 4]
        await embedder.close()


async def test_an_answer_whose_numbers_are_written_out_is_read(app):
    async def widely(asked):
        rows = [[f"{number:.20f}" for number in vector_of(text, 60)] for text in asked["input"]]
        items = ",\n        ".join(
            '{\n"embedding": [\n          ' + ",\n          ".join(row) + "]}" for row in rows
        )
        return {"body": f'{{"data": [{items}]}}'.encode()}

    async with EmbeddingApi() as api:
        api.before = widely
        embedder = embedder_at(api.url, app, dimension=60)
        await embedder.open()
        texts = [str(number) for number in range(256)]
        assert len((await embedder.embed(texts)).vectors) == len(texts)
        await embedder.close()


async def test_cookies_of_an_embedder_are_not_kept(app):
    async with EmbeddingApi() as api:
        embedder = embedder_at(api.url, app)
        await embedder.open()
        for number in range(3):
            api.then(headers={"Set-Cookie": f"cookie-{number}=x"})
            await embedder.embed(["x"])
        assert all("cookie" not in headers for headers in api.headers)
        await embedder.close()


# ---- Qdrant


@pytest.mark.parametrize("answer", LONG)
async def test_an_answer_of_a_qdrant_server_that_is_too_long_is_not_read(answer):
    async with HostileServer(answer) as server:
        store = QdrantServer(VectorSettings(url=server.url, answer_s=20))
        await store.open()
        for ask in (
            lambda: store.describe("a"),
            lambda: store.vectors("a", ["0" * 32]),
            lambda: store.search("a", b"\0\0\x80\x3f", limit=5),
            lambda: store.counts("a", ["x"]),
        ):
            with Growth() as growth, pytest.raises(StoreAway, match=r"gave an? "):
                await ask()
            assert growth.bytes < MOST_GROWTH
        await store.close()
    assert b"Accept-Encoding: identity" in server.headers[0]


async def test_a_qdrant_server_that_never_comes_to_an_end_is_given_up():
    async with HostileServer("drip") as server:
        store = QdrantServer(VectorSettings(url=server.url, answer_s=0.3))
        await store.open()
        with pytest.raises(StoreAway, match="in time"):
            await store.search("a", b"\0\0\x80\x3f", limit=5)
        await store.close()


# ---- the way there


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("scheme", ["http:", ""], ids=["absolute", "relative"])
async def test_neither_texts_nor_keys_follow_a_redirect(app, monkeypatch, status, scheme):
    monkeypatch.setenv("EMBEDDING_KEY", "sk-secret")
    async with (
        HostileServer("numbers") as other,
        HostileServer("elsewhere", status=status) as server,
    ):
        server.location = scheme + other.url.partition(":")[2]
        embedder = embedder_at(server.url, app, api_key_env="EMBEDDING_KEY")
        store = QdrantServer(VectorSettings(url=server.url, api_key="sk-secret"))
        await embedder.open()
        await store.open()
        with pytest.raises(DocumentError):
            await embedder.embed(["a text"])
        with pytest.raises(StoreError):
            await store.describe("a")
        await embedder.close()
        await store.close()
        assert len(server.headers) >= 2
        assert all(b"sk-secret" in headers for headers in server.headers)
        assert other.headers == []


async def test_proxies_of_the_environment_are_not_used(app, monkeypatch):
    async with EmbeddingApi() as api, HostileServer("endless") as proxy:
        for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        embedder = embedder_at(api.url, app)
        await embedder.open()
        await embedder.embed(["x"])
        await embedder.close()
        assert proxy.headers == []


async def test_a_proxy_of_the_settings_is_used(valkey_server, namespace):
    async with HostileServer("numbers") as proxy:
        outbound = OutboundSettings(proxy=proxy.url)
        made = Settings(url=valkey_server.url, namespace=namespace, outbound=outbound)
        async with Penstock(settings=made) as app:
            embedder = embedder_at("http://vectors.invalid/v1", app)
            await embedder.open()
            with pytest.raises(EmbedderFailed):
                await embedder.embed(["x"])
            await embedder.close()
        assert proxy.headers[0].startswith(b"POST http://vectors.invalid/v1/embeddings ")


async def test_a_proxy_that_is_none_is_refused_without_showing_it(valkey_server, namespace):
    outbound = OutboundSettings(proxy="ftp://user:hunter2@proxy")
    made = Settings(url=valkey_server.url, namespace=namespace, outbound=outbound)
    async with Penstock(settings=made) as app:
        with pytest.raises(SettingError, match=r"outbound\.proxy") as refused:
            await embedder_at("http://vectors.invalid/v1", app).open()
    assert "hunter2" not in f"{refused.value}{made!r}"


@pytest.mark.parametrize("plain_http", ["warn", "allow", "refuse"])
async def test_a_key_that_would_leave_the_machine_unencrypted(
    valkey_server, namespace, monkeypatch, caplog, plain_http
):
    monkeypatch.setenv("EMBEDDING_KEY", "sk-secret")
    outbound = OutboundSettings(plain_http=plain_http)
    made = Settings(url=valkey_server.url, namespace=namespace, outbound=outbound)
    url = f"http://{plain_http}.invalid/v1"
    async with Penstock(settings=made) as app:
        embedder = embedder_at(url, app, api_key_env="EMBEDDING_KEY")
        store = QdrantServer(VectorSettings(url=f"{url}/qdrant", api_key="sk-secret"), outbound)
        if plain_http == "refuse":
            with pytest.raises(ConfigError, match=r"outbound\.plain_http"):
                await embedder.open()
            with pytest.raises(ConfigError, match=r"outbound\.plain_http"):
                await store.open()
        else:
            await embedder.open()
            await store.open()
            await embedder.close()
            await store.close()
    warned = [record.message for record in caplog.records if "unencrypted" in record.message]
    assert len(warned) == (2 if plain_http == "warn" else 0)
    assert all("sk-secret" not in line for line in warned)
