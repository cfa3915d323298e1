"""The security pipeline's dedupe marks, cached values and sorted sets, letter by letter.

Its other programs are plain redis-py, as its pages show them.
"""

import hashlib
import json

import pytest

from penstock import Penstock
from penstock.coordination.cache.cache import Cache
from penstock.coordination.leases import Leases
from penstock.coordination.once.once import Once
from penstock.settings import Settings

PATH = "/export/foscam/Front Door/image_001.jpg"
SHA256 = hashlib.sha256(b"an image").hexdigest()
MARK = f"dedupe:{SHA256}"


@pytest.fixture
async def leases(app):
    made = Leases(app.redis)
    yield made
    await made.close()


@pytest.fixture
def once(app, leases):
    return Once(app.redis, app.codec, leases)


@pytest.fixture
def cache(app, leases):
    return Cache(app.redis, app.codec, "camera", leases)


# ---- dedupe:{sha256_hash}


async def test_a_mark_is_a_text_with_the_path_for_five_minutes(once, stock):
    assert not await once.seen(SHA256, PATH)
    assert stock.type(MARK) == "string"
    assert stock.get(MARK) == PATH
    assert 295 <= stock.ttl(MARK) <= 300


async def test_a_reservation_ends_in_the_same_mark(once, stock):
    async with once.reserve(SHA256, value=PATH):
        assert stock.get(MARK) == PATH, "others skip it from the beginning"
    assert stock.get(MARK) == PATH
    assert 295 <= stock.ttl(MARK) <= 300


async def test_an_enqueued_detection_has_the_same_mark(once, app, stock):
    job = {"camera_id": "front_door", "file_path": PATH}
    assert (await once.enqueue(SHA256, app.queue("detection_queue"), job, value=PATH)).first
    assert stock.get(MARK) == PATH
    assert 295 <= stock.ttl(MARK) <= 300
    assert stock.llen("detection_queue") == 1
    told = json.loads(stock.lindex("detection_queue", 0))
    assert {name: told[name] for name in job} == job


async def test_what_another_program_has_marked_was_seen(once, app, stock):
    stock.set(MARK, PATH, ex=300)
    assert await once.seen(SHA256, "/other.jpg")
    assert await once.peek(SHA256) == PATH
    async with once.reserve(SHA256) as mark:
        assert (mark.first, mark.value) == (False, PATH)
    added = await once.enqueue(SHA256, app.queue("detection_queue"), {})
    assert (added.first, added.value) == (False, PATH)
    assert stock.exists("detection_queue") == 0


async def test_a_mark_that_another_program_has_deleted_may_be_set_again(once, stock):
    assert not await once.seen(SHA256, PATH)
    stock.delete(MARK)
    async with once.reserve(SHA256, value=PATH) as mark:
        assert mark.first
    stock.delete(MARK)
    assert not await once.seen(SHA256, PATH)


async def test_dedupe_ttl_seconds_says_how_long(own_server, stock, monkeypatch):
    monkeypatch.setenv("DEDUPE_TTL_SECONDS", "60")
    async with Penstock(own_server.url) as app:
        assert not await Once(app.redis, app.codec, Leases(app.redis)).seen(SHA256, PATH)
    assert 55 <= stock.ttl(MARK) <= 60


# ---- cache:{namespace}:{key}


async def test_what_is_cached_here_reads_there_as_json(cache, stock):
    for value in ({"data": "value"}, [1, 2], "text", 5, None, True):
        await cache.set("front_door", value, ttl=3600)
        assert json.loads(stock.get("cache:camera:front_door")) == value
        assert 3_595 <= stock.ttl("cache:camera:front_door") <= 3_600
    await cache.get_or_set("made", lambda: {"data": "made"})
    assert json.loads(stock.get("cache:camera:made")) == {"data": "made"}


async def test_what_is_cached_there_is_found_here(cache, stock):
    stock.set("cache:camera:front_door", json.dumps({"data": "value"}), ex=3600)
    assert await cache.get("front_door") == {"data": "value"}
    assert await cache.get_many(["front_door"]) == {"front_door": {"data": "value"}}
    assert await cache.exists("front_door")
    assert not await cache.set("front_door", 1, nx=True)
    assert await cache.delete("front_door") == 1
    assert stock.exists("cache:camera:front_door") == 0
    assert await cache.set("front_door", 1, nx=True, ttl=30)
    assert 25 <= stock.ttl("cache:camera:front_door") <= 30


async def test_a_value_that_is_not_compressed_is_json_at_any_size(own_server, stock, leases):
    settings = Settings.load({"url": own_server.url, "codec.compress_above": 1024 * 1024})
    async with Penstock(settings=settings) as app:
        await Cache(app.redis, app.codec, "camera", leases).set("large", ["x"] * 5_000)
    assert json.loads(stock.get("cache:camera:large")) == ["x"] * 5_000


# ---- sorted sets


async def test_sorted_sets_are_those_of_redis(cache, stock):
    key = "cache:camera:sorted:priority_queue"
    assert await cache.zadd("priority_queue", {"old": 1_000.5, "new": 2_000.0}) == 2
    assert stock.zrange(key, 0, -1, withscores=True) == [("old", 1_000.5), ("new", 2_000.0)]
    stock.zadd(key, {"theirs": 3_000})
    assert await cache.zpopmax("priority_queue", count=1) == [("theirs", 3_000.0)]
    assert await cache.zrangebyscore("priority_queue", 1_500, 2_500) == ["new"]
    assert await cache.zremrangebyscore("priority_queue", "-inf", 1_500) == 1
    assert stock.zrange(key, 0, -1) == ["new"]
