"""Embedders behind an API, what is remembered of them, and the one a RAG gets."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import time
import weakref
from contextlib import AsyncExitStack
from email.utils import formatdate

import numpy as np
import pytest
from tests.kit.fakes.embedding_api import EmbeddingApi, vector_of

from penstock import Penstock
from penstock.errors import (
    ConfigurationWrong,
    DocumentError,
    DocumentRefused,
    EmbedderFailed,
    NotOpen,
)
from penstock.pipelines.documents.config.models import Embeddings, RagConfig
from penstock.pipelines.documents.embedding import cached, http
from penstock.pipelines.documents.embedding.builtin import BuiltinEmbedder
from penstock.pipelines.documents.embedding.cached import CachedEmbedder
from penstock.pipelines.documents.embedding.embedder import Embedding
from penstock.pipelines.documents.embedding.http import HttpEmbedder
from penstock.pipelines.documents.embedding.opening import open_embedder
from penstock.settings import CacheSettings, Settings
from penstock.testing.eventually import eventually

SECRET = "sk-very-secret-0123456789"


@pytest.fixture
async def api():
    async with EmbeddingApi() as made:
        yield made


@pytest.fixture
async def open_one(valkey_server, namespace):
    """`await open_one()` is the application of another process, as far as the server can tell."""
    async with AsyncExitStack() as opened:

        async def open_(url=None, **settings) -> Penstock:
            made = Settings(url=url or valkey_server.url, namespace=namespace, **settings)
            return await opened.enter_async_context(Penstock(settings=made))

        yield open_


@pytest.fixture
async def app(open_one):
    return await open_one()


@pytest.fixture
async def embedder_of(api, app):
    """`await embedder_of(dimension=…)` is an open embedder behind the API."""
    async with AsyncExitStack() as opened:

        async def open_(application=app, **words) -> HttpEmbedder:
            config = {"provider": "http", "model": "m", "url": api.url, "dimension": 4, **words}
            embedder = HttpEmbedder(Embeddings(**config), application)
            opened.push_async_callback(embedder.close)
            await embedder.open()
            return embedder

        yield open_


def unit(text, dimension=4):
    row = np.array(vector_of(text, dimension))
    return row / np.linalg.norm(row)


def same(vectors, texts, dimension=4):
    rows = np.array([np.frombuffer(vector, "<f4") for vector in vectors])
    return np.allclose(rows, [unit(text, dimension) for text in texts], atol=1e-6)


# ---- what goes well


async def test_texts_become_vectors_of_length_one_in_their_order(api, embedder_of):
    embedder = await embedder_of()
    texts = ["one", "two", "drei ☃", "one"]
    vectors, tokens, cached = await embedder.embed(texts)
    assert same(vectors, texts)
    assert (tokens, cached) == (28, 0)
    assert api.asked == [{"model": "m", "input": texts, "encoding_format": "float"}]
    assert await embedder.embed([]) == ([], 0, 0)
    assert "authorization" not in api.headers[0]


@pytest.mark.parametrize("end", ["", "/", "/embeddings", "/embeddings/", "?api-version=1"])
async def test_the_url_may_end_as_people_write_it(api, embedder_of, end):
    api.url += end
    assert same((await (await embedder_of()).embed(["x"])).vectors, ["x"])


async def test_connections_are_kept(api, embedder_of):
    embedder = await embedder_of()
    for number in range(5):
        await embedder.embed([str(number)])
    assert api.connections == 1


async def test_more_texts_than_a_batch_go_in_several_calls(api, embedder_of):
    embedder = await embedder_of(batch=3)
    texts = [str(number) for number in range(8)]
    vectors, tokens, _ = await embedder.embed(texts)
    assert same(vectors, texts)
    assert tokens == 56
    assert [len(asked["input"]) for asked in api.asked] == [3, 3, 2]


async def test_a_call_that_is_too_large_for_the_api_is_halved(api, embedder_of):
    async def at_most_three(asked):
        return {"status": 413, "body": {}} if len(asked["input"]) > 3 else None

    api.before = at_most_three
    embedder = await embedder_of()
    texts = [str(number) for number in range(10)]
    assert same((await embedder.embed(texts)).vectors, texts)


async def test_the_dimension_is_asked_for_if_it_is_not_configured(api, app, embedder_of):
    embedder = await embedder_of(dimension=None)
    assert embedder.dimension == 4
    assert len(api.asked) == 1
    with pytest.raises(NotOpen):
        _ = HttpEmbedder(Embeddings(model="m", url=api.url), app).dimension


async def test_a_model_that_can_shorten_its_vectors_is_asked_to(api, embedder_of):
    embedder = await embedder_of(dimension=3)
    for _ in range(2):
        assert same((await embedder.embed(["x"])).vectors, ["x"], 3)
    assert [asked.get("dimensions") for asked in api.asked] == [None, 3, 3]


async def test_half_a_character_does_no_harm(api, embedder_of):
    embedder = await embedder_of()
    assert same((await embedder.embed(["half \ud83d"])).vectors, ["half ?"])


async def test_a_large_answer_is_read(api, embedder_of):
    api.dimension = 60
    embedder = await embedder_of(dimension=60)
    texts = [str(number) for number in range(300)]
    assert same((await embedder.embed(texts)).vectors, texts, 60)


# ---- what goes wrong


@pytest.mark.parametrize(
    ("what", "kind", "code", "retry_after"),
    [
        ({"status": 429, "headers": {"Retry-After": "7"}}, EmbedderFailed, "BUSY", 7),
        ({"status": 429}, EmbedderFailed, "BUSY", None),
        ({"status": 503, "headers": {"Retry-After": "2"}}, EmbedderFailed, "BUSY", 2),
        ({"status": 500, "body": b"<html>"}, EmbedderFailed, "AWAY", None),
        ({"status": 502}, EmbedderFailed, "AWAY", None),
        ({"status": 408}, EmbedderFailed, "AWAY", None),
        ({"status": 401}, DocumentRefused, "FORBIDDEN", None),
        ({"status": 403}, DocumentRefused, "FORBIDDEN", None),
        ({"status": 400}, DocumentRefused, "REFUSED", None),
        ({"status": 404}, DocumentRefused, "REFUSED", None),
        ({"status": 413}, DocumentRefused, "REFUSED", None),
        ({"status": 301, "headers": {"Location": "/"}}, DocumentRefused, "REFUSED", None),
    ],
    ids=str,
)
async def test_a_refusal_is_told_by_its_kind(api, embedder_of, what, kind, code, retry_after):
    embedder = await embedder_of()
    api.then(**{"body": {"error": {"message": "said so"}}, **what})
    with pytest.raises(DocumentError) as failed:
        await embedder.embed(["x"])
    assert type(failed.value) is kind
    assert failed.value.error_code == f"ERR_EMBEDDER_{code}"
    assert failed.value.retry_after == retry_after
    copy = pickle.loads(pickle.dumps(failed.value))  # noqa: S301  our own
    assert (copy.error_code, copy.retry_after) == (failed.value.error_code, retry_after)
    if code != "BUSY":
        assert same((await embedder.embed(["x"])).vectors, ["x"]), "the next call is another matter"


@pytest.mark.parametrize(
    "body",
    [
        b'{"data": [{"index": 0',
        b"\xff\xfe",
        b"",
        b"[]",
        b'{"data": []}',
        b'{"data": [{"index": 1, "embedding": [1, 2, 3, 4]}]}',
        b'{"data": [{"index": 0, "embedding": []}]}',
        b'{"data": [{"index": 0, "embedding": "AACAPw=="}]}',
        b'{"data": [{"index": 0, "embedding": [1, null, 3, 4]}]}',
        b'{"data": [{"index": 0, "embedding": [1, NaN, 3, 4]}]}',
        b'{"data": [{"index": 0, "embedding": [1, 1e999, 3, 4]}]}',
        b'{"data": ' + b"[" * 10_000,
    ],
)
async def test_an_answer_that_makes_no_sense_is_not_used(api, embedder_of, body):
    embedder = await embedder_of()
    api.then(body=body)
    with pytest.raises(EmbedderFailed) as failed:
        await embedder.embed(["x"])
    assert failed.value.error_code == "ERR_EMBEDDER_ANSWER"


async def test_a_vector_that_points_nowhere_is_refused(api, embedder_of):
    embedder = await embedder_of()
    api.then(body={"data": [{"index": 0, "embedding": [0, 0, 0, 0]}]})
    with pytest.raises(DocumentRefused, match="'x'") as refused:
        await embedder.embed(["x"])
    assert refused.value.error_code == "ERR_EMBEDDER_REFUSED"


async def test_a_date_says_when_to_come_back(api, embedder_of):
    embedder = await embedder_of()
    now = time.time()
    dates = {"Retry-After": formatdate(now + 30, usegmt=True), "Date": formatdate(now, usegmt=True)}
    api.then(status=429, headers=dates, body={})
    with pytest.raises(EmbedderFailed) as failed:
        await embedder.embed(["x"])
    assert 29 <= failed.value.retry_after <= 31


async def test_answers_in_another_order_are_put_in_order(api, embedder_of):
    embedder = await embedder_of()
    api.then(change=lambda answer: answer["data"].reverse())
    assert same((await embedder.embed(["a", "b", "c"])).vectors, ["a", "b", "c"])


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer["data"].pop(),
        lambda answer: answer["data"].append(answer["data"][0]),
        lambda answer: answer["data"][1].update(index=0),
        lambda answer: answer["data"][1].update(index=-1),
        lambda answer: answer["data"][0].update(embedding=[1.0]),
        lambda answer: answer.pop("data"),
    ],
)
async def test_an_answer_that_does_not_fit_the_question_is_not_used(api, embedder_of, change):
    embedder = await embedder_of()
    api.then(change=change)
    with pytest.raises(EmbedderFailed) as failed:
        await embedder.embed(["a", "b"])
    assert failed.value.error_code == "ERR_EMBEDDER_ANSWER"


async def test_answers_without_index_and_usage_are_taken_as_they_come(api, embedder_of):
    def bare(answer):
        answer.pop("usage")
        for item in answer["data"]:
            item.pop("index")

    embedder = await embedder_of()
    api.then(change=bare)
    vectors, tokens, _ = await embedder.embed(["a", "b"])
    assert same(vectors, ["a", "b"])
    assert tokens == 2


@pytest.mark.parametrize("refuses", [False, True])
async def test_vectors_of_another_dimension_are_refused(api, embedder_of, refuses):
    async def one_dimension(asked):
        if refuses and "dimensions" in asked:
            return {"status": 400, "body": {"error": {"message": "no such word"}}}
        return {"change": lambda answer: [i.update(embedding=[1.0] * 4) for i in answer["data"]]}

    api.before = one_dimension
    embedder = await embedder_of(dimension=8)
    for _ in range(2):
        with pytest.raises(DocumentRefused) as refused:
            await embedder.embed(["x"])
        assert refused.value.error_code == "ERR_DIMENSION_MISMATCH"


async def test_an_api_that_hangs_or_trickles_is_given_up(api, embedder_of):
    embedder = await embedder_of(timeout=0.3)
    api.then(hang=True)
    with pytest.raises(EmbedderFailed) as failed:
        await embedder.embed(["x"])
    assert failed.value.error_code == "ERR_EMBEDDER_AWAY"
    assert same((await embedder.embed(["x"])).vectors, ["x"])


async def test_a_connection_that_ended_between_two_calls_is_replaced_at_once(api, embedder_of):
    embedder = await embedder_of()
    await embedder.embed(["x"])
    api.then(cut=True)
    assert same((await embedder.embed(["y"])).vectors, ["y"])
    api.then(cut=True)
    api.then(cut=True)
    with pytest.raises(EmbedderFailed) as failed:
        await embedder.embed(["z"])
    assert failed.value.error_code == "ERR_EMBEDDER_AWAY"
    api.then(body=b'{"data":', length=1_000, close=True)
    assert same((await embedder.embed(["z"])).vectors, ["z"])


async def test_an_api_that_is_not_there_is_away(api, embedder_of):
    embedder = await embedder_of()
    await api.stop()
    with pytest.raises(EmbedderFailed) as failed:
        await embedder.embed(["x"])
    assert failed.value.error_code == "ERR_EMBEDDER_AWAY"


async def test_key_and_texts_go_to_the_api_and_nowhere_else(api, embedder_of, monkeypatch, caplog):
    for name in (None, "httpx", "httpcore"):  # the configuration of a worker has quietened these
        caplog.set_level(logging.DEBUG, logger=name)
    monkeypatch.setenv("EMBEDDING_KEY", f" {SECRET}\n")
    api.url = api.url.replace("http://", "http://someone:hidden@")
    embedder = await embedder_of(api_key_env="EMBEDDING_KEY")
    await embedder.embed(["a C4nary of the text"])
    assert api.headers[0]["authorization"] == f"Bearer {SECRET}"
    said = [repr(embedder)]
    for status in (400, 401, 429, 500):
        api.then(status=status, body={"error": {"message": f"your key {SECRET} is bad"}})
        with pytest.raises(DocumentError) as failed:
            await embedder.embed(["a C4nary of the text"])
        said += [str(failed.value), repr(failed.value)]
        await embedder._limits._calls.penalise(0)
    assert not [words for words in said for one in (SECRET, "hidden", "C4nary") if one in words]
    assert SECRET not in caplog.text
    assert "hidden" not in caplog.text
    assert "C4nary" not in caplog.text
    assert "httpcore" in caplog.text, "the most talkative logger is heard"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"url": None}, "url"),
        ({"model": ""}, "model"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "not a url"}, "url"),
        ({"url": "http://"}, "url"),
        ({"api_key_env": "NO_SUCH_VARIABLE_HERE"}, "NO_SUCH_VARIABLE_HERE is not set"),
    ],
)
async def test_what_cannot_be_called_is_a_mistake_in_the_configuration(embedder_of, words, problem):
    with pytest.raises(ConfigurationWrong, match=problem):
        await embedder_of(**words)


async def test_without_a_key_a_password_in_the_url_is_used(api, embedder_of):
    api.url = api.url.replace("http://", "http://someone:hidden@")
    await (await embedder_of()).embed(["x"])
    assert api.headers[0]["authorization"].startswith("Basic ")


async def test_a_key_that_is_none_is_refused_without_showing_it(embedder_of, monkeypatch):
    monkeypatch.setenv("EMBEDDING_KEY", "two\nlines")
    with pytest.raises(ConfigurationWrong) as wrong:
        await embedder_of(api_key_env="EMBEDDING_KEY")
    assert "lines" not in str(wrong.value)


async def test_an_api_that_is_away_when_its_dimension_is_asked_for_may_be_opened_later(api, app):
    embedder = HttpEmbedder(Embeddings(provider="http", model="m", url=api.url), app)
    api.then(status=500, body={})
    with pytest.raises(EmbedderFailed):
        await embedder.open()
    assert embedder._client is None
    await embedder.open()
    assert same((await embedder.embed(["x"])).vectors, ["x"])
    await embedder.close()


async def test_a_closed_embedder_may_be_opened_again(embedder_of):
    embedder = await embedder_of()
    await embedder.close()
    await embedder.close()
    with pytest.raises(NotOpen):
        await embedder.embed(["x"])
    await embedder.open()
    await embedder.open()
    assert same((await embedder.embed(["x"])).vectors, ["x"])


# ---- limits


async def test_the_calls_of_all_processes_keep_to_the_limit(api, embedder_of, open_one):
    embedders = [await embedder_of(await open_one(), calls_per_minute=5) for _ in range(2)]
    asked = [asyncio.create_task(embedders[n % 2].embed([str(n)])) for n in range(8)]
    await eventually(lambda: sum(task.done() for task in asked) == 5)
    assert len(api.asked) == 5
    waiting = [task for task in asked if not task.done()]
    assert len(waiting) == 3, "they wait for their turn"
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_tokens_are_reserved_and_settled(api, app, embedder_of):
    embedder = await embedder_of(tokens_per_minute=100)
    await embedder.embed(["x" * 200])  # guessed at 51, it was 7
    assert (await embedder._limits._tokens.peek()).remaining == 93
    api.then(status=400, body={})
    with pytest.raises(DocumentRefused):
        await embedder.embed(["x" * 200])
    assert (await embedder._limits._tokens.peek()).remaining == 93, "a refusal costs nothing"
    api.then(status=500, body={})
    with pytest.raises(EmbedderFailed):
        await embedder.embed(["x" * 40])
    assert (await embedder._limits._tokens.peek()).remaining == 82, "nobody knows whether it did"


async def test_a_call_has_no_more_tokens_than_a_minute(api, embedder_of):
    embedder = await embedder_of(tokens_per_minute=100)
    texts = [letter * 200 for letter in "abc"]
    assert same((await embedder.embed(texts)).vectors, texts)
    assert [len(asked["input"]) for asked in api.asked] == [1, 1, 1]
    other = await embedder_of(tokens_per_minute=20, model="other")
    assert same((await other.embed(["y" * 1_000])).vectors, ["y" * 1_000])


async def test_a_busy_api_is_left_alone_by_all_processes(api, embedder_of, open_one):
    first, second = [await embedder_of(await open_one(), timeout=1) for _ in range(2)]
    api.then(status=429, headers={"Retry-After": "120"}, body={})
    with pytest.raises(EmbedderFailed):
        await first.embed(["x"])
    for embedder in (first, second):
        with pytest.raises(EmbedderFailed, match="left alone") as busy:
            await embedder.embed(["x"])
        assert busy.value.error_code == "ERR_EMBEDDER_BUSY"
        assert 100 < busy.value.retry_after <= 120
    assert len(api.asked) == 1


async def test_a_short_pause_is_waited_for(api, embedder_of, open_one, monkeypatch):
    monkeypatch.setattr(http, "_BUSY_S", 0.3)
    first, second = [await embedder_of(await open_one()) for _ in range(2)]
    api.then(status=429, body={})
    began = time.monotonic()
    with pytest.raises(EmbedderFailed):
        await first.embed(["x"])
    assert same((await second.embed(["x"])).vectors, ["x"])
    assert time.monotonic() - began > 0.29


async def test_the_api_is_asked_while_redis_is_away(api, embedder_of, open_one, start_server):
    server = start_server()
    embedder = await embedder_of(
        await open_one(server.url), calls_per_minute=100, tokens_per_minute=1_000
    )
    assert same((await embedder.embed(["x"])).vectors, ["x"])
    server.kill()
    assert same((await embedder.embed(["y"])).vectors, ["y"])
    api.then(status=429, body={})
    with pytest.raises(EmbedderFailed):
        await embedder.embed(["z"])


# ---- remembering


class Counting:
    """An embedder that counts what it makes, and makes it when told to."""

    model, dimension = "counting", 4

    def __init__(self, *, free=True):
        self.made: list[str] = []
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        if free:
            self.go_on.set()

    async def open(self):
        pass

    async def close(self):
        pass

    async def embed(self, texts):
        self.made += texts
        self.began.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        vectors = [unit(text).astype("<f4").tobytes() for text in texts]
        return Embedding(vectors, 5 * len(texts))


async def test_vectors_are_remembered_over_all_processes(open_one):
    embedders, rememberers = [], []
    for _ in range(2):
        embedders.append(Counting())
        cache = (await open_one()).cache("embedding")
        rememberers.append(CachedEmbedder(embedders[-1], cache, 60))
    vectors, tokens, cached = await rememberers[0].embed(["a", "b", "a"])
    assert same(vectors, ["a", "b", "a"])
    assert (tokens, cached) == (10, 0)
    vectors, tokens, cached = await rememberers[1].embed(["b", "c", "a"])
    assert same(vectors, ["b", "c", "a"])
    assert (tokens, cached) == (5, 2)
    assert embedders[1].made == ["c"]
    assert await rememberers[1].embed(["b", "b"]) == ([vectors[0]] * 2, 0, 2)
    assert await rememberers[1].embed([]) == ([], 0, 0)


async def test_models_dimensions_and_apis_are_told_apart(app):
    first, other_model, wider = Counting(), Counting(), Counting()
    other_model.model, wider.dimension = "other", 8
    cache = app.cache("embedding")
    await CachedEmbedder(first, cache, 60).embed(["a"])
    await CachedEmbedder(other_model, cache, 60).embed(["a"])
    await CachedEmbedder(first, cache, 60, scope="http://elsewhere").embed(["a"])
    assert (first.made, other_model.made) == (["a", "a"], ["a"])
    assert CachedEmbedder(wider, cache, 60)._keys(["a"]) != CachedEmbedder(first, cache, 60)._keys(
        ["a"]
    )


async def test_what_many_ask_for_at_once_is_made_once(open_one):
    made = []
    rememberers = []
    for _ in range(3):
        embedder = Counting()
        embedder.made = made
        rememberers.append(CachedEmbedder(embedder, (await open_one()).cache("embedding"), 60))
    texts = [str(number) for number in range(40)]
    asked = await asyncio.gather(*(rememberers[n % 3].embed(texts[n : n + 20]) for n in range(20)))
    assert sorted(made) == sorted(texts[:39])
    assert all(same(one.vectors, texts[n : n + 20]) for n, one in enumerate(asked))
    assert sum(one.tokens for one in asked) == 5 * 39
    assert sum(one.cached for one in asked) == 20 * 20 - 39


async def test_what_an_embedder_refuses_is_not_remembered(app):
    embedder = Counting()
    rememberer = CachedEmbedder(embedder, app.cache("embedding"), 60)
    embedder.error = EmbedderFailed("busy", retry_after=3)
    with pytest.raises(EmbedderFailed) as failed:
        await rememberer.embed(["a"])
    assert failed.value.retry_after == 3
    embedder.error = None
    assert (await rememberer.embed(["a"])).cached == 0
    assert (await rememberer.embed(["a"])).cached == 1


async def test_a_remembered_vector_of_another_size_is_made_anew(app):
    embedder, cache = Counting(), app.cache("embedding")
    rememberer = CachedEmbedder(embedder, cache, 60)
    for wrong in (b"", b"\x00" * 12, "not even bytes", None, 7):
        [(key, _)] = rememberer._keys(["a"])
        await cache.set(key, wrong)
        answer = await rememberer.embed(["a", "b"])
        assert same(answer.vectors, ["a", "b"])
    assert embedder.made.count("a") == 5
    assert embedder.made.count("b") == 1


async def test_without_the_cache_everything_is_made(open_one, start_server, caplog):
    server = start_server()
    embedder = Counting()
    cache = (await open_one(server.url)).cache("embedding")
    rememberer = CachedEmbedder(embedder, cache, 60)
    await rememberer.embed(["a"])
    server.kill()
    for _ in range(3):
        assert same((await rememberer.embed(["a", "b"])).vectors, ["a", "b"])
    assert len(embedder.made) == 7
    assert caplog.text.count("without the cache") == 1


async def test_what_was_made_before_the_cache_went_away_is_not_made_twice(
    open_one, start_server, caplog
):
    server = start_server()
    embedder, other = Counting(free=False), Counting(free=False)
    first = CachedEmbedder(embedder, (await open_one(server.url)).cache("embedding"), 60)
    second = CachedEmbedder(other, (await open_one(server.url)).cache("embedding"), 60)
    elsewhere = asyncio.create_task(second.embed(["theirs"]))
    await other.began.wait()
    asked = asyncio.create_task(first.embed(["ours", "theirs"]))
    await embedder.began.wait()
    server.kill()
    embedder.go_on.set()
    assert same((await asked).vectors, ["ours", "theirs"])
    assert embedder.made == ["ours", "theirs"]
    other.go_on.set()
    assert same((await elsewhere).vectors, ["theirs"])


async def test_the_cache_is_asked_again_after_a_while(open_one, start_server, monkeypatch):
    monkeypatch.setattr(cached, "_LET_ALONE_S", 0.0)
    server = start_server()
    embedder = Counting()
    rememberer = CachedEmbedder(embedder, (await open_one(server.url)).cache("embedding"), 60)
    server.kill()
    await rememberer.embed(["a"])
    server.start()

    async def is_remembered():
        return (await rememberer.embed(["b"])).cached == 1

    await eventually(is_remembered)


async def test_a_process_that_dies_with_a_text_is_replaced(open_one):
    quick = {"cache": CacheSettings(flight_s=0.3)}
    dying, alive = Counting(free=False), Counting()
    app = await open_one(**quick)
    held = asyncio.create_task(CachedEmbedder(dying, app.cache("embedding"), 60).embed(["a"]))
    await dying.began.wait()
    await app.leases.close()  # it is as silent as the dead
    other = CachedEmbedder(alive, (await open_one(**quick)).cache("embedding"), 60)
    assert same((await other.embed(["a"])).vectors, ["a"])
    assert alive.made == ["a"]
    held.cancel()
    await asyncio.wait([held])


# ---- the embedder of a RAG


def rag_of(name="rag", **embeddings):
    return RagConfig(rag_id=name, embeddings=Embeddings(**embeddings))


async def test_the_built_in_embedder_is_the_default(app):
    embedder = open_embedder(rag_of(), app)
    await embedder.open()
    vectors, tokens, cached = await embedder.embed(["a text", "another", "a text"])
    assert {len(vector) for vector in vectors} == {1024}
    assert vectors[0] == vectors[2]
    assert tokens > 0
    assert cached == 0
    assert embedder.model == BuiltinEmbedder().model
    await embedder.close()


@pytest.mark.parametrize(
    ("embeddings", "problem"),
    [
        ({"dimension": 384}, "dimension: the built-in model has 256"),
        ({"model": "text-embedding-3-small"}, "model: the built-in one is"),
        ({"provider": "http", "model": "m"}, "url"),
        ({"provider": "sentence-transformers"}, "model"),
    ],
)
async def test_an_embedder_that_cannot_be_is_a_mistake(app, embeddings, problem):
    with pytest.raises(ConfigurationWrong, match=problem):
        open_embedder(rag_of(**embeddings), app)


async def test_the_built_in_model_may_be_named(app):
    for name in (BuiltinEmbedder().model, "wordllama-l2-supercat-256"):
        assert open_embedder(rag_of(model=name, dimension=256), app).dimension == 256


async def test_rags_with_the_same_embeddings_share_an_embedder_and_its_calls(api, app):
    words = {"provider": "http", "model": "m", "url": api.url, "dimension": 4}
    first, second = (open_embedder(rag_of(name, **words), app) for name in ("one", "two"))
    other = open_embedder(rag_of("three", **{**words, "model": "n"}), app)
    assert first is second
    assert first is not other
    await first.open()
    await second.open()
    await asyncio.gather(first.embed(["a", "b"]), second.embed(["b", "c"]))
    assert [asked["input"] for asked in api.asked] == [["a", "b", "c"]]
    assert await first.embed(["c"]) == ((await second.embed(["c"])).vectors, 0, 1)
    await first.close()
    assert (await second.embed(["d"])).tokens == 7
    await second.close()


@pytest.mark.parametrize(
    ("embeddings", "times"), [({"cache": False}, 2), ({}, 1), ({"cache": True}, 1)]
)
async def test_what_costs_is_remembered_unless_told_otherwise(api, app, embeddings, times):
    words = {"provider": "http", "model": "m", "url": api.url, "dimension": 4}
    embedder = open_embedder(rag_of(**words, **embeddings), app)
    await embedder.open()
    for _ in range(2):
        await embedder.embed(["a"])
    assert len(api.asked) == times
    await embedder.close()


async def test_the_built_in_vectors_are_remembered_if_asked_for(app):
    embedder = open_embedder(rag_of(cache=True), app)
    await embedder.open()
    assert [(await embedder.embed(["a"])).cached for _ in range(2)] == [0, 1]
    await embedder.close()


async def test_an_embedder_goes_with_the_last_of_its_users(app):
    gone = weakref.ref(open_embedder(rag_of(batch=3), app))
    gc.collect()
    assert gone() is None
    kept = open_embedder(rag_of(batch=3), app)
    gc.collect()
    assert kept is open_embedder(rag_of(batch=3), app)


async def test_one_bad_text_spoils_only_its_own_document(api, app):
    async def no_poison(asked):
        if any("poison" in text for text in asked["input"]):
            return {"status": 400, "body": {"error": {"message": "too many tokens"}}}
        return None

    api.before = no_poison
    words = {"provider": "http", "model": "m", "url": api.url, "dimension": 4}
    embedder = open_embedder(rag_of(**words), app)
    await embedder.open()
    documents = [[f"{n} {at}" for at in range(5)] for n in range(10)]
    documents[3][2] = "poison"
    asked = await asyncio.gather(*map(embedder.embed, documents), return_exceptions=True)
    for number, (texts, one) in enumerate(zip(documents, asked, strict=True)):
        if number == 3:
            assert isinstance(one, DocumentRefused)
            assert "too many tokens" in str(one)
        else:
            assert same(one.vectors, texts)
    await embedder.close()
