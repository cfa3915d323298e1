"""Pipeline state of the CourtListener harvest, letter by letter, as plain redis-py reads it."""

import json
import re

import pytest

from penstock.coordination.limits.hourly import HourlyLimit
from penstock.coordination.runs.runs import Runs
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import Settings
from penstock.testing.virtual_time import VirtualTime

RUN = "manual_2024-09-17T14:30:00+00:00"
IN_KEYS = "manual_2024-09-17T14%3A30%3A00+00%3A00"
HALF_PAST_TWO_MS = 1_726_583_400_123  # 2024-09-17T14:30:00.123Z
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
async def client(own_server, stock):
    async with Client(Settings(url=own_server.url)) as client:
        yield client


@pytest.fixture
async def time(client):
    time = VirtualTime(client)
    await time.set_ms(HALF_PAST_TWO_MS)
    return time


@pytest.fixture
async def run(client, time):
    return await Runs(client, Codec(client.settings.codec)).start(RUN)


async def test_the_state_is_a_hash_under_the_name_of_the_run(run, stock):
    await run.move("running")
    state = stock.hgetall(f"courtlistener:pipeline:{IN_KEYS}")
    assert state["dag_run_id"] == RUN
    assert state["start_time"] == "2024-09-17T14:30:00.123Z"
    assert state["status"] == "running"
    assert state["version"] == "2"
    assert state["started_ms"] == str(HALF_PAST_TWO_MS)
    assert stock.ttl(f"courtlistener:pipeline:{IN_KEYS}") == -1, "a run that goes on is kept"
    await run.finish()
    assert 89_940 < stock.ttl(f"courtlistener:pipeline:{IN_KEYS}") <= 90_000
    assert stock.hget(f"courtlistener:pipeline:{IN_KEYS}", "status") == "completed"


async def test_the_view_has_exactly_the_fields_of_the_contract_with_json_in_them(
    run, stock, client
):
    await run.move("running")
    await run.mark_processed(12346, "12345", 12347)
    stock.set("courtlistener:rate_limit:2024-09-17_14", 1246, ex=7_200)
    await HourlyLimit(client).increment()
    view = await run.contract_view()
    assert list(view) == [
        *("dag_run_id", "start_time", "current_hour", "api_calls_this_hour"),
        *("status", "dockets_processed", "redis_keys"),
    ]
    assert view["dag_run_id"] == RUN
    assert view["start_time"] == "2024-09-17T14:30:00.123Z"
    assert (view["current_hour"], view["api_calls_this_hour"]) == ("2024-09-17_14", "1247")
    assert view["status"] == "running"
    assert json.loads(view["dockets_processed"]) == ["12345", "12346", "12347"]
    keys = json.loads(view["redis_keys"])
    assert keys == {
        "state_key": f"courtlistener:pipeline:{IN_KEYS}",
        "counter_key": "courtlistener:rate_limit:2024-09-17_14",
        "failed_key": "courtlistener:failed:2024-09-17_14",
    }
    assert stock.exists(keys["state_key"], keys["counter_key"]) == 2
    assert all(isinstance(value, str) for value in view.values())


async def test_the_view_of_a_run_that_has_done_nothing_has_an_empty_list(run):
    view = await run.contract_view()
    assert json.loads(view["dockets_processed"]) == []
    assert view["api_calls_this_hour"] == "0"


async def test_calls_are_counted_in_one_place_only(run, stock):
    await run.fail("12345", "no", api_calls=7)
    state = stock.hgetall(f"courtlistener:pipeline:{IN_KEYS}")
    assert {"api_calls_this_hour", "dockets_processed", "redis_keys", "current_hour"}.isdisjoint(
        state
    )
    assert not list(stock.scan_iter("courtlistener:counter:*"))


async def test_the_start_of_a_task_is_a_time_under_run_and_task_and_stays_the_first(
    run, stock, time
):
    key = f"courtlistener:task_start:{IN_KEYS}:process_docket_123"
    await run.note_task_start("process_docket_123")
    assert stock.get(key) == "2024-09-17T14:30:00.123Z"
    assert 89_940 < stock.ttl(key) <= 90_000
    await time.advance(322)
    await run.note_task_start("process_docket_123", attempt=2)
    assert stock.get(key) == "2024-09-17T14:30:00.123Z"
    assert ISO.fullmatch(stock.get(key))


async def test_failed_dockets_are_bare_ids_in_a_list_of_the_hour_newest_first(run, stock, time):
    key = "courtlistener:failed:2024-09-17_14"
    await run.fail("12345", TimeoutError("no answer"))
    await run.fail(12346, "503")
    assert stock.lrange(key, 0, -1) == ["12346", "12345"]
    assert 7_140 < stock.ttl(key) <= 7_200
    await time.advance(1_800)
    await run.fail("12347", "503")
    assert stock.lrange("courtlistener:failed:2024-09-17_15", 0, -1) == ["12347"]
    assert [one.item for one in (await run.failures()).failures] == ["12345", "12346", "12347"]


async def test_runs_share_the_list_of_an_hour(run, client, stock):
    other = await Runs(client, Codec(client.settings.codec)).start("scheduled__2024-09-17")
    await run.fail("1", "no")
    await other.fail("1", "no")
    assert stock.lrange("courtlistener:failed:2024-09-17_14", 0, -1) == ["1", "1"]


async def test_every_key_has_an_end_once_the_run_has(run, stock):
    await run.note_task_start("load")
    await run.mark_processed("1")
    await run.fail("2", "no")
    await run.resolve("2")
    await run.checkpoint({"page": 1}, watermark="2024-09-17")
    await run.finish()
    endless = {key for key in stock.scan_iter("*") if stock.ttl(key) == -1}
    assert endless == {"penstock:runs:registry"}
