"""The harvest's limit per clock hour, letter by letter: its keys, variables and answers.

What is written here is read with redis-py, as its other programs do, and the other way round.
"""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from penstock.coordination.limits.hourly import HourlyLimit
from penstock.redis.client import Client
from penstock.settings import Settings
from penstock.testing.virtual_time import VirtualTime

HALF_PAST_TWO = 1_726_583_400_000  # 2024-09-17 14:30:00 UTC
KEY = "courtlistener:rate_limit:2024-09-17_14"

HARVESTER = """
import asyncio, sys
from penstock.coordination.limits.hourly import HourlyLimit
from penstock.redis.client import Client
from penstock.settings import Settings

async def main():
    async with Client(Settings.load({"url": sys.argv[1]})) as client:
        limit, made = HourlyLimit(client), 0
        sys.stdout.write("ready\\n"); sys.stdout.flush()
        sys.stdin.readline()
        while True:
            count, allowed = await limit.increment(3)
            if not allowed:
                break
            made += 3
        print(made)

asyncio.run(main())
"""


@pytest.fixture
async def client(own_server, stock, monkeypatch):
    monkeypatch.setenv("CALL_LIMIT_PER_HOUR", "100")
    monkeypatch.setenv("COURTLISTENER_SAFETY_BUFFER", "10")
    monkeypatch.setenv("REDIS_COUNTER_TTL_HOURS", "3")
    async with Client(Settings.load({"url": own_server.url})) as opened:
        yield opened


async def test_a_plain_client_reads_the_count_of_the_hour(client, stock):
    time = VirtualTime(client)
    await time.set_ms(HALF_PAST_TWO)
    count, allowed = await HourlyLimit(client).increment(10)
    assert (count, allowed) == (10, True)
    assert stock.type(KEY) == "string"
    assert stock.get(KEY) == "10"
    assert 3 * 3600 - 10 < stock.ttl(KEY) <= 3 * 3600


async def test_the_hour_is_that_of_the_clock_in_utc(client, stock):
    before = datetime.now(UTC)
    answer = await HourlyLimit(client).increment()
    after = datetime.now(UTC)
    assert answer.hour in {f"{when:%Y-%m-%d_%H}" for when in (before, after)}
    assert stock.get(f"courtlistener:rate_limit:{answer.hour}") == "1"


async def test_what_a_plain_client_counts_is_counted(client, stock):
    await VirtualTime(client).set_ms(HALF_PAST_TWO)
    stock.incrby(KEY, 85)
    limit = HourlyLimit(client)
    assert tuple(await limit.increment(6)) == (85, False)
    assert tuple(await limit.increment(5)) == (90, True)
    assert stock.get(KEY) == "90"


async def test_without_variables_5000_less_25_are_given_out(own_server, stock):
    async with Client(Settings(url=own_server.url)) as client:
        await VirtualTime(client).set_ms(HALF_PAST_TWO)
        limit = HourlyLimit(client)
        assert tuple(await limit.increment(4_975)) == (4_975, True)
        assert tuple(await limit.increment()) == (4_975, False)
        assert 2 * 3600 - 10 < stock.ttl(KEY) <= 2 * 3600


async def test_the_next_hour_begins_at_nothing_and_the_last_one_stays_readable(client, stock):
    limit, time = HourlyLimit(client), VirtualTime(client)
    await time.set_ms(HALF_PAST_TWO)
    await limit.increment(90)
    await time.advance(1_799.999)
    assert tuple(await limit.increment()) == (90, False)
    await time.advance(0.001)
    assert tuple(await limit.increment()) == (1, True)
    assert stock.mget(KEY, "courtlistener:rate_limit:2024-09-17_15") == ["90", "1"]
    assert sorted(stock.keys("courtlistener:*")) == [KEY, "courtlistener:rate_limit:2024-09-17_15"]


async def test_a_restarted_server_is_told_the_script_again(client, stock):
    limit = HourlyLimit(client)
    await limit.increment()
    stock.script_flush()
    assert (await limit.increment()).count == 2


async def test_eight_processes_never_exceed_the_limit_less_the_buffer(own_server, client, stock):
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HARVESTER, own_server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    harvesters = [start() for _ in range(8)]
    try:
        for one in harvesters:
            assert await asyncio.to_thread(one.stdout.readline) == "ready\n"
        for one in harvesters:
            one.stdin.write("go\n")
            one.stdin.flush()
        ends = [await asyncio.to_thread(one.communicate, timeout=30) for one in harvesters]
    finally:
        for one in harvesters:
            one.kill()
            one.wait()
    hours = stock.keys("courtlistener:rate_limit:*")  # two, if the hour turned just now
    assert all(int(stock.get(hour)) <= 90 for hour in hours)
    assert sum(int(output) for output, _ in ends) == sum(int(stock.get(hour)) for hour in hours)
    assert max(int(stock.get(hour)) for hour in hours) == 90
