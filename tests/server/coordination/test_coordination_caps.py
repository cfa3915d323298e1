"""Settings limit how many feeds, runs and open batches there are; what exists works on."""

import pytest

from penstock.coordination.feeds.keys import FeedKeys, FeedsKeys
from penstock.coordination.feeds.registry import note_feed
from penstock.coordination.runs.keys import RunKeys, RunsKeys
from penstock.coordination.windows.keys import WindowKeys
from penstock.errors import RunMissing, TooMany

LONG_AGO_MS = 1
"""Entries of a registry that are so old may be swept once what they name is gone."""


async def age(app, registry):
    for name in await app.redis.call("ZRANGE", registry, 0, -1):
        await app.redis.call("ZADD", registry, LONG_AGO_MS, name)


@pytest.mark.settings(feeds={"max_feeds": 2})
async def test_no_more_feeds_are_made_than_the_setting_allows(app):
    for name in ("a", "b"):
        assert await app.feed(name).publish("x", 1) == 1
    with pytest.raises(TooMany) as refused:
        await app.feed("c").publish("x", 1)
    facts = (refused.value.what, refused.value.limit, refused.value.setting)
    assert facts == ("feeds", 2, "feeds.max_feeds")
    assert (await app.feed("c").snapshot()).number == 0
    assert await app.feed("a").publish("x", 2) == 2
    await app.feed("b").publish("x", 2, final=True)
    keys = FeedKeys.of(app.redis.keys, "b")
    await app.redis.call("UNLINK", keys.events, keys.state)
    await age(app, FeedsKeys.of(app.redis.keys).registry)
    assert await app.feed("c").publish("x", 1) == 1
    with pytest.raises(TooMany):
        await app.feed("b").publish("x", 1)


@pytest.mark.settings(feeds={"max_feeds": 1})
async def test_a_feed_that_is_about_to_get_its_first_event_is_counted(app):
    await note_feed(app.redis, "a")
    with pytest.raises(TooMany):
        await app.feed("b").publish("x", 1)
    assert await app.feed("a").publish("x", 1) == 1


@pytest.mark.settings(feeds={"max_feeds": 1})
async def test_a_feed_of_a_version_without_the_registry_works_on(app):
    await app.feed("a").publish("x", 1)
    await app.redis.call("UNLINK", FeedsKeys.of(app.redis.keys).registry)
    await app.feed("b").publish("x", 1)
    assert await app.feed("a").publish("x", 2) == 2


@pytest.mark.settings(feeds={"max_feeds": 1})
async def test_odd_names_in_the_registry_of_feeds_leave_it(app):
    registry = FeedsKeys.of(app.redis.keys).registry
    await app.redis.call("ZADD", registry, LONG_AGO_MS, b"", LONG_AGO_MS, b"\xff\xfe")
    assert await app.feed("a").publish("x", 1) == 1
    assert await app.redis.call("ZRANGE", registry, 0, -1) == [b"a"]


@pytest.mark.settings(runs={"max_runs": 2})
async def test_no_more_runs_are_begun_than_the_setting_allows(app):
    await app.runs.start("a")
    await app.runs.start("b")
    with pytest.raises(TooMany) as refused:
        await app.runs.start("c")
    assert refused.value.setting == "runs.max_runs"
    with pytest.raises(RunMissing):
        await app.runs.get("c")
    assert not (await app.runs.start("a")).created
    assert await app.runs.open("b").processed("item") is not None
    await app.redis.call("UNLINK", RunKeys.of(app.redis.keys, "a").record)
    await age(app, RunsKeys.of(app.redis.keys).registry)
    assert (await app.runs.start("c")).created


@pytest.mark.settings(windows={"max_open": 2})
async def test_no_more_batches_are_open_than_the_setting_allows(app):
    window = app.window("w", to=app.queue("mail"), max_items=3)
    for key in ("a", "b"):
        await window.add(key, 1, id="i")
    with pytest.raises(TooMany) as refused:
        await window.add("c", 1, id="i")
    assert refused.value.setting == "windows.max_open"
    current = WindowKeys.of(app.redis.keys, "mail", "w\x1fc").current
    assert await app.redis.call("EXISTS", current) == 0
    assert (await window.add("a", 2)).size == 2
    assert (await window.add("a", 3)).closed
    added = await window.add("c", 1, id="i")
    assert (added.size, added.is_new) == (1, True)
    assert (await app.window("v", to=app.queue("mail")).add("c", 1)).size == 1


@pytest.mark.settings(windows={"max_open": 1})
async def test_an_urgent_item_needs_no_open_batch(app):
    window = app.window("w", to=app.queue("mail"))
    await window.add("a", 1)
    assert (await window.add("b", 1, fast=True)).fast


@pytest.mark.settings(feeds={"max_feeds": 0}, runs={"max_runs": 0}, windows={"max_open": 0})
async def test_zero_is_no_limit(app):
    window = app.window("w", to=app.queue("mail"))
    for number in range(5):
        await app.feed(f"f{number}").publish("x", 1)
        await app.runs.start(f"r{number}")
        await window.add(f"k{number}", 1)
    assert await app.redis.call("EXISTS", FeedsKeys.of(app.redis.keys).registry) == 0
