"""Vectors in the data directory: every method, through the process that has the engine."""

import asyncio
import importlib.util
import math
import stat
import struct
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kit.stores.vector_points import (
    DIMENSION,
    house_gone,
    opened,
    packed,
    place_of,
    point,
    point_id,
    points,
    settings_for,
    unit,
)

from penstock.errors import ConfigError, NotOpen, StoreFull, StoreMismatch
from penstock.settings import Settings
from penstock.stores import opening
from penstock.stores.vectors import edge, edge_collection
from penstock.stores.vectors import requests as ask
from penstock.stores.vectors.edge import EdgeEngine
from penstock.stores.vectors.edge_files import collection_name, folder_name
from penstock.stores.vectors.port import CollectionInfo, Point
from penstock.stores.vectors.requests import Upsert
from penstock.testing.eventually import eventually


@pytest.fixture
async def store(tmp_path):
    async with opened(tmp_path) as store:
        await store.create("books", DIMENSION)
        yield store
    await house_gone(tmp_path)


@pytest.fixture
def engine(tmp_path):
    engine = EdgeEngine(tmp_path / "engine")
    engine.create("books", DIMENSION)
    yield engine
    engine.close()


def mode_of(path):
    """Its permissions; None if there is no such file."""
    try:
        return stat.S_IMODE(Path(path).lstat().st_mode)
    except FileNotFoundError:
        return None


def environment_of(pid):
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_what_was_stored_is_found_with_its_payload_and_its_score(store):
    await store.upsert("books", "a", 1, points("a", 3, text="Ä ß 中", nested={"x": [1, None, 2.5]}))
    hits = await store.search("books", unit("a/1"), limit=2)
    best = hits[0]
    assert best.id == point_id("a", 1)
    assert (best.document, best.generation) == ("a", 1)
    assert best.payload == {"n": 1, "text": "Ä ß 中", "nested": {"x": [1, None, 2.5]}}
    assert best.score == pytest.approx(1.0, abs=1e-5)
    assert hits[0].score >= hits[1].score


async def test_unit_vectors_come_back_as_they_went_in(store):
    given = points("a", 20)
    await store.upsert("books", "a", 1, given)
    missing = str(uuid.uuid4())
    found = await store.vectors("books", [p.id for p in given] + [missing])
    assert set(found) == {p.id for p in given}
    for p in given:
        ours = struct.unpack(f"<{DIMENSION}f", p.vector)
        theirs = struct.unpack(f"<{DIMENSION}f", found[p.id])
        assert theirs == pytest.approx(ours, abs=1e-6)
    assert await store.vectors("books", []) == {}


async def test_a_search_keeps_to_documents_and_to_a_score(store):
    for document in ("a", "b", "c"):
        await store.upsert("books", document, 1, points(document, 5))
    some = await store.search("books", unit("a/1"), limit=100, documents=["b", "c"])
    assert {hit.document for hit in some} == {"b", "c"}
    assert len(some) == 10
    sure = await store.search("books", unit("a/1"), limit=100, threshold=0.999)
    assert [hit.id for hit in sure] == [point_id("a", 1)]
    assert await store.search("books", unit("a/1"), limit=0) == []


async def test_a_write_never_replaces_a_point_of_a_later_generation(store):
    await store.upsert("books", "a", 3, [point("a", 0, text="three")])
    await store.upsert("books", "a", 2, [point("a", 0, text="two"), point("a", 1, text="two")])
    texts = {h.payload["text"] for h in await store.search("books", unit("a/0"), limit=9)}
    assert texts == {"three", "two"}
    hits = await store.search("books", unit("a/0"), limit=1)
    assert (hits[0].generation, hits[0].payload["text"]) == (3, "three")
    await store.upsert("books", "a", 3, [point("a", 0, text="three again")])
    hits = await store.search("books", unit("a/0"), limit=1)
    assert hits[0].payload["text"] == "three again"


async def test_versions_that_are_written_at_once_end_with_the_latest(store):
    async def write(generation):
        batch = [point("a", n, text=str(generation)) for n in range(5)]
        await store.upsert("books", "a", generation, batch)

    generations = [*range(1, 40)]
    await asyncio.gather(*(write(g) for g in generations[::2] + generations[::-2]))
    hits = await store.search("books", unit("a/0"), limit=100)
    assert len(hits) == 5
    assert {(hit.generation, hit.payload["text"]) for hit in hits} == {(39, "39")}


async def test_earlier_generations_of_one_document_are_removed(store):
    await store.upsert("books", "a", 1, points("a", 4))
    await store.upsert("books", "b", 1, points("b", 4))
    await store.upsert("books", "a", 2, points("a", 2))
    await store.delete_before("books", "a", 2)
    assert await store.counts("books", ["a", "b", "c"]) == {"a": 2, "b": 4, "c": 0}
    hits = await store.search("books", unit("a/0"), limit=99, documents=["a"])
    assert {hit.generation for hit in hits} == {2}


async def test_one_generation_of_one_document_is_removed(store):
    await store.upsert("books", "a", 1, points("a", 4))
    await store.upsert("books", "a", 2, [point("a", n) for n in (9, 10)])
    await store.delete_generation("books", "a", 1)
    assert await store.counts("books", ["a"]) == {"a": 2}
    await store.delete_generation("books", "a", 1)
    assert await store.counts("books", ["a"]) == {"a": 2}


async def test_a_name_can_stand_for_a_collection_and_then_for_another(store):
    await store.create("books-2", DIMENSION)
    await store.alias("now", "books")
    await store.upsert("now", "a", 1, points("a", 1))
    assert await store.aliases() == {"now": "books"}
    assert await store.describe("now") == CollectionInfo("books", DIMENSION, 1)
    await store.alias("now", "books-2")
    await store.alias("now", "books-2")
    assert await store.aliases() == {"now": "books-2"}
    assert await store.search("now", unit("a/0"), limit=5) == []
    await store.drop("books-2")
    assert await store.aliases() == {}


async def test_aliases_and_collections_do_not_share_names(store):
    with pytest.raises(StoreMismatch, match="no collection 'none'"):
        await store.alias("now", "none")
    with pytest.raises(StoreMismatch, match="is a collection"):
        await store.alias("books", "books")
    await store.alias("now", "books")
    with pytest.raises(StoreMismatch, match="alias"):
        await store.create("now", DIMENSION)
    await store.drop("now")  # there is no collection of this name
    assert await store.describe("books") == CollectionInfo("books", DIMENSION, 0)


async def test_collections_are_made_once_listed_and_dropped(store):
    await store.create("books", DIMENSION)
    with pytest.raises(StoreMismatch, match="8 dimensions, not 9"):
        await store.create("books", 9)
    await store.create("Ünï/.. %41", 3)
    assert {info.name: info.dimension for info in await store.collections()} == {
        "books": DIMENSION,
        "Ünï/.. %41": 3,
    }
    await store.drop("Ünï/.. %41")
    await store.drop("Ünï/.. %41")
    assert [info.name for info in await store.collections()] == ["books"]
    assert await store.describe("Ünï/.. %41") is None


async def test_without_a_collection_nothing_is_there_and_nothing_can_be_written(store):
    assert await store.vectors("none", [point_id(1)]) == {}
    assert await store.counts("none", ["a"]) == {"a": 0}
    await store.delete_before("none", "a", 2)
    await store.delete_generation("none", "a", 2)
    with pytest.raises(StoreMismatch, match="no collection 'none'"):
        await store.upsert("none", "a", 1, points("a", 1))
    with pytest.raises(StoreMismatch, match="no collection 'none'"):
        await store.search("none", unit("a/1"), limit=1)


@pytest.mark.parametrize(
    "bad",
    [
        packed([0.5] * (DIMENSION - 1)),
        packed([0.5] * DIMENSION) + b"x",
        b"",
        packed([0.5] * (DIMENSION - 1) + [math.nan]),
        packed([math.inf] + [0.5] * (DIMENSION - 1)),
        packed([math.inf, -math.inf] + [0.5] * (DIMENSION - 2)),
    ],
)
async def test_a_vector_that_does_not_belong_here_is_refused_alone(store, bad):
    good, wrong = points("a", 3), [point("b", 0), Point(point_id("b", 1), bad, {})]
    results = await asyncio.gather(
        store.upsert("books", "a", 1, good),
        store.upsert("books", "b", 1, wrong),
        store.upsert("books", "c", 1, points("c", 3)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), StoreMismatch, type(None)]
    assert await store.counts("books", ["a", "b", "c"]) == {"a": 3, "b": 0, "c": 3}
    with pytest.raises(StoreMismatch):
        await store.search("books", bad, limit=1)


async def test_the_largest_float_is_a_number(store):
    largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
    await store.upsert("books", "a", 1, [Point(point_id(1), packed([largest] * DIMENSION), {})])
    assert await store.counts("books", ["a"]) == {"a": 1}
    assert (await store.vectors("books", [point_id(1)])).keys() == {point_id(1)}


@pytest.mark.parametrize(
    "ask_for",
    [
        lambda s: s.create("x" * 300, 8),
        lambda s: s.create("", 8),
        lambda s: s.create("x", 0),
        lambda s: s.create("x", 10**9),
        lambda s: s.upsert("books", "a", -1, points("a", 1)),
        lambda s: s.upsert("books", "a", 2**53, points("a", 1)),
        lambda s: s.upsert("books", "a", 2**70, points("a", 1)),
        lambda s: s.delete_before("books", "a", -1),
        lambda s: s.upsert("books", "a", 1, [Point("no uuid", unit(1), {})]),
        lambda s: s.upsert("books", "a", 1, [Point(point_id(1), unit(1), {"x": math.nan})]),
        lambda s: s.upsert("books", "a", 1, [Point(point_id(1), unit(1), {"x": 2**70})]),
        lambda s: s.upsert("books", "a", 1, [Point(point_id(1), unit(1), {"x": object()})]),
        lambda s: s.upsert("books", "\ud800", 1, points("a", 1)),
        lambda s: s.vectors("books", ["no uuid"]),
    ],
)
async def test_what_nobody_can_store_is_refused_in_words(store, ask_for):
    with pytest.raises(StoreMismatch):
        await ask_for(store)
    assert await store.describe("books") == CollectionInfo("books", DIMENSION, 0)


async def test_a_request_that_is_too_large_is_not_sent(store, monkeypatch):
    monkeypatch.setattr(ask, "LARGEST_FRAME", 100)
    with pytest.raises(StoreMismatch, match="too many"):
        await store.upsert("books", "a", 1, points("a", 3))


async def test_health_names_the_engine_and_its_process(store, tmp_path):
    health = await store.health()
    assert health.ok
    assert str(place_of(tmp_path).pid()) in health.detail


async def test_all_is_there_after_everybody_has_gone_and_come_back(tmp_path):
    async with opened(tmp_path, linger_s=0) as store:
        await store.create("books", DIMENSION)
        await store.upsert("books", "a", 1, points("a", 30))
        await store.alias("now", "books")
        first = place_of(tmp_path).pid()
    await house_gone(tmp_path)
    async with opened(tmp_path, linger_s=0) as store:
        assert await store.counts("now", ["a"]) == {"a": 30}
        assert place_of(tmp_path).pid() != first
    await house_gone(tmp_path)


async def test_the_house_stays_while_somebody_is_connected(tmp_path):
    async with opened(tmp_path, linger_s=0) as first, opened(tmp_path, linger_s=0) as second:
        await first.create("books", DIMENSION)
        pid = place_of(tmp_path).pid()
        assert await second.describe("books")
        await first.close()
        assert await second.describe("books")
        assert place_of(tmp_path).pid() == pid
    await house_gone(tmp_path)


async def test_a_store_that_is_not_open_says_so(tmp_path):
    store = opening.open_vectors(settings_for(tmp_path))
    with pytest.raises(NotOpen):
        await store.collections()
    assert not (await store.health()).ok
    await store.open()
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(NotOpen):
        await store.collections()
    assert not (tmp_path / "vectors").exists()


def test_a_store_may_be_opened_again_on_another_loop(tmp_path):
    store = opening.open_vectors(settings_for(tmp_path))

    async def use():
        await store.open()
        await store.create("books", DIMENSION)
        await asyncio.gather(*(store.describe("books") for _ in range(5)))
        await store.close()

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(house_gone(tmp_path))


async def test_nobody_else_can_reach_it(store, tmp_path):
    folder = tmp_path / "vectors"
    assert mode_of(folder) == 0o700
    assert mode_of(folder / "house.sock") == 0o600
    for path in folder.iterdir():
        assert not mode_of(path) & 0o077, path


async def test_the_house_gets_none_of_the_environment_of_who_starts_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "secret")
    monkeypatch.setenv("PENSTOCK_URL", "redis://x:y@z")
    async with opened(tmp_path) as store:
        assert await store.collections() == []
        environ = environment_of(place_of(tmp_path).pid())
    assert b"secret" not in environ
    assert b"PENSTOCK" not in environ
    await house_gone(tmp_path)


async def test_a_directory_whose_path_is_too_long_for_a_socket_works(tmp_path):
    home = tmp_path / ("long" * 30)
    home.mkdir()
    async with opened(home) as store:
        await store.create("books", DIMENSION)
        socket = place_of(home).socket
        assert len(socket) < 100
        assert mode_of(socket) == 0o600
        assert mode_of(Path(socket).parent) == 0o700
    await house_gone(home)
    assert mode_of(socket) is None


def test_without_the_engine_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[documents\]'"):
        opening.open_vectors(Settings())


def test_opening_imports_no_engine_here(tmp_path):
    opening.open_vectors(settings_for(tmp_path))
    code = (
        "import sys; from penstock.settings import Settings;"
        "from penstock.stores.opening import open_vectors; open_vectors(Settings());"
        "assert 'qdrant_edge' not in sys.modules and 'qdrant_client' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["a", "A", "a.b", "..", "ä/%41%", "x" * 200, "中" * 20, "\x00"])
def test_every_collection_name_has_a_safe_file_name_of_its_own(name):
    folder = folder_name(name)
    assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_%")
    assert collection_name(folder) == name


def test_what_a_crash_left_half_made_is_cleared_away(tmp_path):
    directory = tmp_path / "engine"
    (directory / "making" / "books" / "shard").mkdir(parents=True)
    engine = EdgeEngine(directory)
    assert engine.collections() == []
    engine.create("books", DIMENSION)
    engine.close()
    again = EdgeEngine(directory)
    assert again.collections() == [CollectionInfo("books", DIMENSION, 0)]
    again.close()


def test_a_full_disk_is_told_before_the_engine_meets_it(engine, monkeypatch):
    monkeypatch.setattr(edge, "_ROOM", 2**60)
    write = Upsert(1, "books", "a", 1, points("a", 2))
    (outcome,) = engine.upsert([write])
    assert isinstance(outcome, StoreFull)
    engine.delete_before("books", "a", 1)  # which makes room
    engine.drop("books")


def test_a_disk_without_any_room_is_told_when_a_collection_is_opened(engine, monkeypatch):
    engine.close()
    monkeypatch.setattr(edge_collection, "LITTLE_ROOM", 2**60)
    with pytest.raises(StoreFull, match="no room for vectors"):
        engine.describe("books")
    monkeypatch.undo()
    assert engine.describe("books").points == 0


def test_writes_of_many_requests_become_one_and_each_has_its_outcome(engine):
    writes = [Upsert(n, "books", f"d{n}", n % 3, points(f"d{n}", 4)) for n in range(9)]
    writes[4] = Upsert(4, "books", "d4", 1, [Point(point_id(4), b"1234", {})])
    outcomes = engine.upsert(writes)
    assert [type(outcome) for outcome in outcomes] == [
        StoreMismatch if n == 4 else type(None) for n in range(9)
    ]
    assert engine.describe("books").points == 8 * 4


def test_the_same_point_twice_in_one_write_is_one_point_and_the_last_one_wins(engine):
    writes = [Upsert(n, "books", "a", 1, [point("a", 0, text=str(n))]) for n in range(5)]
    assert engine.upsert(writes) == [None] * 5
    (hit,) = engine.search("books", unit("a/0"), 5)
    assert hit.payload["text"] == "4"


async def test_a_client_that_was_cancelled_leaves_the_others_alone(store):
    asking = [
        asyncio.create_task(store.upsert("books", f"d{n}", 1, points(f"d{n}", 2)))
        for n in range(20)
    ]
    await asyncio.sleep(0)
    for task in asking[::2]:
        task.cancel()
    for task in asking:
        with suppress(asyncio.CancelledError):
            await task
    documents = [f"d{n}" for n in range(1, 20, 2)]
    assert set((await store.counts("books", documents)).values()) == {2}
    await eventually(lambda: store.describe("books"))
