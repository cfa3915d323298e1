"""Slots that processes of this version and of the one before wait for together.

The earlier version had a ticket for each caller, with a number by which it stood in line. Its
script is kept here as it was.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.kit.scripts import scripts_of

from penstock.coordination.leases import Leases
from penstock.coordination.slots.keys import SlotKeys
from penstock.coordination.slots.slots import Slots
from penstock.coordination.wakeups import Wakeups
from penstock.settings.coordination import SlotSettings
from penstock.testing.eventually import eventually

TICKET_MS = 1500
EARLIER = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function last_for(key, ms)
  if redis.call('PTTL', key) < ms + 1000 then redis.call('PEXPIRE', key, ms + 1000) end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local token, lease = ARGV[1], tonumber(ARGV[3])
local taken = redis.call('ZCARD', KEYS[1])
local free, before = tonumber(ARGV[2]) - taken, 0
local look_at = math.max(free, 1)
while before < look_at do
  local ticket = redis.call('ZRANGE', KEYS[2], before, before)[1]
  if not ticket or ticket == token then break end
  if now < (tonumber(redis.call('HGET', KEYS[3], ticket) or 0) or 0) then
    before = before + 1
  else
    redis.call('ZREM', KEYS[2], ticket)
    redis.call('HDEL', KEYS[3], ticket)
  end
end
if before < free then
  local latest = tonumber(redis.call('HGET', KEYS[4], 'fence') or 0) or 0
  local fence = string.format('%.0f', math.max(latest + 1, time[1] * 1000000 + time[2]))
  redis.call('HSET', KEYS[4], 'fence', fence)
  redis.call('PEXPIRE', KEYS[4], ARGV[6])
  redis.call('ZADD', KEYS[1], now + lease, fence .. ':' .. token)
  last_for(KEYS[1], lease)
  redis.call('ZREM', KEYS[2], token)
  redis.call('HDEL', KEYS[3], token)
  return {1, tonumber(fence)}
end
local patience = tonumber(ARGV[4])
if patience > 0 then
  if not redis.call('ZSCORE', KEYS[2], token) then
    local number = redis.pcall('HINCRBY', KEYS[4], 'number', 1)
    if type(number) == 'table' then
      number = (redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or 0) + 1
      redis.call('HSET', KEYS[4], 'number', number)
    end
    redis.call('ZADD', KEYS[2], number, token)
    redis.call('PEXPIRE', KEYS[4], ARGV[6])
  end
  redis.call('HSET', KEYS[3], token, now + patience)
  last_for(KEYS[2], patience)
  last_for(KEYS[3], patience)
  before = redis.call('ZRANK', KEYS[2], token)
else
  before = redis.call('ZCARD', KEYS[2])
end
local place = before + taken - tonumber(ARGV[2])
local ends = place >= 0 and redis.call('ZRANGE', KEYS[1], place, place, 'WITHSCORES')[2]
return {0, before, ends and math.max(ends - now, 0) or -1}
"""


@pytest.fixture
async def gpu(open_client, place, namespace):
    client = await open_client(place.url, namespace=namespace, slots=SlotSettings(recheck_s=0.05))
    leases, wakeups = Leases(client), Wakeups(client)
    yield Slots(client, "gpu", 1, leases=leases, wakeups=wakeups)
    await leases.close()
    await wakeups.close()


async def ask_as_earlier(slots, token, *, limit=1, ticket_ms=TICKET_MS):
    """Ask once for a caller of the earlier version: its fence, None if it has to wait."""
    client = slots._client
    keys = SlotKeys.of(client.keys, slots.name)
    names = (keys.holders, keys.waiting, keys.tickets, keys.state)
    told = (token, limit, 5_000, ticket_ms, 0, 60_000)
    got, answer, *_ = await client.call("EVAL", EARLIER, 4, *names, *told)
    return answer if got else None


async def are_waiting(slots, count):
    async def look():
        return (await slots.state()).waiting == count

    await eventually(look, what=f"{count} waiting")


async def test_a_caller_of_the_earlier_version_that_came_before_is_not_passed_over(gpu):
    """It asks twice a second only; a process of this version is passed over much sooner."""
    held = await gpu.take()
    assert await ask_as_earlier(gpu, "earlier") is None
    later = asyncio.create_task(gpu.take(timeout_s=10))
    await are_waiting(gpu, 2)
    await held.release()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(later), 0.4)
    fence = await ask_as_earlier(gpu, "earlier")
    assert fence is not None
    assert fence > held.fence
    assert await gpu._client.call("ZREM", gpu._keys.holders, f"{fence}:earlier") == 1
    await (await later).release()


async def test_a_caller_of_the_earlier_version_that_died_in_line_holds_nobody_up(gpu):
    held = await gpu.take()
    assert await ask_as_earlier(gpu, "dead", ticket_ms=300) is None
    await held.release()
    await (await gpu.take(timeout_s=5)).release()
    assert await gpu._client.call("EXISTS", gpu._keys.waiting, gpu._keys.tickets) == 0


async def test_callers_of_the_earlier_version_stand_in_line_where_they_came(gpu):
    """However slowly the line moves: they do not come right after its foremost caller."""
    held = await gpu.take()
    callers = [asyncio.create_task(gpu.take(timeout_s=10))]
    await are_waiting(gpu, 1)
    ((_, foremost),) = (await line(gpu)).items()
    await asyncio.sleep(0.2)
    callers.append(asyncio.create_task(gpu.take(timeout_s=10)))
    await are_waiting(gpu, 2)
    await asyncio.sleep(0.1)  # twice as long as it takes for the server to be asked again
    assert await ask_as_earlier(gpu, "earlier") is None
    places = await line(gpu)
    assert places["earlier"] - foremost > 250, places
    await held.release()
    for caller in callers:
        await (await caller).release()
    assert await ask_as_earlier(gpu, "earlier") is not None


async def line(slots):
    """Tickets with their places in line."""
    flat = await slots._client.call("ZRANGE", slots._keys.waiting, 0, -1, "WITHSCORES")
    return {name.decode(): float(at) for name, at in zip(flat[::2], flat[1::2], strict=True)}


async def test_they_never_hold_more_than_there_are(gpu):
    """Both kinds ask as often as they can, and each gets its turns."""
    inside = most = 0
    turns = {"earlier": 0, "now": 0}

    async def work(kind):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        turns[kind] += 1
        await asyncio.sleep(0)
        inside -= 1

    async def as_earlier(name):
        for number in range(10):
            token = f"{name}{number}"
            fence = await eventually(partial(ask_as_earlier, gpu, token))
            await work("earlier")
            await scripts_of(gpu._client).release_slot(
                keys=gpu._keys, holder=f"{fence}:{token}", token=token
            )

    async def as_now():
        for _ in range(10):
            async with gpu.hold():
                await work("now")

    async with asyncio.timeout(30):
        await asyncio.gather(*(as_earlier(name) for name in "abc"), *(as_now() for _ in range(3)))
    assert most == 1
    assert turns == {"earlier": 30, "now": 30}
    assert await gpu._client.call("EXISTS", gpu._keys.holders, gpu._keys.waiting) == 0
