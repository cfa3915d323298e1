"""The items of runs: processed once, failures with due times, and who tries them again."""

import asyncio
import json

import pytest

from penstock.coordination.runs.runs import Runs
from penstock.errors import InvalidItem
from penstock.testing.virtual_time import VirtualTime

NOON_MS = 1_726_574_400_000  # 2024-09-17T12:00:00Z


@pytest.fixture
async def run(app):
    return await Runs(app.redis, app.codec).start("r")


@pytest.fixture
async def time(open_app, valkey_server):
    """A clock that the test moves; `time.run` is a run on it."""
    app = await open_app(valkey_server)
    time = VirtualTime(app.redis)
    await time.set_ms(NOON_MS)
    time.run = await Runs(app.redis, app.codec).start("r")
    return time


async def open_items(run):
    return [one.item for one in (await run.failures()).failures]


# ---- processed


async def test_items_are_processed_once(run):
    assert await run.mark_processed("1", "2", "2") == 2
    assert await run.mark_processed("2", "3") == 1
    assert await run.mark_processed() == 0
    assert await run.processed_count() == 3
    assert await run.is_processed("3")
    assert not await run.is_processed("4")
    assert await run.processed(["3", "4", "1"]) == {"1", "3"}
    assert await run.processed([]) == set()
    assert {item async for item in run.iter_processed()} == {"1", "2", "3"}
    assert [event.data for event in await run.events(1)] == [
        {"new": 2, "processed": 2},
        {"new": 1, "processed": 3},
    ]


async def test_a_number_and_its_digits_are_the_same_item(run):
    await run.mark_processed(12345, "12346")
    assert await run.processed([12346, "12345"]) == {"12345", "12346"}
    await run.fail(7, "no")
    assert await run.resolve("7")


async def test_thousands_of_items_go_in_at_once(run):
    items = [f"docket {number}" for number in range(3_500)]
    assert await run.mark_processed(*items) == 3_500
    assert await run.mark_processed(*items, "one more") == 1
    assert await run.processed(items) == set(items)
    assert {item async for item in run.iter_processed()} == {*items, "one more"}


async def test_of_many_that_process_the_same_items_each_is_counted_by_one(run):
    items = [str(number) for number in range(50)]
    counts = await asyncio.gather(*(run.mark_processed(*items[n:]) for n in range(0, 50, 5)))
    assert sum(counts) == 50


@pytest.mark.parametrize("bad", ["", "x" * 513, "\ud800", None, True, 1.5, b"1", ["1"]])
async def test_what_can_be_no_item_is_refused(run, bad):
    refusing = [run.mark_processed, run.is_processed]
    if not isinstance(bad, bytes):  # so the failure of an item that is not UTF-8 is settled
        refusing.append(run.resolve)
    for call in refusing:
        with pytest.raises(InvalidItem):
            await call(bad)
    with pytest.raises(InvalidItem):
        await run.fail(bad, "no")
    assert (await run.record()).events == 1


# ---- failures


async def test_a_failure_has_its_attempts_errors_and_times(time):
    run = time.run
    assert await run.fail("12345", TimeoutError("too slow"), retry_in_s=30, api_calls=3) == 1
    await time.advance(45)
    assert await run.fail("12345", LookupError("gone"), retry_in_s=60, api_calls=2) == 2
    (failure,) = (await run.failures()).failures
    assert (failure.item, failure.attempts, failure.api_calls) == ("12345", 2, 5)
    assert (failure.error_type, failure.error) == ("LookupError", "gone")
    assert (failure.first_ms, failure.last_ms) == (NOON_MS, NOON_MS + 45_000)
    assert failure.due_ms == NOON_MS + 105_000
    events = await run.events(1)
    assert [event.type for event in events] == ["failed", "failed"]
    assert events[0].data == {
        "item": "12345",
        "attempts": 1,
        "error_type": "TimeoutError",
        "error": "too slow",
        "due_ms": NOON_MS + 30_000,
    }


async def test_without_a_word_the_wait_doubles_up_to_a_limit(time):
    waits = []
    for _ in range(9):
        await time.run.fail("1", "no")
        (failure,) = (await time.run.failures()).failures
        waits.append((failure.due_ms - NOON_MS) / 1000)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_a_final_failure_is_never_due_and_stays_open(time):
    run = time.run
    await run.fail("1", "forbidden", final=True)
    await time.advance(3_600 * 24 * 365)
    assert await run.due_failures() == []
    assert await run.claim_due() == []
    (failure,) = (await run.failures()).failures
    assert failure.due_ms is None
    assert "due_ms" not in (await run.last_events(1))[0].data
    await run.fail("1", "try again after all", retry_in_s=0)
    assert [one.item for one in await run.due_failures()] == ["1"]


async def test_what_is_processed_is_no_failure_any_more_nor_becomes_one(run):
    await run.fail("1", "no")
    await run.fail("2", "no")
    assert await run.mark_processed("1", "3") == 2
    assert await open_items(run) == ["2"]
    assert await run.client.call("HKEYS", run.keys.failure_info) == [b"2"]
    before = await run.record()
    assert await run.fail("1", "late loser") == 0
    assert await run.record() == before
    assert [event.data for event in await run.events() if event.type == "resolved"] == [
        {"item": "1", "processed": True}
    ]


async def test_a_failure_is_resolved_once(run):
    await run.fail("1", "no")
    assert await run.resolve("1")
    assert not await run.resolve("1")
    assert not await run.is_processed("1")
    assert await open_items(run) == []
    assert (await run.last_events(1))[0].data == {"item": "1", "processed": False}
    assert await run.fail("1", "again") == 1, "its attempts are counted anew"


async def test_long_and_strange_errors_are_kept_as_far_as_they_can_be(run):
    await run.fail("1", "x" * 5_000)
    await run.fail("2", 'quotes " and \\ and \ud800 and \x00 and ü')
    found = {one.item: one.error for one in (await run.failures()).failures}
    assert found["1"] == "x" * 2_000 + "…"
    assert found["2"] == 'quotes " and \\ and \\ud800 and \x00 and ü'


@pytest.mark.parametrize(
    "options",
    [
        {"retry_in_s": float("inf")},
        {"retry_in_s": "soon"},
        {"api_calls": -1},
        {"api_calls": 1.5},
        {"error": None},
    ],
)
async def test_options_that_make_no_sense_are_refused(run, options):
    with pytest.raises(InvalidItem):
        await run.fail("1", **{"error": "no", **options})
    assert await open_items(run) == []


async def test_facts_of_a_failure_that_somebody_broke_are_begun_anew(run):
    await run.fail("1", "no")
    await run.client.call("HSET", run.keys.failure_info, "1", "not JSON")
    (failure,) = (await run.failures()).failures
    assert (failure.item, failure.attempts) == ("1", 0)
    assert await run.fail("1", "no") == 1


# ---- the order in which they are due


async def test_failures_are_due_at_their_time_and_the_longest_due_comes_first(time):
    run = time.run
    for item, wait in (("c", 30), ("a", 10), ("b", 20), ("d", 20.0005)):
        await run.fail(item, "no", retry_in_s=wait)
    assert await run.due_failures() == []
    await time.advance(19.999)
    assert [one.item for one in await run.due_failures()] == ["a"]
    await time.advance(0.001)
    assert [one.item for one in await run.due_failures()] == ["a", "b"]
    await time.advance(0.001)
    assert [one.item for one in await run.due_failures(limit=2)] == ["a", "b"]
    assert [one.item for one in await run.due_failures()] == ["a", "b", "d"]
    assert [one.item for one in (await run.failures()).failures] == ["a", "b", "d", "c"]


async def test_pages_of_failures_follow_each_other_without_gap(run):
    for number in range(25):
        await run.fail(f"i{number:02}", "no", retry_in_s=1_000 + number // 10)
        await run.fail(f"final {number:02}", "no", final=True)
    seen, cursor = [], None
    while True:
        page = await run.failures(limit=7, cursor=cursor)
        seen += [one.item for one in page.failures]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == 50
    assert set(seen) == {f"{kind}{n:02}" for kind in ("i", "final ") for n in range(25)}
    assert all(item.startswith("final") for item in seen[25:])


async def test_a_page_goes_on_after_a_failure_that_is_settled_meanwhile(time):
    run = time.run
    for number in range(6):
        await run.fail(f"i {number}", "no", retry_in_s=number)
    page = await run.failures(limit=3)
    await run.resolve("i 2")
    await run.resolve("i 0")
    rest = await run.failures(limit=3, cursor=page.cursor)
    assert [one.item for one in rest.failures] == ["i 3", "i 4", "i 5"]
    for bad in ("x", "12", "a b", " "):
        with pytest.raises(InvalidItem):
            await run.failures(cursor=bad)


# ---- claiming


async def test_who_claims_has_it_for_a_lease_and_then_it_is_due_again(time):
    run = time.run
    await run.fail("1", "no", retry_in_s=5)
    assert await run.claim_due() == []
    await time.advance(5)
    (claimed,) = await run.claim_due(lease_s=30)
    assert (claimed.item, claimed.attempts) == ("1", 1)
    assert claimed.due_ms == NOON_MS + 35_000
    assert await run.claim_due() == []
    await time.advance(29.999)
    assert await run.claim_due() == []
    await time.advance(0.001)
    assert [one.item for one in await run.claim_due()] == ["1"]


async def test_what_becomes_of_a_claimed_item_ends_its_lease(time):
    run = time.run
    for item in ("good", "bad", "hopeless"):
        await run.fail(item, "no", retry_in_s=0)
    assert len(await run.claim_due(lease_s=600)) == 3
    await run.mark_processed("good")
    assert await run.fail("bad", "again", retry_in_s=1) == 2
    await run.resolve("hopeless")
    await time.advance(1)
    assert [one.item for one in await run.claim_due()] == ["bad"]


async def test_no_two_workers_claim_the_same_failure(run):
    items = {str(number) for number in range(120)}
    for item in items:
        await run.fail(item, "no", retry_in_s=0)
    claims = await asyncio.gather(*(run.claim_due(limit=7) for _ in range(30)))
    taken = [one.item for claim in claims for one in claim]
    assert len(taken) == len(set(taken)) == 120
    assert {*taken} == items


async def test_failures_of_a_run_that_has_ended_can_be_tried_again(run):
    await run.fail("1", "no", retry_in_s=0)
    await run.finish("failed")
    (claimed,) = await run.claim_due()
    await run.mark_processed(claimed.item)
    record = await run.record()
    assert (record.status, record.processed, record.failures) == ("failed", 1, 0)
    assert record.ends_ms is not None


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": "3"}, {"lease_s": 0}, {"lease_s": -1}])
async def test_a_claim_of_nothing_or_for_no_time_is_refused(run, options):
    with pytest.raises(InvalidItem):
        await run.claim_due(**options)


# ---- the hourly list


async def test_the_hourly_list_has_each_item_once_an_hour_and_ends_by_itself(time):
    run = time.run

    async def listed(hour):
        return await run.client.call("LRANGE", run.keys.failed(hour), 0, -1)

    await run.fail("12345", "no")
    await run.fail("12346", "no")
    await run.fail("12345", "no")
    assert await listed("2024-09-17_12") == [b"12346", b"12345"]
    left = await run.client.call("PTTL", run.keys.failed("2024-09-17_12"))
    assert 7_140_000 < left <= 7_200_000
    await time.advance(3_600)
    await run.fail("12345", "no")
    assert await listed("2024-09-17_13") == [b"12345"]
    assert len(await listed("2024-09-17_12")) == 2


async def test_failures_outlive_the_hourly_list(run):
    await run.fail("1", "no")
    (failure,) = (await run.failures()).failures
    assert failure.attempts == 1
    for key in (run.keys.failures, run.keys.failure_info):
        assert await run.client.call("PTTL", key) == -1
    info = json.loads(await run.client.call("HGET", run.keys.failure_info, "1"))
    assert set(info) == {"attempts", "api_calls", "first_ms", "last_ms", "error", "error_type"}
