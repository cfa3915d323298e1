"""No script does work that grows with what is stored: every script, with every collection filled.

The server's own time of a call counts, by its SLOWLOG: others wait for so long. The quick test
fills all collections at once and compares two sizes; the long one fills each with a million
entries, one after the other. Which commands a script may use at all is a test of its text, in
`tests/unit/redis/test_scripts.py`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from tests.kit.scripts import NAMES

from penstock.coordination.feeds.keys import FeedKeys
from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.settings import Settings
from penstock.testing.servers import ServerProcess

from .script_cases import ENGINES, Engine

NAMESPACE = "bounds"
FEW, MANY, VERY_MANY = 1_000, 10_000, 1_000_000
LONGEST_US = 5_000
MOST_GROWTH, NOTHING_US = 5, 400
"""From few to many entries, a script may take so much longer; this little is never too long."""
TRIES = 4
"""The best counts: on a busy machine the server may have to wait for the processor."""

GROWING: dict[str, tuple[str, ...]] = {
    # It answers with all that there is, as it is asked to.
    "look_at_slots": (":slot:",),
    # One entry for each process that lives, read when one has come or gone.
    "beat_member": (":members:", ":member_info:"),
    # As many holders as there are slots: after an answer was lost, a token is looked for.
    "take_slot/2": (":slot:",),
    "release_slot/1": (":slot:",),
    # By hand: a lane leaves the ring wherever it stands in it.
    "pause_lane": (":ring",),
    "park_lane": (":ring",),
    "relist_lane": (":ring",),
    "resume_lane": (":ring",),
    # The items of one batch, which is bounded.
    "add_to_window": (":detections",),
    "close_windows": (":detections",),
}
"""Scripts, or single cases, that may take longer because of certain collections.

By a part of the collections' names, with the reason."""

FILL = """
local kind, count, now = redis.call('TYPE', KEYS[1]).ok, tonumber(ARGV[1]), tonumber(ARGV[2])
local done = tonumber(ARGV[3])
if kind == 'stream' then
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  local latest = last and string.match(last[1], '^%d+') or 0
  for i = 1, count do
    redis.call('XADD', KEYS[1], string.format('%.0f-0', latest + i), 'type', 'x', 'payload', 'f')
  end
  return kind
end
if kind == 'none' then return kind end
local command = ({zset = 'ZADD', hash = 'HSET', list = 'RPUSH', set = 'SADD'})[kind]
local is_log = string.find(KEYS[1], 'limit', 1, true)
local is_ring = string.find(KEYS[1], 'ring', 1, true)
local some, used = {}, 0
for i = done + 1, done + count do
  local name = 'f' .. i
  if kind == 'zset' then
    -- Half of them are long over, the others are to come.
    some[used + 1] = i % 2 == 0 and i or now + 86400000 + i
    some[used + 2] = is_log and 'c' .. i or name .. ' ' .. i .. '-0'
    used = used + 2
  elseif kind == 'hash' then
    some[used + 1], some[used + 2] = name .. ' ' .. i .. '-0', '{"task":"t","id":"' .. name .. '"}'
    used = used + 2
  else
    used = used + 1
    some[used] = (kind == 'set' or is_ring) and name or '{"task":"t","id":"' .. name .. '"}'
  end
  if used == 1000 or i == done + count then
    redis.call(command, KEYS[1], unpack(some, 1, used))
    used = 0
  end
end
return kind
"""
SIZES = """
local sizes = {}
local of = {zset = 'ZCARD', hash = 'HLEN', list = 'LLEN', set = 'SCARD', stream = 'XLEN'}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local command = of[redis.call('TYPE', key).ok]
  if command then
    sizes[#sizes + 1] = key
    sizes[#sizes + 1] = redis.call(command, key)
  end
end
return sizes
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("valkey", "--appendonly", "no", "--save", "") as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(Settings(url=server.unix_url, namespace=NAMESPACE)) as opened:
        await opened.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
        await opened.call("CONFIG", "SET", "slowlog-max-len", 1000)
        yield opened


async def populate(client: Client, engine: Engine) -> None:
    await client.call("FLUSHALL", "ASYNC")
    seconds, _ = await client.call("TIME")
    for reply in await client.pipeline(list(engine.populate(client, int(seconds) * 1000))):
        assert not isinstance(reply, ServerError), reply
    if engine.begin is not None:
        await engine.begin(client)


async def restore(client: Client, engine: Engine) -> None:
    """Bring back what the script before has taken away; all else stays."""
    seconds, _ = await client.call("TIME")
    await client.pipeline(list(engine.populate(client, int(seconds) * 1000)))
    await number_again(client)


async def number_again(client: Client) -> None:
    """Let a feed whose events were added here go on after the last of them."""
    await client.call("HDEL", FeedKeys.of(client.keys, "f").state, "seq")


async def sizes(client: Client) -> dict[str, int]:
    """How many entries each collection has."""
    flat = await client.call("EVAL", SIZES, 0, f"{NAMESPACE}:*", timeout_s=60)
    return dict(zip(map(bytes.decode, flat[::2]), flat[1::2], strict=True))


async def collections(client: Client) -> list[str]:
    """The collections to fill: of those that differ by a number, the first."""
    found = sorted(await sizes(client), reverse=True)
    return list({re.sub(r"\d+", "#", key): key for key in found}.values())


async def fill(client: Client, keys: Sequence[str], count: int) -> None:
    seconds, _ = await client.call("TIME")
    step = 20_000
    for key in keys:
        for done in range(0, count, step):
            few = min(step, count - done)
            words = ("EVAL", FILL, 1, key, few, int(seconds) * 1000, done)
            await client.call(*words, timeout_s=60)
    await number_again(client)


async def longest_us(client: Client, call: Any) -> int:
    """The server's time for the script."""
    await client.call("SLOWLOG", "RESET")
    await call(client)
    entries = await client.call("SLOWLOG", "GET", -1)
    return max(us for _, _, us, words, *_ in entries if words[0].upper().startswith(b"EVAL"))


Call = tuple[str, int]
"""A script and the number of its case."""


def may_grow(call: Call, key: str) -> bool:
    name, at = call
    return any(part in key for who in (name, f"{name}/{at}") for part in GROWING.get(who, ()))


def calls_of(engine: Engine) -> set[Call]:
    return {(name, at) for name, cases in engine.cases.items() for at in range(len(cases))}


def test_every_script_has_a_case_and_no_exception_is_left_over() -> None:
    calls = {call for engine in ENGINES for call in calls_of(engine)}
    scripts = {name for name, _ in calls}
    assert scripts == set(NAMES), "a call of each script stands in tests/server/redis/script_cases"
    assert GROWING.keys() <= scripts | {f"{name}/{at}" for name, at in calls}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda one: next(iter(one.cases)))
async def test_a_script_takes_no_longer_where_more_is_stored(
    engine: Engine, client: Client
) -> None:
    await populate(client, engine)
    keys, calls = await collections(client), calls_of(engine)
    slow = calls
    took: dict[int, dict[Call, int]] = {}
    for _ in range(TRIES):
        for count in (FEW, MANY):
            await populate(client, engine)
            # Those with exceptions first, while what they may walk is small.
            excepted = {call for call in slow if any(may_grow(call, key) for key in keys)}
            small = {key for key in keys if any(may_grow(call, key) for call in calls)}
            large = [key for key in keys if key not in small]
            took[count] = await times_us(client, engine, excepted, large, count)
            took[count] |= await times_us(client, engine, slow - excepted, keys, count)
        slow = {
            call
            for call in slow
            if took[MANY][call] > max(NOTHING_US, MOST_GROWTH * took[FEW][call])
        }
        if not slow:
            break
    assert not {call: (took[FEW][call], took[MANY][call]) for call in slow}


async def times_us(
    client: Client, engine: Engine, calls: set[Call], keys: Sequence[str], count: int
) -> dict[Call, int]:
    """What calls take, with collections of so many entries."""
    took: dict[Call, int] = {}
    for name, at in sorted(calls):
        await restore(client, engine)
        left = await sizes(client)
        await fill(client, [key for key in keys if left.get(key, 0) < 0.9 * count], count)
        took[name, at] = await longest_us(client, engine.cases[name][at].call)
    return took


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda one: next(iter(one.cases)))
async def test_no_script_takes_five_milliseconds_at_a_million_entries(
    engine: Engine, client: Client
) -> None:
    await populate(client, engine)
    slow: dict[str, int] = {}
    for key in await collections(client):
        calls = {call for call in calls_of(engine) if not may_grow(call, key)}
        took: dict[Call, int] = {}
        await populate(client, engine)
        for _ in range(TRIES):
            took = await times_us(client, engine, calls, [key], VERY_MANY)
            calls = {call for call in calls if took[call] > LONGEST_US}
            if not calls:
                break
        slow |= {f"{name}/{at} {key}": took[name, at] for name, at in calls}
    assert not slow
