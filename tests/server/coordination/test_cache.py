"""Cached values: what is there, how long, and who makes it."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, NewType

import pytest
from msgspec import Meta

from penstock import Penstock
from penstock.coordination.cache.cache import Cache
from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.leases import Leases
from penstock.errors import (
    CommandRefused,
    DecodeError,
    EncodeError,
    InvalidItem,
    InvalidName,
    SettingError,
    Unreachable,
)
from penstock.redis.node import Role
from penstock.settings import CacheSettings, Settings
from penstock.testing.eventually import eventually


@dataclass
class Camera:
    name: str
    fps: float = 1.0


@pytest.fixture
async def open_cache(place, namespace):
    """`await open_cache()` is another process, as far as the server can tell."""
    async with AsyncExitStack() as opened:

        async def open_one(space="camera", ttl_s=None, url=None, **cache) -> Cache:
            settings = Settings(
                url=url or place.url, namespace=namespace, cache=CacheSettings(**cache)
            )
            app = await opened.enter_async_context(Penstock(settings=settings))
            leases = Leases(app.redis)
            opened.push_async_callback(leases.close)
            made = Cache(app.redis, app.codec, space, leases, ttl_s=ttl_s)
            made.app, made.leases = app, leases
            return made

        yield open_one


@pytest.fixture
async def cache(open_cache):
    return await open_cache()


# ---- values


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, "", "text", "Z:1", "ä\n", [], {"a": [1, None]}, "x" * 5_000, [0] * 5_000],
    ids=str,
)
async def test_a_value_comes_back_as_it_was(cache, value):
    assert await cache.set("k", value)
    assert await cache.get("k", "default") == value
    assert await cache.exists("k")


async def test_a_stored_null_is_not_a_missing_value(cache):
    assert await cache.get("k", "default") == "default"
    assert await cache.get("k") is None
    await cache.set("k", None)
    assert await cache.get("k", "default") is None


NameText = NewType("NameText", str)


async def test_values_are_read_as_the_type_asked_for(cache):
    await cache.set("camera", Camera("front"))
    assert await cache.get("camera", type=Camera) == Camera("front")
    assert await cache.get("camera") == {"name": "front", "fps": 1.0}
    await cache.set("text", "front")
    assert await cache.get("text", type=str) == "front"
    assert await cache.get("text", type=NameText) == "front"
    assert await cache.get("text", type=Annotated[str, Meta(max_length=9)]) == "front"
    await cache.set("bytes", b"\x00\xff")
    assert await cache.get("bytes", type=bytes) == b"\x00\xff"


async def test_a_value_of_another_type_is_an_error(cache):
    await cache.set("k", {"fps": 1})
    for type_ in (Camera, str, int, bytes):
        with pytest.raises(DecodeError):
            await cache.get("k", type=type_)
    await cache.set("k", None)
    with pytest.raises(DecodeError):
        await cache.get("k", type=str)


async def test_what_has_no_json_is_refused_and_the_old_value_stays(cache):
    await cache.set("k", 1)
    for value in (float("nan"), object(), {1j: 1}):
        with pytest.raises(EncodeError):
            await cache.set("k", value)
    assert await cache.get("k") == 1


async def test_many_values_come_by_their_keys(cache):
    for number in range(600):
        if number % 2:
            await cache.set(f"k{number}", number)
    found = await cache.get_many(f"k{number}" for number in range(600))
    assert found == {f"k{number}": number for number in range(1, 600, 2)}
    await cache.set("null", None)
    assert await cache.get_many(["null", "null", "none"]) == {"null": None}
    assert await cache.get_many([]) == {}
    await cache.set("camera", Camera("front"))
    assert await cache.get_many(["camera"], type=Camera) == {"camera": Camera("front")}


async def test_nx_stores_only_what_is_missing(open_cache):
    caches = [await open_cache() for _ in range(4)]
    stored = await asyncio.gather(*(caches[n % 4].set("k", n, nx=True) for n in range(40)))
    assert stored.count(True) == 1
    assert await caches[0].get("k") == stored.index(True)
    assert await caches[0].set("k", "new")
    assert await caches[0].get("k") == "new"


async def test_values_last_an_hour_unless_told(open_cache, leaves_foreign_keys):
    cache, short = await open_cache(), await open_cache(ttl_s=5)
    await cache.set("k", 1)
    assert 3_590 < await cache.ttl("k") <= 3_600
    await cache.set("k", 1, ttl=timedelta(minutes=1))
    assert 55 < await cache.ttl("k") <= 60
    await short.set("k", 1)
    assert 4 < await short.ttl("k") <= 5
    assert await cache.expire("k", 100)
    assert 95 < await cache.ttl("k") <= 100
    assert await cache.ttl("none") is None
    assert not await cache.expire("none", 100)
    await cache.app.redis.call("PERSIST", CacheKeys.of(cache.app.redis.keys, "camera", "k").value)
    assert await cache.ttl("k") == math.inf


async def test_a_value_ends_with_its_time(cache):
    await cache.set("k", 1, ttl=0.05)

    async def is_gone():
        return await cache.get("k") is None

    await eventually(is_gone)
    assert not await cache.exists("k")


async def test_deleting_tells_how_many_there_were(cache):
    assert await cache.delete("a", "b") == 0
    await cache.set("a", 1)
    await cache.set("b", None)
    assert await cache.delete("a", "b", "c") == 2
    assert not await cache.exists("a")
    assert await cache.delete() == 0


async def test_spaces_are_apart(open_cache):
    cameras, zones = await open_cache("camera"), await open_cache("zone")
    await cameras.set("k", 1)
    assert await zones.get("k") is None
    await zones.set("k", 2)
    assert await cameras.get("k") == 1


@pytest.mark.parametrize("bad", ["", None, 7, "x" * 513])
async def test_a_key_or_space_that_is_none_is_refused(open_cache, cache, bad):
    with pytest.raises(InvalidName):
        await cache.get(bad)
    with pytest.raises(InvalidName):
        await cache.get_or_set(bad, lambda: 1)
    with pytest.raises(InvalidName):
        await open_cache(bad)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), "5", 1e12])
async def test_a_time_that_is_none_is_refused(cache, ttl):
    for call in (
        cache.set("k", 1, ttl=ttl),
        cache.expire("k", ttl),
        cache.get_or_set("k", lambda: 1, ttl=ttl),
        cache.zadd("k", {"a": 1}, ttl=ttl),
    ):
        with pytest.raises(SettingError, match="ttl"):
            await call
    assert not await cache.exists("k")


# ---- single flight


class Maker:
    """Makes a value when it is told to, and counts how often it was asked."""

    def __init__(self, value="made"):
        self.value, self.calls = value, 0
        self.began, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self):
        self.calls += 1
        self.began.set()
        await self.go_on.wait()
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


async def test_a_missing_value_is_made_stored_and_not_made_again(cache):
    calls = []

    def make():
        calls.append(1)
        return {"n": len(calls)}

    assert await cache.get_or_set("k", make, ttl=100) == {"n": 1}
    assert await cache.get_or_set("k", make) == {"n": 1}
    assert await cache.get("k") == {"n": 1}
    assert 95 < await cache.ttl("k") <= 100
    assert len(calls) == 1
    assert (
        await cache.app.redis.call(
            "EXISTS", CacheKeys.of(cache.app.redis.keys, "camera", "k").flight
        )
        == 0
    )


async def test_a_made_null_is_a_value(cache):
    maker = Maker(None)
    maker.go_on.set()
    assert await cache.get_or_set("k", maker) is None
    assert await cache.get_or_set("k", maker) is None
    assert maker.calls == 1


async def test_of_all_who_ask_in_all_processes_one_makes_it(open_cache):
    caches = [await open_cache() for _ in range(4)]
    maker = Maker({"n": 1})
    asked = [asyncio.create_task(caches[n % 4].get_or_set("k", maker)) for n in range(100)]
    await maker.began.wait()
    await asyncio.sleep(0.1)  # the others have looked several times by now
    maker.go_on.set()
    made = await asyncio.gather(*asked)
    assert made == [{"n": 1}] * 100
    assert len({id(one) for one in made}) == 100, "each has a copy of its own"
    assert maker.calls == 1


async def test_a_slow_maker_is_waited_for_as_long_as_it_lives(open_cache):
    cache, other = await open_cache(flight_s=0.2), await open_cache(flight_s=0.2)
    maker, second = Maker("slow"), Maker("second")
    second.go_on.set()
    first = asyncio.create_task(cache.get_or_set("k", maker))
    await maker.began.wait()
    waiting = asyncio.create_task(other.get_or_set("k", second))
    await asyncio.sleep(0.6)  # three times as long as one who is silent is waited for
    maker.go_on.set()
    assert await asyncio.gather(first, waiting) == ["slow", "slow"]
    assert second.calls == 0


async def test_a_failure_reaches_those_who_wait_here_and_others_try_themselves(open_cache):
    cache, other = await open_cache(), await open_cache()
    maker, second = Maker(LookupError("no such camera")), Maker("second")
    second.go_on.set()
    here = [asyncio.create_task(cache.get_or_set("k", maker)) for _ in range(3)]
    await maker.began.wait()
    there = asyncio.create_task(other.get_or_set("k", second))
    maker.go_on.set()
    ended = await asyncio.gather(*here, return_exceptions=True)
    assert [type(one) for one in ended] == [LookupError] * 3
    assert await there == "second"
    assert (maker.calls, second.calls) == (1, 1)
    assert await cache.get_or_set("k", maker) == "second"


async def test_if_the_maker_is_cancelled_one_who_waits_takes_its_place(open_cache):
    cache = await open_cache()
    maker = Maker("made")
    first = asyncio.create_task(cache.get_or_set("k", maker))
    await maker.began.wait()
    waiting = [asyncio.create_task(cache.get_or_set("k", maker)) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    maker.go_on.set()
    assert await asyncio.gather(*waiting) == ["made"] * 3
    assert first.cancelled()
    assert maker.calls == 2


async def test_a_value_that_is_set_while_another_is_made_stays(cache):
    maker = Maker("made")
    making = asyncio.create_task(cache.get_or_set("k", maker))
    await maker.began.wait()
    assert await cache.set("k", "set", nx=True)
    maker.go_on.set()
    await making
    assert await cache.get("k") == "set"
    assert not await cache.set("k", "late", nx=True)
    assert await cache.get("k") == "set"


@pytest.mark.parametrize("turns", [1, 5, 100])
async def test_one_who_waits_may_be_cancelled_alone(cache, turns):
    maker = Maker("made")
    first = asyncio.create_task(cache.get_or_set("k", maker))
    await maker.began.wait()
    waiting = asyncio.create_task(cache.get_or_set("k", maker))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    maker.go_on.set()
    assert await first == "made"


async def test_a_maker_that_dies_is_replaced_after_its_silence(open_cache):
    cache, other = await open_cache(flight_s=0.3), await open_cache(flight_s=0.3)
    maker, second = Maker(), Maker("second")
    second.go_on.set()
    dying = asyncio.create_task(cache.get_or_set("k", maker))
    await maker.began.wait()
    await cache.leases.close()  # nobody renews it any more
    assert await other.get_or_set("k", second) == "second"
    maker.go_on.set()
    assert await dying == "made"
    assert await other.get("k") == "second", "who was replaced does not overwrite"


@pytest.mark.parametrize("change", ["set", "nx", "delete"])
async def test_what_is_made_does_not_undo_what_happened_meanwhile(cache, change):
    maker = Maker("out of date")
    making = asyncio.create_task(cache.get_or_set("k", maker))
    await maker.began.wait()
    if change == "delete":
        await cache.delete("k")
    else:
        assert await cache.set("k", "new", nx=change == "nx")
    maker.go_on.set()
    assert await making == "out of date", "it asked before"
    assert await cache.get("k") == (None if change == "delete" else "new")


async def test_a_value_of_another_type_is_made_anew(open_cache):
    caches = [await open_cache() for _ in range(3)]
    await caches[0].set("k", "as an older version stored it")
    maker = Maker(Camera("front"))
    asked = [asyncio.create_task(one.get_or_set("k", maker, type=Camera)) for one in caches * 4]
    await maker.began.wait()
    maker.go_on.set()
    assert await asyncio.gather(*asked) == [Camera("front")] * 12
    assert maker.calls == 1
    await caches[0].app.redis.call(
        "SET", CacheKeys.of(caches[0].app.redis.keys, "camera", "e").value, ""
    )
    assert await caches[0].get_or_set("e", maker, type=Camera) == Camera("front")


async def test_what_was_made_of_the_wrong_type_is_an_error_and_not_stored(cache):
    with pytest.raises(DecodeError):
        await cache.get_or_set("k", lambda: 5, type=Camera)
    with pytest.raises(EncodeError):
        await cache.get_or_set("k", object)
    assert not await cache.exists("k")
    assert await cache.get_or_set("k", lambda: 5, type=int) == 5


async def test_a_value_that_cannot_be_stored_is_returned(start_server, fault_proxy, open_cache):
    server = start_server()
    proxy = fault_proxy(server)
    cache = await open_cache(url=proxy.url)
    maker = Maker("made")
    making = asyncio.create_task(cache.get_or_set("k", maker))
    await maker.began.wait()
    proxy.stop_listening()
    proxy.cut()
    maker.go_on.set()
    assert await making == "made"
    with pytest.raises(Unreachable):
        await cache.get_or_set("k", maker)


async def test_a_full_server_still_lets_values_be_made(start_server, open_cache):
    server = start_server()
    cache = await open_cache(url=server.url)
    server.command("CONFIG", "SET", "maxmemory", "1")
    maker = Maker("made")
    maker.go_on.set()
    for calls in (1, 2):
        assert await cache.get_or_set("k", maker) == "made"
        assert maker.calls == calls
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert await cache.get_or_set("k", maker) == "made"
    assert await cache.get("k") == "made"


# ---- single flight, many at once


class ManyMaker:
    """Makes values when it is told to, and notes what it was asked for."""

    def __init__(self, name="made", *, free=False, leaves_out=()):
        self.name, self.asked, self.leaves_out = name, [], leaves_out
        self.error: Exception | None = None
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        if free:
            self.go_on.set()

    async def __call__(self, missing):
        self.asked.append(missing)
        self.began.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return {key: f"{self.name} {key}" for key in missing if key not in self.leaves_out}


def flights_of(cache, keys):
    return [CacheKeys.of(cache.app.redis.keys, cache.space, key).flight for key in keys]


async def test_of_many_values_only_the_missing_ones_are_made_and_all_at_once(cache):
    await cache.set("b", "there")
    maker = ManyMaker(free=True)
    keys = ["a", "b", "c", "a"]
    wanted = {"a": "made a", "b": "there", "c": "made c"}
    found = await cache.get_or_set_many(keys, maker, ttl=100)
    assert found == wanted
    assert list(found) == ["a", "b", "c"]
    assert await cache.get_or_set_many(keys, maker) == wanted
    assert maker.asked == [["a", "c"]]
    assert await cache.get("c") == "made c"
    assert 95 < await cache.ttl("c") <= 100
    assert await cache.get_or_set_many([], maker) == {}
    for flight in flights_of(cache, "ac"):
        assert await cache.app.redis.call("EXISTS", flight) == 0
    assert await cache.get_or_set_many(["d"], lambda keys: dict.fromkeys(keys, 5)) == {"d": 5}


async def test_more_values_than_fit_in_one_round_trip_are_made(cache):
    maker = ManyMaker(free=True)
    keys = [f"k{number}" for number in range(1_200)]
    assert len(await cache.get_or_set_many(keys, maker)) == 1_200
    assert len(await cache.get_or_set_many(keys, maker)) == 1_200
    assert maker.asked == [keys]


async def test_each_of_many_values_is_made_once_over_all_processes(open_cache):
    caches = [await open_cache() for _ in range(4)]
    makers = [ManyMaker(str(number)) for number in range(4)]
    keys = [f"k{number}" for number in range(60)]
    asked = [
        asyncio.create_task(
            caches[n % 4].get_or_set_many(keys[n % 7 : n % 7 + 40][:: 1 if n % 2 else -1], maker)
        )
        for n, maker in enumerate(makers * 10)
    ]
    await eventually(lambda: any(maker.asked for maker in makers))
    await asyncio.sleep(0.1)  # the others have looked several times by now
    for maker in makers:
        maker.go_on.set()
    found = await asyncio.gather(*asked)
    made = [key for maker in makers for missing in maker.asked for key in missing]
    assert sorted(made) == sorted(set(made)) == sorted(keys[:46])
    stored = await caches[0].get_many(keys)
    assert all(one[key] == stored[key] for one in found for key in one)
    assert all(len(one) == 40 for one in found)


async def test_one_value_and_many_share_their_flights(open_cache):
    cache, other = await open_cache(), await open_cache()
    single, many = Maker("single"), ManyMaker("many")
    first = asyncio.create_task(cache.get_or_set("a", single))
    await single.began.wait()
    here = asyncio.create_task(cache.get_or_set_many(["a", "b"], many))
    await many.began.wait()
    there = asyncio.create_task(other.get_or_set_many(["b", "a"], ManyMaker("there", free=True)))
    late = asyncio.create_task(cache.get_or_set("b", lambda: "late"))
    many.go_on.set()
    assert await late == "many b", "what is ours is stored before we wait for others"
    single.go_on.set()
    assert await first == "single"
    assert await here == await there == {"a": "single", "b": "many b"}


async def test_two_who_ask_for_the_same_values_the_other_way_round_never_wait_for_each_other(
    open_cache,
):
    caches = [await open_cache() for _ in range(3)]
    for turn in range(20):
        keys = [f"{turn}-{number}" for number in range(10)]
        asked = [
            cache.get_or_set_many(some, ManyMaker(free=True))
            for cache in caches
            for some in (keys, keys[::-1], keys[3:], keys[:7])
        ]
        async with asyncio.timeout(20):
            await asyncio.gather(*asked)


async def test_what_making_many_raises_reaches_its_caller_and_others_make_theirs(open_cache):
    cache, other = await open_cache(), await open_cache()
    failing, second, third = ManyMaker(), ManyMaker("second", free=True), ManyMaker(free=True)
    failing.error = LookupError("one of them is bad")
    first = asyncio.create_task(cache.get_or_set_many(["bad", "a", "b"], failing))
    await failing.began.wait()
    here = asyncio.create_task(cache.get_or_set_many(["a"], second))
    there = asyncio.create_task(other.get_or_set_many(["b"], third))
    await asyncio.sleep(0)
    failing.go_on.set()
    with pytest.raises(LookupError):
        await first
    assert await here == {"a": "second a"}
    assert await there == {"b": "made b"}
    assert not await cache.exists("bad")
    assert await cache.app.redis.call("EXISTS", flights_of(cache, ["bad"])[0]) == 0


async def test_a_key_that_is_left_out_is_missing_and_others_may_make_it(open_cache):
    cache = await open_cache()
    maker, other = ManyMaker(leaves_out=["b"]), ManyMaker("other", free=True)
    first = asyncio.create_task(cache.get_or_set_many(["a", "b"], maker))
    await maker.began.wait()
    waiting = asyncio.create_task(cache.get_or_set_many(["b", "a"], other))
    await asyncio.sleep(0)
    maker.go_on.set()
    assert await first == {"a": "made a"}
    assert await waiting == {"b": "other b", "a": "made a"}
    assert await cache.get_or_set_many(["x"], lambda _: {"y": 1}) == {}
    assert not await cache.exists("y"), "nobody asked for it"
    for wrong in (None, 7, ["x"]):
        with pytest.raises(InvalidItem):
            await cache.get_or_set_many(["x"], lambda _, wrong=wrong: wrong)


async def test_who_makes_many_and_dies_is_replaced_after_its_silence(open_cache):
    cache, other = await open_cache(flight_s=0.3), await open_cache(flight_s=0.3)
    maker, second = ManyMaker(), ManyMaker("second", free=True)
    dying = asyncio.create_task(cache.get_or_set_many(["a", "b"], maker))
    await maker.began.wait()
    await cache.leases.close()  # nobody renews it any more
    found = await other.get_or_set_many(["b", "c", "a"], second)
    assert found == {"a": "second a", "b": "second b", "c": "second c"}
    assert second.asked[0] == ["c"], "what is nobody's was made at once"
    maker.go_on.set()
    assert await dying == {"a": "made a", "b": "made b"}
    assert await other.get("a") == "second a", "who was replaced does not overwrite"


async def test_who_makes_many_slowly_is_waited_for_as_long_as_it_lives(open_cache):
    cache, other = await open_cache(flight_s=0.5), await open_cache(flight_s=0.5)
    maker, second = ManyMaker("slow"), ManyMaker("second", free=True)
    first = asyncio.create_task(cache.get_or_set_many(["a", "b"], maker))
    await maker.began.wait()
    waiting = asyncio.create_task(other.get_or_set_many(["a", "b"], second))
    await asyncio.sleep(1.5)  # three times as long as one who is silent is waited for
    maker.go_on.set()
    assert await first == await waiting == {"a": "slow a", "b": "slow b"}
    assert second.asked == []


@pytest.mark.parametrize("turns", [0, 1, 3, 100])
async def test_who_makes_many_and_is_cancelled_leaves_nothing_behind(open_cache, turns):
    cache, other = await open_cache(), await open_cache()
    maker = ManyMaker()
    first = asyncio.create_task(cache.get_or_set_many(["a", "b"], maker))
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns == 100:
        await maker.began.wait()
    waiting = asyncio.create_task(cache.get_or_set_many(["a"], ManyMaker("second", free=True)))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    assert await waiting == {"a": "second a"}
    async with asyncio.timeout(5):  # well before a flight ends by itself
        found = await other.get_or_set_many(["a", "b"], ManyMaker("third", free=True))
    assert found == {"a": "second a", "b": "third b"}


async def test_many_values_of_another_type_are_made_anew(cache):
    await cache.set("a", "as an older version stored it")
    await cache.set("b", Camera("back"))
    made = await cache.get_or_set_many(
        ["a", "b"], lambda keys: {key: Camera(key) for key in keys}, type=Camera
    )
    assert made == {"a": Camera("a"), "b": Camera("back")}
    assert await cache.get("a", type=Camera) == Camera("a")
    with pytest.raises(DecodeError):
        await cache.get_or_set_many(["c", "d"], lambda keys: dict.fromkeys(keys, 5), type=Camera)
    assert await cache.get_many(["c", "d"]) == {}


@pytest.mark.usefixtures("leaves_foreign_keys")
async def test_one_bad_value_hides_no_other(open_cache, namespace, caplog):
    cache = await open_cache(space=namespace)  # lines are limited in number for each space
    await cache.set("a", Camera("front"))
    await cache.set("old", "as an older version stored it")
    keys, call = cache.app.redis.keys, cache.app.redis.call
    await call("SET", CacheKeys.of(keys, namespace, "odd").value, b"\xff{")
    await call("RPUSH", CacheKeys.of(keys, namespace, "list").value, "theirs")
    names = ["list", "odd", "a", "old", "missing"]
    assert await cache.get_many(names, type=Camera) == {"a": Camera("front")}
    [line] = [one for one in caplog.records if one.name.endswith("coordination.cache.cache")]
    assert f"cache {namespace}: the value of list cannot be used" in line.getMessage()
    with pytest.raises(CommandRefused):
        await cache.get("list")
    with pytest.raises(DecodeError):
        await cache.get("odd")


@pytest.mark.usefixtures("leaves_foreign_keys")
async def test_a_key_of_another_type_hides_no_value_that_is_made(cache):
    await cache.set("a", Camera("front"))
    keys, call = cache.app.redis.keys, cache.app.redis.call
    foreign = [CacheKeys.of(keys, "camera", "list").value, CacheKeys.of(keys, "camera", "b").flight]
    for key in foreign:
        await call("RPUSH", key, "theirs")

    async def make(names):
        return {name: Camera(name) for name in names}

    wanted = {"list": Camera("list"), "b": Camera("b"), "c": Camera("c"), "a": Camera("front")}
    assert await cache.get_or_set_many(list(wanted), make, type=Camera) == wanted
    assert await cache.get("c", type=Camera) == Camera("c")
    for name in ("list", "b"):
        made = await cache.get_or_set(name, lambda name=name: Camera(name), type=Camera)
        assert made == Camera(name)
    for key in foreign:
        assert await call("LRANGE", key, 0, -1) == [b"theirs"]


async def test_many_values_are_made_though_the_server_forgot_its_scripts(open_cache, place):
    cache = await open_cache()
    await cache.get_or_set_many(["a"], ManyMaker(free=True))
    for node in await cache.app.redis.primaries():
        wire = await node.wire(Role.DEFAULT)
        await wire.send((("SCRIPT", "FLUSH"),))
    keys = [f"k{number}" for number in range(20)]
    assert len(await cache.get_or_set_many(keys, ManyMaker(free=True))) == 20
    assert len(await cache.get_many(keys)) == 20


async def test_many_values_that_cannot_be_stored_are_returned(
    start_server, fault_proxy, open_cache
):
    server = start_server()
    proxy = fault_proxy(server)
    cache = await open_cache(url=proxy.url)
    maker = ManyMaker()
    making = asyncio.create_task(cache.get_or_set_many(["a", "b"], maker))
    await maker.began.wait()
    proxy.stop_listening()
    proxy.cut()
    maker.go_on.set()
    assert await making == {"a": "made a", "b": "made b"}
    with pytest.raises(Unreachable):
        await cache.get_or_set_many(["a", "b"], maker)


async def test_a_full_server_still_lets_many_values_be_made(start_server, open_cache):
    server = start_server()
    cache = await open_cache(url=server.url)
    server.command("CONFIG", "SET", "maxmemory", "1")
    maker = ManyMaker(free=True)
    for calls in (1, 2):
        assert len(await cache.get_or_set_many(["a", "b"], maker)) == 2
        assert len(maker.asked) == calls
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert len(await cache.get_or_set_many(["a", "b"], maker)) == 2
    assert await cache.get("b") == "made b"


# ---- sorted sets


async def test_members_are_added_and_come_by_their_scores(cache):
    assert await cache.zadd("q", {"b": 2, "a": 1, "c": 3.5}) == 3
    assert await cache.zadd("q", {"a": 1.5, "d": 4}) == 1
    assert await cache.zcard("q") == 4
    assert await cache.zrangebyscore("q", "-inf", "+inf") == ["a", "b", "c", "d"]
    assert await cache.zrangebyscore("q", 1.5, "(3.5") == ["a", "b"]
    assert await cache.zrangebyscore("q", -math.inf, math.inf, limit=1) == ["a"]
    assert await cache.zpopmax("q") == [("d", 4.0)]
    assert await cache.zpopmax("q", 2) == [("c", 3.5), ("b", 2.0)]
    assert await cache.zpopmin("q", 5) == [("a", 1.5)]
    assert await cache.zpopmin("q") == []
    assert await cache.zadd("q", {}) == 0
    assert await cache.zcard("q") == 0


async def test_what_lies_between_scores_is_removed(cache):
    await cache.zadd("q", {str(number): number for number in range(10)})
    assert await cache.zremrangebyscore("q", "-inf", "(5") == 5
    assert await cache.zrangebyscore("q", "-inf", "inf") == ["5", "6", "7", "8", "9"]


async def test_a_sorted_set_may_last_a_time(cache):
    place = CacheKeys.of(cache.app.redis.keys, "camera", "q").sorted
    await cache.zadd("q", {"a": 1})
    assert await cache.app.redis.call("TTL", place) == -1
    many = {str(number): number for number in range(9_000)}
    assert await cache.zadd("q", many, ttl=60) == 9_000
    assert 55 < await cache.app.redis.call("TTL", place) <= 60
    assert await cache.zcard("q") == 9_001
    await cache.set("q", "a value of the same key")
    assert await cache.zcard("q") == 9_001


@pytest.mark.parametrize("score", [float("nan"), "1", None, True, 10**400])
async def test_a_score_that_is_none_is_refused(cache, score):
    with pytest.raises(InvalidItem):
        await cache.zadd("q", {"a": 1, "b": score})
    assert await cache.zcard("q") == 0


@pytest.mark.parametrize("bound", ["", "5)", "abc", None, float("nan"), "[5", "5 6"])
async def test_a_bound_that_is_none_is_refused(cache, bound):
    with pytest.raises(InvalidItem):
        await cache.zrangebyscore("q", bound, 1)
    with pytest.raises(InvalidItem):
        await cache.zremrangebyscore("q", 0, bound)


@pytest.mark.parametrize("count", [0, -1, 1.0, "1", True])
async def test_a_count_that_is_none_is_refused(cache, count):
    with pytest.raises(SettingError):
        await cache.zpopmax("q", count)
    with pytest.raises(SettingError):
        await cache.zrangebyscore("q", 0, 1, limit=count)
    with pytest.raises(InvalidItem):
        await cache.zadd("q", {b"bytes": 1})
