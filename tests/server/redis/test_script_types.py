"""A key of another type costs nothing: every script, in a state in use, with each key in turn.

Whatever a script meets, it either does its work or answers with an error and has written nothing.
Each key of the state is replaced by one of another type, the script is called, and the whole
namespace is compared. Scripts are enumerated from their folder: one without a case fails.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.kit.scripts import NAMES, scripts_of

from penstock.errors import CommandRefused, ServerError
from penstock.redis.client import Client
from penstock.settings import Settings
from penstock.testing.servers import ServerProcess

from .script_cases import ENGINES, Case, Engine

NAMESPACE = "table"
KEPT = re.compile(rb"[A-Z]{3,}-\d+")
"""What must not be lost: jobs, messages, items."""

SHOW = """
local shown = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  shown[#shown + 1] = key
  shown[#shown + 1] = redis.call('DUMP', key)
end
return shown
"""
PREPARE = (
    """
local old = redis.call('KEYS', ARGV[1])
if old[1] then redis.call('DEL', unpack(old)) end
for place = 4, #ARGV, 2 do redis.call('RESTORE', ARGV[place], 0, ARGV[place + 1]) end
if ARGV[2] ~= '' then
  redis.call('DEL', ARGV[2])
  if ARGV[3] == 'string' then
    redis.call('HSET', ARGV[2], 'foreign', 'FOREIGN-1')
  else
    redis.call('SET', ARGV[2], 'FOREIGN-1')
  end
end
"""
    + SHOW
)


@pytest.fixture(scope="module", params=["valkey", "redis62"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server whose dumps are not compressed, so that what is in them can be seen."""
    with ServerProcess(request.param, "--rdbcompression", "no", "--appendonly", "no") as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(Settings(url=server.unix_url, namespace=NAMESPACE)) as opened:
        yield opened


State = dict[bytes, bytes]


async def shown(client: Client) -> State:
    """Every key with all that is in it."""
    flat = await client.call("EVAL", SHOW, 0, f"{NAMESPACE}:*")
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def prepare(client: Client, state: State, foreign: bytes = b"", kind: bytes = b"") -> State:
    """Bring the namespace back into a state, with one key of another type than it has."""
    flat = [part for pair in state.items() for part in pair]
    shown = await client.call("EVAL", PREPARE, 0, f"{NAMESPACE}:*", foreign, kind, *flat)
    return dict(zip(shown[::2], shown[1::2], strict=True))


async def populated(client: Client, engine: Engine) -> State:
    await prepare(client, {})
    seconds, _ = await client.call("TIME")
    for reply in await client.pipeline(list(engine.populate(client, int(seconds) * 1000))):
        assert not isinstance(reply, ServerError), reply
    if engine.begin is not None:
        await engine.begin(client)
    return await shown(client)


def kept_in(state: State) -> set[bytes]:
    return {name for content in state.values() for name in KEPT.findall(content)}


async def keys_of(client: Client, case: Case) -> set[bytes]:
    """The keys that the script is called with."""
    seen: set[bytes] = set()
    run = scripts_of(client).run

    async def noted(name, keys, *rest, **more):
        seen.update(key.encode() for key in keys)
        return await run(name, keys, *rest, **more)

    scripts_of(client).run = noted  # type: ignore[method-assign]
    try:
        await case.call(client)
    finally:
        del scripts_of(client).run
    return seen


async def kinds_of(client: Client, keys: set[bytes]) -> dict[bytes, bytes]:
    ordered = sorted(keys)
    kinds = await client.pipeline([("TYPE", key) for key in ordered])
    return {key: kind for key, kind in zip(ordered, kinds, strict=True) if kind != b"none"}


async def faults_of(client: Client, case: Case, state: State) -> list[str]:
    """What a case loses or leaves half done, one line for each key that is of another type."""
    await prepare(client, state)
    kinds = await kinds_of(client, set(state))
    keys = await keys_of(client, case)
    healthy = await shown(client)
    kinds = {**await kinds_of(client, set(healthy)), **kinds}
    kept = kept_in(healthy)  # a script that removes jobs may do so
    freed = {name(client).encode() for name in case.removes}
    faults: list[str] = []
    for key in sorted((keys | set(kinds)) - freed):
        before = await prepare(client, state, key, kinds.get(key, b"none"))
        try:
            await case.call(client)
            refused = ""
        except CommandRefused as error:
            refused = str(error)
        except ServerError as error:
            faults.append(f"{key}: not known to have done nothing: {error}")
            continue
        now = await shown(client)
        if refused:
            names = now.keys() | before.keys()
            changed = sorted(name for name in names if now.get(name) != before.get(name))
            if changed:
                faults.append(f"{key}: refused ({refused}) and yet written: {changed}")
        elif now.get(key) != before[key]:
            faults.append(f"{key}: a foreign value was overwritten")
        elif lost := kept - kept_in(now) - kept_in({key: state.get(key, b"")}):
            faults.append(f"{key}: lost {lost}")
    return faults


@pytest.mark.parametrize("name", NAMES)
async def test_a_key_of_another_type_costs_nothing(
    name: str, client: Client, server: ServerProcess
) -> None:
    found = [engine for engine in ENGINES if name in engine.cases]
    assert found, f"{name} has no case in tests/server/redis/script_cases"
    state = await populated(client, found[0])
    cases = found[0].cases[name]
    if server.binary.version < (7,):
        cases = cases[:1]  # what differs are the words of errors
    faults: list[str] = []
    for number, case in enumerate(cases):
        faults += [f"case {number}: {fault}" for fault in await faults_of(client, case, state)]
    assert not faults, "\n".join(faults)
