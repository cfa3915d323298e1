"""Every refusal a server can give: its type, that nothing was stored, and life after it.

Each row brings a real server into the state that makes it refuse; a second table lets a proxy give
every refusal in the server's words. The client is never reopened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import hiredis
import pytest
from tests.kit.patience import patient

from penstock.errors import (
    AuthenticationFailed,
    ClusterDown,
    OutcomeUnknown,
    OutOfMemory,
    PermissionRefused,
    ReadOnlyReplica,
    Rejected,
    ScriptFailed,
    ScriptMissing,
    ServerBusy,
    ServerError,
    StillLoading,
    StorageFailing,
    TooFewReplicas,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.keys.hash_slot import SLOTS, key_slot
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.binaries import SERVER_NAMES
from penstock.testing.eventually import eventually
from penstock.testing.resp import REFUSALS
from penstock.testing.servers import free_port, wait_until

WRITE = ("SET", "key", "value")
SCRIPTED = ("EVAL", "return redis.call('SET', KEYS[1], 'value')", 1, "key")
UNKNOWN_SCRIPT = ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", 0)  # return 1


@dataclass(frozen=True)
class State:
    """A state of the server in which it refuses, and the way into it and out of it."""

    error: type[ServerError]
    enter: Callable
    leave: Callable
    commands: tuple = (WRITE, SCRIPTED)
    arguments: tuple[str, ...] = ()
    url: str = "redis://127.0.0.1:{port}"
    prepare: Callable = lambda server: None


def config(**settings):
    def apply(server):
        for name, value in settings.items():
            server.command("CONFIG", "SET", name.replace("_", "-"), value)

    return apply


def follow_nobody(server):
    """Become the replica of a server that is not there."""
    server.command("REPLICAOF", "127.0.0.1", free_port())


def lead_again(server):
    server.command("REPLICAOF", "NO", "ONE")


def fail_to_save(server):
    """A folder stands where the dump belongs, which not even root can overwrite."""
    (server.folder / "dump.rdb").mkdir()
    server.command("BGSAVE")
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err", what="error")


def save_again(server):
    (server.folder / "dump.rdb").rmdir()
    server.command("BGSAVE")


def demand_password(password):
    def apply(server):
        server.command("CONFIG", "SET", "requirepass", password)
        server.password = password or None
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    return apply


def allow(*rules):
    def apply(server):
        server.command("ACL", "SETUSER", "alice", "on", ">secret", *rules)

    return apply


def load_slowly(server):
    """Restart with data that takes long to read."""
    if server.command("DBSIZE") == 0:
        server.command("DEBUG", "POPULATE", 250, "filler", 100_000)
        server.command("BGREWRITEAOF")
        wait_until(
            lambda: (
                server.info("persistence")["aof_rewrite_in_progress"] == "0"
                and server.info("persistence")["aof_last_bgrewrite_status"] == "ok"
                and server.info("persistence")["aof_rewrite_scheduled"] == "0"
            ),
            what="the rewrite",
        )
    server.restart(wait_loaded=False)


def load_quickly(server):
    with contextlib.suppress(hiredis.ReplyError):  # before 7.0 it must load to the end
        server.command("CONFIG", "SET", "key-load-delay", 0)


def run_for_ever(server):
    busy = server.connect()
    busy.send("EVAL", "while true do end", 0)

    def refuses():
        try:
            return server.command("PING") is None
        except hiredis.ReplyError as error:
            return str(error).startswith("BUSY")
        except OSError:
            return False

    wait_until(refuses, what="the server to be busy")
    server.busy = busy


def kill_script(server):
    server.command("SCRIPT", "KILL")
    with contextlib.suppress(hiredis.ReplyError), server.busy as busy:
        busy.receive()


def own_all_slots(server):
    server.command("CLUSTER", "ADDSLOTS", *range(SLOTS))
    wait_until(lambda: "cluster_state:ok" in server.command("CLUSTER", "INFO"), what="ok")


def give_slot_away(server):
    server.command("CLUSTER", "DELSLOTS", key_slot("key"))


def take_slot_back(server):
    server.command("CLUSTER", "ADDSLOTS", key_slot("key"))


STATES = {
    "OOM": State(OutOfMemory, config(maxmemory=1), config(maxmemory=0)),
    "READONLY": State(ReadOnlyReplica, follow_nobody, lead_again),
    "MASTERDOWN": State(
        ReadOnlyReplica,
        follow_nobody,
        lead_again,
        commands=(("GET", "key"), WRITE),
        arguments=("--replica-serve-stale-data", "no"),
    ),
    "NOREPLICAS": State(
        TooFewReplicas, config(min_replicas_to_write=1), config(min_replicas_to_write=0)
    ),
    "MISCONF": State(StorageFailing, fail_to_save, save_again, prepare=config(save="3600 1")),
    "LOADING": State(
        StillLoading,
        load_slowly,
        load_quickly,
        # A server answers while it loads, but only after every two megabytes.
        arguments=("--key-load-delay", "10000", "--rdbcompression", "no"),
    ),
    "NOAUTH": State(AuthenticationFailed, demand_password("new"), demand_password("")),
    "WRONGPASS": State(
        AuthenticationFailed,
        demand_password("new"),
        demand_password("old"),
        url="redis://:old@127.0.0.1:{port}",
        prepare=demand_password("old"),
    ),
    "NOPERM": State(
        PermissionRefused,
        allow("~*", "+@all", "-set"),
        allow("+set"),
        commands=(WRITE,),
        url="redis://alice:secret@127.0.0.1:{port}",
        prepare=allow("~*", "+@all"),
    ),
    "NOPERM key": State(
        PermissionRefused,
        allow("resetkeys", "~other:*"),
        allow("~*"),
        url="redis://alice:secret@127.0.0.1:{port}",
        prepare=allow("~*", "+@all"),
    ),
    "NOSCRIPT": State(
        ScriptMissing,
        lambda server: server.command("SCRIPT", "FLUSH"),
        lambda server: server.command("SCRIPT", "LOAD", "return 1"),
        commands=(UNKNOWN_SCRIPT,),
    ),
    "BUSY": State(ServerBusy, run_for_ever, kill_script, arguments=("--lua-time-limit", "50")),
    "CLUSTERDOWN": State(
        ClusterDown,
        give_slot_away,
        take_slot_back,
        arguments=("--cluster-enabled", "yes"),
        url="redis+cluster://127.0.0.1:{port}",
        prepare=own_all_slots,
    ),
}


@pytest.mark.parametrize("server_name", SERVER_NAMES)
@pytest.mark.parametrize("state_name", STATES)
async def test_a_server_that_refuses_and_recovers(start_server, server_name, state_name):
    state = STATES[state_name]
    server = start_server(server_name, *state.arguments)
    state.prepare(server)
    url = state.url.format(port=server.port)
    async with Client(Settings(url=url)) as client:
        assert await client.call("PING") == b"PONG"
        state.enter(server)
        for command in state.commands:
            await _is_refused(client, command, state.error)
        state.leave(server)

        async def works():
            for command in state.commands:
                try:
                    await client.call(*command)
                except (state.error, Unreachable, OutcomeUnknown):
                    return False
            return True

        assert await eventually(works)
        if WRITE in state.commands:
            assert server.command("GET", "key") == "value"


@pytest.mark.parametrize("server_name", SERVER_NAMES)
async def test_an_error_in_the_midst_of_a_script_leaves_unknown_what_it_did(
    start_server, server_name
):
    server = start_server(server_name)
    allow("~*", "+@all", "-set")(server)
    counts = "redis.call('INCR', KEYS[1])"
    stops = {
        "what it may not do": "redis.call('SET', KEYS[1], 'x')",
        "a key of another type": "redis.call('LLEN', KEYS[1])",
        "a mistake of its own": "local x = nil + 1",
    }
    async with Client(Settings(url=f"redis://alice:secret@127.0.0.1:{server.port}")) as client:
        for number, stop in enumerate(stops.values(), start=1):
            with pytest.raises(ScriptFailed) as raised:
                await client.call("EVAL", f"{counts} {stop}", 1, "key")
            assert raised.value.outcome == "unknown"
            assert server.command("GET", "key") == str(number)


async def _is_refused(client, command, error):
    async def refused():
        # A connection may have to be made anew first: then, too, nothing is stored.
        try:
            await client.call(*command)
        except error as refusal:
            return refusal
        except (Unreachable, OutcomeUnknown):
            return None
        pytest.fail(f"{command} was not refused")

    refusal = await eventually(refused)
    assert type(refusal) is error
    assert refusal.outcome == "rejected"
    (in_a_list,) = await client.pipeline([command])
    assert type(in_a_list) is error


@pytest.mark.parametrize("server_name", SERVER_NAMES)
@pytest.mark.parametrize("state_name", ["OOM", "READONLY", "NOREPLICAS", "MISCONF", "NOPERM"])
async def test_what_was_refused_is_not_there(start_server, server_name, state_name):
    state = STATES[state_name]
    server = start_server(server_name, *state.arguments)
    state.prepare(server)
    async with Client(Settings(url=state.url.format(port=server.port))) as client:
        state.enter(server)
        for command in state.commands:
            with pytest.raises(Rejected):
                await client.call(*command)
        assert server.command("EXISTS", "key") == 0


@pytest.mark.parametrize("code", REFUSALS)
async def test_each_refusal_in_the_words_of_servers(valkey_server, fault_proxy, namespace, code):
    proxy = fault_proxy(valkey_server)
    async with Client(Settings(url=proxy.url)) as client:
        before = await client.call("CLIENT", "ID")
        rule = proxy.answer("SET", REFUSALS[code], times=2)
        with pytest.raises(Rejected) as raised:
            await client.call("SET", f"{namespace}:key", "value")
        assert str(raised.value) == REFUSALS[code][1:]
        ends = await client.pipeline(
            [("ECHO", "1"), ("SET", f"{namespace}:key", "value"), ("ECHO", "2")]
        )
        assert [ends[0], type(ends[1]), ends[2]] == [b"1", type(raised.value), b"2"]
        assert rule.hits == 2
        assert valkey_server.command("EXISTS", f"{namespace}:key") == 0
        assert await client.call("SET", f"{namespace}:key", "value") == b"OK"
        # One refusal is no reason to connect anew: this server was asked just now.
        assert await client.call("CLIENT", "ID") == before


@pytest.mark.parametrize(
    ("fault", "stored"), [("cut_before", False), ("swallow", True)], ids=["before", "after"]
)
async def test_a_reset_leaves_the_outcome_unknown(
    valkey_server, fault_proxy, namespace, fault, stored
):
    proxy = fault_proxy(valkey_server)
    async with Client(Settings(url=proxy.url)) as client:
        getattr(proxy, fault)("SET")
        with pytest.raises(OutcomeUnknown) as raised:
            await client.call("SET", f"{namespace}:key", "value")
        assert raised.value.outcome == "unknown"
        assert bool(valkey_server.command("EXISTS", f"{namespace}:key")) is stored
        await _eventually_answers(client)


@pytest.mark.parametrize("way", ["to_server", "to_client", None])
async def test_a_connection_that_leads_nowhere_is_given_up(valkey_server, fault_proxy, way):
    proxy = fault_proxy(valkey_server)
    timeouts = TimeoutSettings(connect_s=0.3, command_s=0.3)
    async with Client(Settings(url=proxy.url, timeouts=timeouts)) as client:
        proxy.blackhole(way=way)
        async with asyncio.timeout(60):
            with pytest.raises(OutcomeUnknown):
                await client.call("PING")
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable):
                await client.call("PING")
        proxy.heal()
        await _eventually_answers(client)


@pytest.mark.parametrize("latency_s", [0.002, 0.2])
async def test_a_slow_network_is_only_slow(valkey_server, fault_proxy, namespace, latency_s):
    proxy = fault_proxy(valkey_server)
    async with Client(Settings(url=proxy.url)) as client:
        proxy.latency(latency_s)
        loop = asyncio.get_running_loop()
        started = loop.time()
        replies = await asyncio.gather(
            *(client.call("INCR", f"{namespace}:count") for _ in range(500))
        )
        assert replies == list(range(1, 501))
        assert 2 * latency_s <= loop.time() - started < patient(2 * latency_s + 1)


async def _eventually_answers(client):
    async def answers():
        try:
            return await client.call("PING") == b"PONG"
        except (Unreachable, OutcomeUnknown):
            return False

    await eventually(answers)
