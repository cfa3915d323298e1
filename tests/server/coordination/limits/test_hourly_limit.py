"""The limit per clock hour: counted by the server, all or none, and never above it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from tests.kit.scripts import scripts_of

from penstock.coordination.limits.hourly import HourlyLimit
from penstock.coordination.limits.keys import HourlyLimitKeys
from penstock.errors import CommandRefused, SettingError
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.settings import Settings
from penstock.settings.coordination import HourlySettings
from penstock.testing.virtual_time import VirtualTime

HALF_PAST_TWO = 1_726_583_400_000  # 2024-09-17 14:30:00 UTC
QUARTER_TO_NEW_YEAR = 1_735_688_700_000  # 2024-12-31 23:45:00 UTC

pytestmark = pytest.mark.settings(hourly={"limit": 20, "buffer": 5})


def counter(client: Client, hour: str) -> str:
    return HourlyLimitKeys.of(client.keys).count(hour)


async def test_calls_are_counted_until_the_buffer_begins(client):
    limit = HourlyLimit(client)
    first = await limit.increment(10)
    assert (first.count, first.allowed, first.remaining) == (10, True, 5)
    refused = await limit.increment(6)
    assert tuple(refused) == (10, False)
    assert (refused.limit, refused.remaining, refused.max_grantable) == (20, 5, 15)
    assert 0 < refused.retry_after_s == refused.reset_s <= 3600
    last = await limit.increment(5)
    assert tuple(last) == (15, True)
    assert last.retry_after_s == 0
    assert not await limit.increment()


async def test_looking_counts_nothing(client):
    limit = HourlyLimit(client)
    assert tuple(await limit.status()) == (0, True)
    assert await client.call("EXISTS", counter(client, (await limit.status()).hour)) == 0
    await limit.increment(15)
    full = await limit.status()
    assert (full.count, full.allowed, full.remaining) == (15, False, 0)


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None, 16])
async def test_no_nonsense_is_counted(client, n):
    with pytest.raises(SettingError, match="from 1 to 15"):
        await HourlyLimit(client).increment(n)
    assert (await HourlyLimit(client).status()).count == 0


@pytest.mark.parametrize("calls", [-1, 1.5, 16, "many"])
async def test_the_script_itself_refuses_nonsense(client, calls):
    words = {"limit": 20, "buffer": 5, "keep_ms": 1000}
    with pytest.raises(CommandRefused, match="calls"):
        await scripts_of(client).count_hour(counters="{any}:", calls=calls, **words)


def test_a_buffer_as_large_as_the_limit_is_a_wrong_setting():
    settings = Settings(url="redis://nowhere", hourly=HourlySettings(limit=5, buffer=5))
    with pytest.raises(SettingError, match="less than 5"):
        HourlyLimit(Client(settings))


async def test_the_count_lives_for_its_time_from_its_first_call_on(client):
    limit = HourlyLimit(client)
    key = counter(client, (await limit.increment()).hour)
    assert 7_190_000 < await client.call("PTTL", key) <= 7_200_000
    await client.call("PEXPIRE", key, 100_000)
    await limit.increment()
    assert await client.call("PTTL", key) <= 100_000


async def test_a_count_that_somebody_left_without_an_end_gets_one(client):
    limit = HourlyLimit(client)
    key = counter(client, (await limit.status()).hour)
    await client.call("INCRBY", key, 3)
    assert (await limit.increment()).count == 4
    assert 0 < await client.call("PTTL", key) <= 7_200_000
    await client.call("PERSIST", key)
    await client.call("SET", key, 40)
    refused = await limit.increment()
    assert (refused.count, refused.allowed, refused.remaining) == (40, False, 0)
    assert 0 < await client.call("PTTL", key) <= 7_200_000


async def test_a_counter_that_is_no_number_is_an_error_and_stays(client):
    limit = HourlyLimit(client)
    key = counter(client, (await limit.status()).hour)
    await client.call("SET", key, "many", "PX", 60_000)
    with pytest.raises(CommandRefused, match="no number"):
        await limit.increment()
    assert await client.call("GET", key) == b"many"


async def test_a_server_that_forgot_the_script_is_told_it_again(client):
    limit = HourlyLimit(client)
    await limit.increment()
    for node in await client.primaries():
        await (await node.wire(Role.DEFAULT)).call("SCRIPT", "FLUSH")
    assert (await limit.increment()).count == 2


async def test_callers_at_the_same_moment_share_what_there_is(client):
    limit = HourlyLimit(client)
    answers = await asyncio.gather(*(limit.increment() for _ in range(50)))
    assert sum(answer.allowed for answer in answers) == 15
    assert sorted(answer.count for answer in answers if answer) == list(range(1, 16))


@pytest.mark.one_server
@pytest.mark.settings(hourly={"limit": 20, "buffer": 5, "ttl_hours": 0.001})
class TestTheTurnOfTheHour:
    async def test_a_new_hour_has_a_count_of_its_own(self, client):
        limit, time = HourlyLimit(client), VirtualTime(client)
        await time.set_ms(HALF_PAST_TWO + 1_799_999)
        last = await limit.increment(15)
        assert (last.hour, last.reset_s) == ("2024-09-17_14", 0.001)
        assert not await limit.increment()
        await time.advance(0.001)
        first = await limit.increment()
        assert (first.hour, first.count, first.reset_s) == ("2024-09-17_15", 1, 3600)
        assert await client.call("GET", counter(client, "2024-09-17_14")) == b"15"

    async def test_the_year_turns_as_well(self, client):
        limit, time = HourlyLimit(client), VirtualTime(client)
        await time.set_ms(QUARTER_TO_NEW_YEAR)
        assert (await limit.increment()).hour == "2024-12-31_23"
        await time.advance(900)
        assert (await limit.increment()).hour == "2025-01-01_00"

    @pytest.mark.parametrize(
        "moment",
        [
            "1999-12-31T23:59:59",
            "2024-02-29T12:00:00",
            "2100-02-28T23:00:00",
            "2100-03-01T00:00:00",
        ],
    )
    async def test_the_calendar_is_the_usual_one(self, client, moment):
        when = datetime.fromisoformat(moment).replace(tzinfo=UTC)
        await VirtualTime(client).set_ms(when.timestamp() * 1000)
        await HourlyLimit(client).increment()
        assert await client.call("EXISTS", counter(client, f"{when:%Y-%m-%d_%H}")) == 1

    async def test_a_count_is_never_forgotten_before_its_hour_is_over(self, client):
        limit, time = HourlyLimit(client), VirtualTime(client)
        await time.set_ms(HALF_PAST_TWO)
        await limit.increment()
        left = await client.call("PTTL", counter(client, "2024-09-17_14"))
        assert 1_790_000 < left <= 1_800_000


@pytest.mark.parametrize("binary", ["valkey", "redis62"])
async def test_a_full_server_still_counts(start_server, namespace, open_client, binary):
    server = start_server(binary)
    client = await open_client(server.url, namespace=namespace)
    limit = HourlyLimit(client)
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert (await limit.increment()).count == 1
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
