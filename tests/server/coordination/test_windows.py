"""Windows: items are gathered by key, and each is in one batch."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import timedelta

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import load_script
from tests.kit.windows import is_gone, jobs_in, window

from penstock import Penstock
from penstock.coordination.windows.closer import WindowCloser
from penstock.coordination.windows.window import Window
from penstock.errors import (
    InvalidItem,
    InvalidName,
    OutcomeUnknown,
    SettingError,
)
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.link import Rule, RuleKind

ODD_KEYS = ["a:b", "{a}", "a b\n", "*?[x]", "50%", "тест", "a/b", '"', "x" * 300, "current", "%41"]


# ---- gathering


async def test_items_become_one_job_when_their_batch_is_due(app):
    gather = window(app, max_age=0.3, idle=10)
    first = await gather.add("a", {"n": 1})
    second = await gather.add("a", [2, "zwei", None])
    assert first.batch_id == second.batch_id
    assert (first.size, second.size) == (1, 2)
    async with WindowCloser(app.redis, app.codec, [gather]) as closer:
        [job] = await eventually(lambda: jobs_in(app))
    assert closer.closed == 1
    assert job["batch_id"] == first.batch_id
    assert job["key"] == "a"
    assert job["items"] == [{"n": 1}, [2, "zwei", None]]
    assert (job["count"], job["reason"]) == (2, "max_age")
    assert 300 <= job["ended_ms"] - job["started_ms"] < patient(1300)
    assert await gather.open_batches() == []
    assert await is_gone(app, first.batch_id)


async def test_adds_at_the_same_time_share_one_batch(app):
    gather = window(app)
    added = await asyncio.gather(*(gather.add("a", number) for number in range(50)))
    assert {one.batch_id for one in added} == {added[0].batch_id}
    assert sorted(one.size for one in added) == list(range(1, 51))
    assert await gather.close("a") == added[0].batch_id
    [job] = await jobs_in(app)
    assert sorted(job["items"]) == list(range(50))


async def test_keys_are_gathered_apart_whatever_characters_they_have(app):
    gather, other = window(app), window(app, "other")
    for key in ODD_KEYS:
        await gather.add(key, key)
        await other.add(key, f"other {key}")
    assert sorted(one.key for one in await gather.open_batches()) == sorted(ODD_KEYS)
    for key in ODD_KEYS:
        assert await gather.close(key)
    assert [(job["key"], job["items"]) for job in await jobs_in(app)] == [
        (key, [key]) for key in ODD_KEYS
    ]
    assert len(await other.open_batches()) == len(ODD_KEYS)


async def test_the_last_item_that_fits_closes_the_batch(app):
    gather = window(app, max_items=3)
    added = [await gather.add("a", number) for number in range(7)]
    first, second = added[0].batch_id, added[3].batch_id
    assert [one.closed for one in added] == [None, None, first, None, None, second, None]
    assert [one.size for one in added] == [1, 2, 3, 1, 2, 3, 1]
    jobs = await jobs_in(app)
    assert [job["items"] for job in jobs] == [[0, 1, 2], [3, 4, 5]]
    assert {job["reason"] for job in jobs} == {"max_size"}
    assert (await gather.batch("a")).count == 1


async def test_every_item_is_a_batch_where_one_fits(app):
    gather = window(app, max_items=1)
    added = [await gather.add("a", number) for number in range(3)]
    assert [one.closed for one in added] == [one.batch_id for one in added]
    assert await gather.batch("a") is None
    assert [job["items"] for job in await jobs_in(app)] == [[0], [1], [2]]


async def test_an_item_that_does_not_fit_closes_the_batch_before_it(app):
    gather = window(app, max_bytes=100)
    first = await gather.add("a", "x" * 60)
    second = await gather.add("a", "y" * 60)
    assert (first.closed, second.closed) == (None, first.batch_id)
    [job] = await jobs_in(app)
    assert (job["items"], job["reason"]) == (["x" * 60], "max_bytes")
    assert (await gather.batch("a")).bytes == 63


async def test_a_batch_is_closed_by_hand_once(app):
    gather = window(app)
    added = await gather.add("a", 1)
    assert await gather.close("a", reason="end-of-day") == added.batch_id
    assert await gather.close("a") is None
    assert await gather.close("never") is None
    [job] = await jobs_in(app)
    assert job["reason"] == "end-of-day"


async def test_open_batches_tell_how_they_stand(app):
    gather = window(app, max_age=timedelta(seconds=60), idle=20)
    for key, count in (("a", 2), ("b", 3)):
        for number in range(count):
            await gather.add(key, number)
    first, second = await gather.open_batches()
    assert [(one.key, one.count, one.bytes) for one in (first, second)] == [
        ("a", 2, 4),
        ("b", 3, 6),
    ]
    assert first.due_ms == first.last_ms + 20_000
    assert first.started_ms <= first.last_ms
    assert first == await gather.batch("a")
    assert await gather.open_batches(limit=1) == [first]
    assert await gather.batch("c") is None


# ---- ids


async def test_an_item_with_an_id_is_added_once(app):
    gather = window(app)
    first = await gather.add("a", 1, id="one")
    again = await gather.add("a", 1, id="one")
    assert (again.is_new, again.batch_id, again.size) == (False, first.batch_id, 1)
    assert (await gather.add("b", 1, id="one")).is_new
    await gather.close("a")
    late = await gather.add("a", 1, id="one")
    assert (late.is_new, late.batch_id) == (False, "")
    await gather.add("a", 2, id="two")
    assert (await gather.add("a", 1, id="one")).batch_id == ""
    await gather.close("a")
    assert [job["items"] for job in await jobs_in(app)] == [[1], [2]]


class OfScript(Rule):
    """Something that happens to the calls of one script."""

    def __init__(self, name, kind, times):
        super().__init__("*", kind, times)
        script = load_script(name)
        self._words_of_script = {
            one.encode() for one in (script.digest, script.plain_digest, script.text)
        }

    def takes(self, request):
        return len(request) > 1 and request[1] in self._words_of_script and super().takes(request)


@pytest.mark.parametrize("kind", [RuleKind.SWALLOW, RuleKind.CUT])
async def test_a_lost_answer_is_asked_for_again_where_there_is_an_id(
    valkey_server, fault_proxy, namespace, kind
):
    proxy = fault_proxy(valkey_server)
    quick = TimeoutSettings(connect_s=1.0, command_s=0.3)
    settings = Settings(url=proxy.url, namespace=namespace, timeouts=quick)
    async with Penstock(settings=settings) as app:
        gather = window(app)
        await gather.add("a", 0)
        rule = proxy.add(OfScript("add_to_window", kind, 2))
        added = await gather.add("a", 1, id="one")
        assert (rule.hits, added.size) == (2, 2)
        proxy.add(OfScript("add_to_window", kind, 1))
        with pytest.raises(OutcomeUnknown):
            await gather.add("a", 2)


# ---- the fast path


async def test_a_fast_item_is_in_the_high_lane_at_once(app):
    gather = window(app)
    await gather.add("a", 1)
    added = await gather.add("a", {"n": 2}, id="d-2", fast=True)
    assert (added.fast, added.batch_id, added.size) == (True, "fast_path_d-2", 1)
    assert not (await gather.add("a", {"n": 2}, id="d-2")).is_new
    [job] = await jobs_in(app, lane="high")
    assert (job["batch_id"], job["key"], job["items"]) == ("fast_path_d-2", "a", [{"n": 2}])
    assert (job["fast_path"], job["reason"], job["count"]) == (True, "fast_path", 1)
    assert job["started_ms"] == job["ended_ms"]
    assert (await gather.batch("a")).count == 1


async def test_the_repeat_of_a_fast_item_is_not_said_to_be_in_the_open_batch(app):
    gather = window(app)
    opened = await gather.add("a", 1)
    fast = await gather.add("a", 2, id="d-2", fast=True)
    again = await gather.add("a", 2, id="d-2", fast=True)
    assert (again.is_new, again.batch_id, again.size) == (False, fast.batch_id, 1)
    plain = await gather.add("a", 2, id="d-2")
    assert (plain.is_new, plain.batch_id, plain.size) == (False, "", 0)
    assert (await gather.add("a", 3, id="d-3")).batch_id == opened.batch_id
    assert (await gather.add("a", 3, id="d-3", fast=True)).batch_id == opened.batch_id


async def test_a_fast_item_goes_into_the_batch_if_the_high_lane_is_full(app):
    queue = app.queue("batches", max_size=1, overflow="drop_oldest")
    gather = window(app)
    assert (await gather.add("a", 1, fast=True)).fast
    added = await gather.add("a", 2, fast=True)
    assert (added.fast, added.size) == (False, 1)
    assert await app.redis.call("LLEN", queue.keyring.list_of("high")) == 1


async def test_workers_take_fast_batches_first_and_failures_fall_back(app):
    queue, seen = app.queue("batches"), []
    gather = window(app)

    @queue.handler(concurrency=1)
    async def analyse(job: dict) -> None:
        async with gather.falling_back(job):
            seen.append((job["items"], job["reason"]))
            if job["reason"] == "fast_path" and job["items"] == ["bad"]:
                raise ValueError("the model is away")

    await gather.add("a", "slow")
    await gather.close("a")
    await gather.add("a", "bad", id="b", fast=True)
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await eventually(lambda: len(seen) == 2)
    assert seen == [(["bad"], "fast_path"), (["slow"], "asked")]
    await eventually(lambda: gather.batch("a"))
    await gather.close("a")
    await eventually(lambda: seen[2:] == [(["bad"], "asked")])
    await worker.stop()
    assert await running == 0


async def test_falling_back_lets_the_failures_of_other_jobs_through(app):
    gather = window(app)
    with pytest.raises(ValueError, match="as it is"):
        async with gather.falling_back({"batch_id": "b", "key": "a", "items": [1]}):
            raise ValueError("as it is")
    for _ in range(2):
        job = {"batch_id": "fast_path_1", "key": "a", "items": [1], "fast_path": True}
        async with gather.falling_back(job):
            raise ValueError("falls back, once")
    assert (await gather.batch("a")).count == 1


# ---- what is refused before anything is sent


@pytest.mark.parametrize("key", ["", "a\x1fb", 7, None, "\ud800", "x" * 600])
async def test_keys_that_cannot_be_are_refused(app, key):
    with pytest.raises((InvalidItem, InvalidName)):
        await window(app).add(key, 1)


@pytest.mark.parametrize("item", [math.nan, object(), "x" * 300_000, "\ud800", {1, math.inf}])
async def test_items_that_cannot_be_are_refused(app, item):
    gather = window(app)
    with pytest.raises(InvalidItem):
        await gather.add("a", item)
    assert await gather.batch("a") is None


async def test_a_batch_nests_no_deeper_than_what_can_be_read(app):
    gather = window(app)
    deep = json.loads("[" * 126 + "]" * 126)
    await gather.add("a", deep)
    await gather.close("a")
    stored = await app.redis.call("LPOP", app.queue("batches").keyring.waiting)
    assert app.codec.decode(stored, dict)["items"] == [deep]
    with pytest.raises(InvalidItem):
        await gather.add("a", [deep])


@pytest.mark.parametrize("id_", ["", "x" * 257, 7, "\ud800"])
async def test_ids_that_cannot_be_are_refused(app, id_):
    with pytest.raises(InvalidItem):
        await window(app).add("a", 1, id=id_)


@pytest.mark.parametrize(
    "options",
    [
        {"max_age": 0},
        {"max_age": "90"},
        {"idle": -1},
        {"idle": math.inf},
        {"max_items": 0},
        {"max_items": 10_001},
        {"max_items": True},
        {"max_bytes": 0},
        {"max_bytes": 600_000},
        {"key_field": "batch_id"},
        {"items_field": "key"},
        {"items_field": "ä"},
    ],
)
async def test_options_that_cannot_be_are_refused(app, options):
    with pytest.raises(SettingError):
        window(app, **options)


async def test_names_and_targets_that_cannot_be_are_refused(app):
    with pytest.raises(InvalidName):
        window(app, "a:b")
    with pytest.raises(SettingError):
        Window(app.redis, app.codec, "gather", to="a queue by name")
    with pytest.raises(InvalidName):
        await window(app).close("a", reason="a b")
