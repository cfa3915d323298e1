"""Feeds: numbered events, from a snapshot on or from where a reader was."""

import asyncio
import gc
from functools import partial

import pytest
from tests.kit.feeds import numbers, program, rest, take

from penstock.coordination.feeds import reader as reader_module
from penstock.coordination.feeds.feed import Feed
from penstock.coordination.feeds.keys import FeedKeys
from penstock.coordination.runs.keys import RunKeys
from penstock.coordination.wakeups import Wakeups
from penstock.errors import (
    CommandRefused,
    EncodeError,
    InvalidItem,
    InvalidName,
    NotOpen,
    ReaderTooSlow,
    Unreachable,
)
from penstock.redis.retry import repeat_until_known
from penstock.settings import TimeoutSettings
from penstock.testing.eventually import eventually


@pytest.fixture
async def here(place, namespace):
    """Polls so rarely that everything must be found by wakeups."""
    async with program(place.url, namespace) as opened:
        yield opened


@pytest.fixture
def feed(here):
    return here.feed()


# ---- publishing


async def test_events_are_numbered_from_one_without_gaps(feed):
    assert [await feed.publish("tick", n) for n in range(5)] == [1, 2, 3, 4, 5]
    assert await asyncio.gather(*(feed.publish("tick", n) for n in range(20))) == list(range(6, 26))


async def test_an_event_with_an_id_that_was_seen_is_not_added_again(feed):
    first = await feed.publish("tick", 1, event_id="a")
    assert await feed.publish("tick", 2, event_id="b") == 2
    assert await feed.publish("other", 3, event_id="a") == first
    assert (await feed.snapshot()).number == 2


async def test_ids_of_old_events_are_forgotten(feed, here):
    for n in range(510):
        await feed.publish("tick", n, event_id=str(n))
    fields = await here.client.call("HLEN", FeedKeys.of(here.client.keys, "news").state)
    assert fields == 2 * 500 + 1
    assert await feed.publish("tick", event_id="509") == 510
    assert await feed.publish("tick", event_id="10") == 11
    assert await feed.publish("tick", event_id="9") == 511


async def test_nothing_comes_after_the_final_event(feed, here):
    assert await feed.publish("end", final=True, event_id="end") == 1
    with pytest.raises(InvalidItem, match="final"):
        await feed.publish("more")
    assert await feed.publish("end", final=True, event_id="end") == 1  # a repeat is none
    keys = FeedKeys.of(here.client.keys, "news")
    for key in (keys.events, keys.state):
        assert 0 < await here.client.call("PTTL", key) <= 86_400_000


async def test_about_as_many_events_as_the_cap_are_kept(place, namespace):
    async with program(place.url, namespace, cap=200) as opened:
        feed = opened.feed()
        for n in range(1000):
            await feed.publish("tick", n)
        assert (
            200
            <= await opened.client.call("XLEN", FeedKeys.of(opened.client.keys, "news").events)
            < 400
        )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"type": ""}, InvalidItem),
        ({"type": 7}, InvalidItem),
        ({"type": "x" * 201}, InvalidItem),
        ({"type": "x", "mirror": ""}, InvalidItem),
        ({"type": "x", "mirror_as": "text"}, InvalidItem),
        ({"type": "x", "event_id": ""}, InvalidItem),
        ({"type": "x", "data": float("nan")}, EncodeError),
        ({"type": "x", "data": object()}, EncodeError),
        ({"type": "x", "state": {1, float("inf")}}, EncodeError),
    ],
)
async def test_what_no_feed_can_have_is_refused_before_anything_is_sent(feed, arguments, error):
    with pytest.raises(error):
        await feed.publish(**arguments)
    assert (await feed.snapshot()).number == 0


@pytest.mark.parametrize("after", [-1, True, "3", 1.0])
async def test_only_a_number_can_be_read_after(feed, after):
    with pytest.raises(InvalidItem):
        feed.read(after=after)


async def test_a_feed_needs_a_name(here):
    with pytest.raises(InvalidName):
        here.feed("")
    assert await here.feed("run:2024-01-01+00:00 {x}").publish("odd names are fine") == 1


async def test_a_key_that_is_no_feed_is_refused_and_left_alone(feed, here, leaves_foreign_keys):
    await here.client.call("SET", FeedKeys.of(here.client.keys, "news").events, "text")
    with pytest.raises(CommandRefused):
        await feed.publish("tick")
    assert await here.client.call("EXISTS", FeedKeys.of(here.client.keys, "news").state) == 0
    with pytest.raises(CommandRefused):
        await anext(feed.read())
    assert await here.client.call("GETDEL", FeedKeys.of(here.client.keys, "news").events) == b"text"


async def test_lost_numbers_are_found_again_in_the_events(feed, here):
    for n in range(3):
        await feed.publish("tick", n)
    await here.client.call("DEL", FeedKeys.of(here.client.keys, "news").state)
    assert (await feed.snapshot()).number == 3
    assert await feed.publish("tick", 3) == 4


# ---- reading


async def test_a_reader_gets_what_is_published_from_then_on(feed):
    await feed.publish("old", {"n": 1})
    reader = feed.read(snapshot=False)
    reading = asyncio.create_task(take(reader, 3))
    await eventually(lambda: reader._buffer)
    for n in (2, 3, 4):
        await feed.publish("new", {"n": n})
    events = await reading
    assert numbers(events) == [2, 3, 4]
    assert [event.data for event in events] == [{"n": 2}, {"n": 3}, {"n": 4}]
    assert {event.type for event in events} == {"new"}
    assert all(event.ms > 1_600_000_000_000 for event in events)
    assert reader.last == 4
    reader.stop()


@pytest.mark.parametrize(
    "data", [None, True, 1.5, "text", "", [], {"a": [1, {"b": None}]}, "x" * 5000, list(range(999))]
)
async def test_data_comes_back_as_it_was_published(feed, data):
    await feed.publish("tick", data)
    (event,) = await take(feed.read(after=0), 1)
    assert event.data == data


async def test_reading_begins_with_the_state_and_goes_on_after_it(feed):
    await feed.publish("one", 1, state={"sum": 1})
    await feed.publish("two", 2, state={"sum": 3})
    await feed.publish("three", 3)
    await feed.publish("four", 4)
    snapshot, *events = await take(feed.read(), 3)
    assert snapshot.is_snapshot
    assert (snapshot.number, snapshot.type, snapshot.data) == (2, "snapshot", {"sum": 3})
    assert numbers(events) == [3, 4]
    assert not any(event.is_snapshot for event in events)


async def test_without_a_state_the_latest_event_stands_for_all(feed):
    await feed.publish("one", 1)
    await feed.publish("two", 2)
    reader = feed.read()
    (snapshot,) = await take(reader, 1)
    assert (snapshot.number, snapshot.type, snapshot.data) == (2, "two", 2)
    assert snapshot.is_snapshot
    await feed.publish("three", 3)
    assert numbers(await take(reader, 1)) == [3]


async def test_a_reader_resumes_where_it_was(feed):
    for n in range(10):
        await feed.publish("tick", n)
    assert numbers(await take(feed.read(after=7), 3)) == [8, 9, 10]
    assert numbers(await take(feed.read(after=0), 10)) == list(range(1, 11))


async def test_thousands_of_events_are_caught_up_with_in_order(here, feed):
    for start in range(0, 3000, 250):
        await asyncio.gather(*(feed.publish("tick", n) for n in range(start, start + 250)))
    reader = feed.read(after=0)
    assert numbers(await take(reader, 3000)) == list(range(1, 3001))
    await feed.publish("tick", 3000)
    assert numbers(await take(reader, 1)) == [3001]


async def test_a_feed_that_does_not_exist_yet_is_waited_for(feed):
    readers = [feed.read(), feed.read(after=0), feed.read(after=99)]
    reading = [asyncio.create_task(take(reader, 1)) for reader in readers]
    await eventually(lambda: all(reader._buffer for reader in readers))
    await feed.publish("first")
    assert [numbers(events) for events in await asyncio.gather(*reading)] == [[1], [1], [1]]


async def test_readers_end_with_the_final_event_whenever_they_come(feed):
    early = feed.read()
    reading = asyncio.create_task(rest(early))
    await eventually(lambda: early._buffer)
    await feed.publish("progress", 50, state={"percent": 50})
    await feed.publish("done", 100, final=True)
    events = await reading
    assert [(event.number, event.final) for event in events] == [(1, False), (2, True)]
    late = await rest(feed.read())
    assert [(e.number, e.is_snapshot, e.final) for e in late] == [
        (1, True, False),
        (2, False, True),
    ]
    assert [e.number for e in await rest(feed.read(snapshot=False))] == [2]
    assert [e.number for e in await rest(feed.read(after=1))] == [2]
    assert await rest(feed.read(after=2)) == []
    assert (await feed.snapshot()).final


@pytest.mark.parametrize("state", [None, {"status": "COMPLETED"}])
async def test_whoever_comes_late_begins_with_a_final_snapshot(feed, state):
    await feed.publish("progress", 50)
    await feed.publish("done", 100, state=state, final=True)
    (only,) = await rest(feed.read())
    assert (only.number, only.is_snapshot, only.final) == (2, True, True)
    assert only.data == (state or 100)


async def test_a_snapshot_says_where_the_feed_stands(feed):
    nothing = await feed.snapshot()
    assert (nothing.number, nothing.state, nothing.last, nothing.final) == (0, None, None, False)
    await feed.publish("one", 1, state=[1])
    await feed.publish("two", 2)
    found = await feed.snapshot()
    assert (found.number, found.state, found.state_number, found.first) == (2, [1], 1, 1)
    assert (found.last.number, found.last.data, found.final) == (2, 2, False)


# ---- events that are gone


async def test_a_reader_whose_next_event_is_gone_is_told_how_many_it_missed(feed, here):
    for n in range(10):
        await feed.publish("tick", n)
    await here.client.call("XTRIM", FeedKeys.of(here.client.keys, "news").events, "MAXLEN", 3)
    snapshot, *events = await take(feed.read(after=2), 4)
    assert (snapshot.number, snapshot.is_snapshot, snapshot.missed) == (7, True, 5)
    assert numbers(events) == [8, 9, 10]


async def test_a_state_stands_for_what_is_gone(feed, here):
    for n in range(10):
        await feed.publish("tick", n, state={"n": n} if n < 9 else None)
    await here.client.call("XTRIM", FeedKeys.of(here.client.keys, "news").events, "MAXLEN", 3)
    snapshot, *events = await take(feed.read(after=2), 2)
    assert (snapshot.number, snapshot.data, snapshot.missed) == (9, {"n": 8}, 7)
    assert numbers(events) == [10]


async def test_a_state_older_than_what_is_kept_says_so(feed, here):
    for n in range(10):
        await feed.publish("tick", n, state={"n": 0} if n == 0 else None)
    await here.client.call("XTRIM", FeedKeys.of(here.client.keys, "news").events, "MAXLEN", 3)
    snapshot, *events = await take(feed.read(), 4)
    assert (snapshot.number, snapshot.data, snapshot.missed) == (7, {"n": 0}, 6)
    assert numbers(events) == [8, 9, 10]


async def test_a_hole_among_the_events_is_told(feed, here):
    for n in range(5):
        await feed.publish("tick", n)
    await here.client.call("XDEL", FeedKeys.of(here.client.keys, "news").events, "3-0")
    events = await take(feed.read(after=0), 5)
    assert [(e.number, e.is_snapshot, e.missed) for e in events] == [
        (1, False, 0), (2, False, 0), (3, True, 1), (4, False, 0), (5, False, 0),
    ]  # fmt: skip


async def test_a_reader_that_waits_is_told_what_it_missed_too(feed, here):
    reader = feed.read(after=0)
    await feed.publish("tick", 1)
    assert numbers(await take(reader, 1)) == [1]
    reading = asyncio.create_task(take(reader, 3))
    await eventually(lambda: reader._buffer and not reader._ready)
    keys = FeedKeys.of(here.client.keys, "news")
    swallowed = """
        for n = 2, 7 do
            redis.call('XADD', KEYS[1], 'MAXLEN', 2, n .. '-0', 'type', 't', 'data', n)
        end
        redis.call('HSET', KEYS[2], 'seq', 7)
        return redis.call('PUBLISH', KEYS[1], 7)
    """
    await here.client.call("EVAL", swallowed, 2, keys.events, keys.state)
    snapshot, *events = await reading
    assert (snapshot.number, snapshot.missed) == (5, 4)
    assert numbers(events) == [6, 7]


async def test_numbers_that_a_server_lost_and_gives_out_again_are_read_again(feed, here):
    for n in range(5):
        await feed.publish("tick", n)
    waiting, resumed = feed.read(after=0), feed.read(after=5)
    assert numbers(await take(waiting, 5)) == [1, 2, 3, 4, 5]
    reading = asyncio.create_task(take(waiting, 2))
    await eventually(lambda: waiting._buffer)
    keys = FeedKeys.of(here.client.keys, "news")
    await here.client.call("DEL", keys.events)
    for n in (1, 2):
        await here.client.call("XADD", keys.events, f"{n}-0", "type", "t", "data", n)
    await here.client.call("HSET", keys.state, "seq", 2)
    await here.client.call("PUBLISH", keys.events, 2)
    await eventually(lambda: waiting._buffer.position == 2)
    await feed.publish("tick", "new")
    events = await reading
    assert [(e.number, e.is_snapshot) for e in events] == [(2, True), (3, False)]
    (snapshot,) = await take(resumed, 1)
    assert (snapshot.number, snapshot.is_snapshot, snapshot.data) == (3, True, "new")
    await feed.publish("tick", "newer")
    assert numbers(await take(resumed, 1)) == [4]


async def test_an_entry_that_somebody_else_wrote_does_not_end_readers(feed, here):
    keys = FeedKeys.of(here.client.keys, "news")
    await here.client.call("XADD", keys.events, "1-0", "data", b"\xff{", "ms", "soon")
    await here.client.call("XADD", keys.events, "2-0", "type", "t", "data", "{}")
    events = await take(feed.read(after=0), 2)
    assert [event.data for event in events] == [b"\xff{", {}]


# ---- many readers


async def test_all_readers_of_a_process_share_one_look(here, feed, monkeypatch):
    readers = [feed.read() for _ in range(50)]
    reading = [asyncio.create_task(take(reader, 20)) for reader in readers]
    await eventually(lambda: all(reader._buffer for reader in readers))
    looks = []
    pipeline = here.client.pipeline

    async def counted(commands, **options):
        looks.append(len(commands))
        return await pipeline(commands, **options)

    monkeypatch.setattr(here.client, "pipeline", counted)
    for n in range(20):
        await feed.publish("tick", n)
    for events in await asyncio.gather(*reading):
        assert numbers(events) == list(range(1, 21))
    assert sum(looks) <= 2 * 2 * 21  # one look for each event at most, not for each reader


async def test_a_slow_reader_is_cut_and_resumes_without_a_gap(place, namespace):
    async with program(place.url, namespace, buffer=10) as opened:
        feed = opened.feed()
        slow, quick = feed.read(after=0), feed.read(after=0)
        await feed.publish("tick", 0)
        assert numbers(await take(slow, 1)) == [1]
        reading = asyncio.create_task(take(quick, 100))
        waiting = asyncio.create_task(anext(slow))
        await eventually(lambda: slow._buffer and quick._buffer)
        for n in range(1, 100):
            await feed.publish("tick", n)
        assert numbers(await reading) == list(range(1, 101))
        got = [(await waiting).number]
        assert got == [2]
        with pytest.raises(ReaderTooSlow) as cut:
            got += [event.number async for event in slow]
        assert cut.value.last == got[-1]
        assert cut.value.feed == "news"
        assert await rest(slow) == []
        again = numbers(await take(feed.read(after=cut.value.last), 100 - cut.value.last))
        assert [1, *got, *again] == list(range(1, 101))


async def test_a_burst_larger_than_the_buffer_does_not_cut_a_reader_that_keeps_up(place, namespace):
    async with program(place.url, namespace, buffer=10) as opened:
        feed = opened.feed()
        for n in range(300):
            await feed.publish("tick", n)
        assert numbers(await take(feed.read(after=0), 300)) == list(range(1, 301))


async def test_a_cancelled_wait_loses_nothing(feed):
    reader = feed.read(after=0)
    for n in range(50):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.001 * (n % 3))
        await feed.publish("tick", n)
        (event,) = await take(reader, 1)
        assert event.number == n + 1


async def test_what_nobody_reads_any_more_is_forgotten(place, namespace):
    async with program(place.url, namespace, poll_s=0.05) as opened:
        feed = opened.feed()
        await feed.publish("tick")
        async for _ in feed.read():
            break  # and is never closed
        reader = feed.read()
        async with reader:
            await anext(reader)
        await feed.read().aclose()
        gc.collect()
        await eventually(lambda: not opened.hub._tails)
        await eventually(opened.hub._polling.done)
        assert numbers(await take(feed.read(), 1)) == [1]


async def test_events_are_found_without_hints(place, namespace, monkeypatch):
    async def never(*_):
        pass

    monkeypatch.setattr(Wakeups, "watch", never)
    async with program(place.url, namespace, poll_s=0.05) as opened:
        feed = opened.feed()
        reader = feed.read()
        reading = asyncio.create_task(take(reader, 3))
        await eventually(lambda: reader._buffer)
        for n in range(3):
            await feed.publish("tick", n)
        assert numbers(await reading) == [1, 2, 3]


async def test_readers_end_with_the_application(place, namespace):
    async with program(place.url, namespace) as opened:
        reader = opened.feed().read()
        reading = asyncio.create_task(rest(reader))
        await eventually(lambda: reader._buffer)
        await opened.hub.close()
        with pytest.raises(NotOpen):
            await reading
        await opened.hub.close()
        await opened.feed().publish("tick")
        assert numbers(await take(opened.feed().read(), 1)) == [1]  # it may begin anew


async def test_a_server_that_is_away_when_reading_begins_is_an_error(
    start_server, namespace, monkeypatch
):
    monkeypatch.setattr(
        reader_module, "repeat_until_known", partial(repeat_until_known, within_s=0.2)
    )
    server = start_server()
    quick = TimeoutSettings(connect_s=0.2, command_s=0.2)
    async with program(server.url, namespace, timeouts=quick) as opened:
        server.kill()
        with pytest.raises(Unreachable):
            await anext(opened.feed().read())


async def test_feeds_of_runs_and_windows_are_read_the_same_way(here):
    keys = RunKeys.of(here.client.keys, "r1")
    feed = Feed.at(
        here.client, here.codec, here.hub, name="run r1", events=keys.events, state=keys.feed
    )
    reader = feed.read(after=0)
    for n in (1, 2):
        await here.client.call("HSET", keys.feed, "seq", n)
        await here.client.call(
            *("XADD", keys.events, f"{n}-0", "type", "started", "data", '{"n":1}', "ms", "5")
        )
    events = await take(reader, 2)
    assert [(e.number, e.type, e.data, e.ms) for e in events] == [
        (1, "started", {"n": 1}, 5),
        (2, "started", {"n": 1}, 5),
    ]
    assert (await feed.snapshot()).number == 2
