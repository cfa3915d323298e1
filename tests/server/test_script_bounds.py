"""No script does work that grows with what is stored: every script, with every collection filled.

The server's own time of a call counts, by its SLOWLOG: others wait for so long. The quick test fills
all collections at once and compares two sizes; the long one fills each with a million entries, one
after the other. Which commands a script may use at all is a test of its text, in
`tests/unit/test_scripts.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.resources import files
from typing import Any

import pytest

from penstock.errors import ServerError
from penstock.redis.client import Client
from penstock.settings import Settings
from penstock.testing.servers import ServerProcess

from .script_cases import ENGINES, Engine

NAMES = sorted(
    path.name.removesuffix(".lua")
    for path in files("penstock.redis").joinpath("lua").iterdir()
    if path.name.endswith(".lua")
)
NAMESPACE = "bounds"
FEW, MANY, VERY_MANY = 1_000, 20_000, 1_000_000
LONGEST_US = 5_000
MOST_GROWTH, NOTHING_US = 5, 400
"""From few to many entries, a script may take so much longer; this little is never too long."""
TRIES = 4
"""The best counts: on a busy machine the server may have to wait for the processor."""

GROWING: dict[str, tuple[str, ...]] = {
    # They answer with all that there is, as they are asked to.
    "list_schedules": (":schedule",),
    "look_at_slots": (":slot:",),
    # One entry for each process that lives, and was claimed by one.
    "beat_member": (":members:", ":member_info:"),
    "beat_queue": (":workers",),
    "claim_jobs": (":workers",),
    "find_dead": (":workers",),
    "open_claims": (":claimed:",),
    # As many holders as there are slots, and as many tickets as callers that wait.
    "release_slot": (":slot:",),
    "take_slot": (":slot:",),
    # By hand: a lane leaves the ring wherever it stands in it.
    "pause_lane": (":ring",),
    "park_lane": (":ring",),
    "relist_lane": (":ring",),
    "resume_lane": (":ring",),
    # The items of one batch, which is bounded.
    "add_to_window": (":detections",),
    "close_windows": (":detections",),
}
"""Scripts that may take longer because of certain collections, by a part of their keys."""

FILL = """
local kind, count, now = redis.call('TYPE', KEYS[1]).ok, tonumber(ARGV[1]), tonumber(ARGV[2])
local done, latest, some = tonumber(ARGV[3]), 0, {}
if kind == 'stream' then
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  latest = (last and string.match(last[1], '^%d+') or 0) - done
end
local function send(command)
  if some[1] then redis.call(command, KEYS[1], unpack(some)) end
  some = {}
end
local function add(command, ...)
  for _, part in ipairs({...}) do some[#some + 1] = part end
  if #some >= 1000 then send(command) end
end
for i = done + 1, done + count do
  if kind == 'zset' then
    -- Half of them are long over, the others are to come.
    local score = i % 2 == 0 and i or now + 86400000 + i
    local is_log = string.find(KEYS[1], 'limit', 1, true)
    add('ZADD', score, is_log and 'c' .. i or 'f' .. i .. ' ' .. i .. '-0')
  elseif kind == 'hash' then
    add('HSET', 'f' .. i .. ' ' .. i .. '-0', '{"task":"t","id":"f' .. i .. '"}')
  elseif kind == 'list' then
    local is_ring = string.find(KEYS[1], 'ring', 1, true)
    add('RPUSH', is_ring and 'f' .. i or '{"task":"t","id":"f' .. i .. '"}')
  elseif kind == 'set' then
    add('SADD', 'f' .. i)
  elseif kind == 'stream' then
    redis.call('XADD', KEYS[1], string.format('%.0f-0', latest + i), 'type', 'x', 'payload', 'f')
  end
end
for command, of in pairs({ZADD = 'zset', HSET = 'hash', RPUSH = 'list', SADD = 'set'}) do
  if kind == of then send(command) end
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


async def sizes(client: Client) -> dict[str, int]:
    """How many entries each collection has."""
    flat = await client.call("EVAL", SIZES, 0, f"{NAMESPACE}:*")
    return {key.decode(): size for key, size in zip(flat[::2], flat[1::2], strict=True)}


async def fill(client: Client, keys: Sequence[str], count: int) -> None:
    seconds, _ = await client.call("TIME")
    step = 20_000
    for key in keys:
        for done in range(0, count, step):
            few = min(step, count - done)
            await client.call("EVAL", FILL, 1, key, few, int(seconds) * 1000, done)
        if ":feed:" in key:  # its events are numbered
            await client.call("HDEL", f"{key}:state", "seq")


async def longest_us(client: Client, call: Any) -> int:
    """The server's time for the script."""
    await client.call("SLOWLOG", "RESET")
    await call(client)
    entries = await client.call("SLOWLOG", "GET", -1)
    return max(us for _, _, us, words, *_ in entries if words[0].upper().startswith(b"EVAL"))


def may_grow(name: str, key: str) -> bool:
    return any(part in key for part in GROWING.get(name, ()))


def test_every_script_has_a_case_and_no_exception_is_left_over() -> None:
    cases = {name for engine in ENGINES for name in engine.cases}
    assert cases == set(NAMES), "a call of each script stands in tests/server/script_cases"
    assert GROWING.keys() <= cases


@pytest.mark.parametrize("engine", ENGINES, ids=lambda one: next(iter(one.cases)))
async def test_a_script_takes_no_longer_where_more_is_stored(
    engine: Engine, client: Client
) -> None:
    """Those with exceptions are looked at apart, without the collections that they may walk."""
    await populate(client, engine)
    keys = await sizes(client)
    without: dict[tuple[str, ...], list[str]] = {}
    for name in engine.cases:
        small = tuple(key for key in keys if may_grow(name, key))
        without.setdefault(small, []).append(name)
    slow: dict[str, tuple[int, int]] = {}
    for small, names in without.items():
        filled = [key for key in keys if key not in small]
        suspects = {(name, at) for name in names for at in range(len(engine.cases[name]))}
        for _ in range(TRIES):
            took = {
                count: await times_us(client, engine, suspects, filled, count)
                for count in (FEW, MANY)
            }
            suspects = {
                one
                for one in suspects
                if took[MANY][one] > max(NOTHING_US, MOST_GROWTH * took[FEW][one])
            }
            if not suspects:
                break
        for one in suspects:
            slow[f"{one[0]}, case {one[1]}"] = (took[FEW][one], took[MANY][one])
    assert not slow


async def times_us(
    client: Client, engine: Engine, cases: set[tuple[str, int]], keys: Sequence[str], count: int
) -> dict[tuple[str, int], int]:
    """What calls take, with collections of so many entries."""
    await populate(client, engine)
    await fill(client, keys, count)
    took: dict[tuple[str, int], int] = {}
    for name, at in sorted(cases):
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
    for key in await sizes(client):
        suspects = {
            (name, at)
            for name, cases in engine.cases.items()
            if not may_grow(name, key)
            for at in range(len(cases))
        }
        took: dict[tuple[str, int], int] = {}
        for _ in range(TRIES):
            took = await times_us(client, engine, suspects, [key], VERY_MANY)
            suspects = {one for one in suspects if took[one] > LONGEST_US}
            if not suspects:
                break
        slow |= {f"{name}, case {at}: {key}": took[name, at] for name, at in suspects}
    assert not slow
