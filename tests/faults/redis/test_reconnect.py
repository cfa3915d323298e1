"""Servers that go away and come back: nobody hammers them, nothing is sent twice."""

import asyncio
import logging
import random
import statistics
from contextlib import suppress

import pytest
import redis.exceptions
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of

from penstock.errors import (
    AuthenticationFailed,
    Outcome,
    OutcomeUnknown,
    ReadOnlyReplica,
    ServerError,
    Unreachable,
)
from penstock.redis.node import Role
from penstock.redis.wire import FRESH_S
from penstock.settings import TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import free_port


def now():
    return asyncio.get_running_loop().time()


async def answers(client, role=Role.DEFAULT):
    try:
        return await client.call("PING", role=role) == b"PONG"
    except ServerError:
        return False


async def hammer(client, for_s, roles=tuple(Role)):
    """Call without a pause by these roles; return the ends and how long each call took."""
    ends, took, until = set(), [], now() + for_s

    async def caller(role):
        while now() < until:
            started = now()
            try:
                await client.call("PING", role=role)
                ends.add(None)
            except ServerError as error:
                ends.add(type(error))
            took.append(now() - started)

    async with asyncio.TaskGroup() as callers:
        for role in roles:
            for _ in range(10):
                callers.create_task(caller(role))
    return ends, took


async def test_while_the_server_is_away_it_is_tried_twice_a_second_whoever_calls(
    open_client, valkey_server, fault_proxy, caplog
):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    caplog.set_level(logging.DEBUG)
    proxy.refuse()
    proxy.cut(reset=True)
    await eventually(lambda: not client._map.only.shared(Role.DEFAULT))
    proxy.attempts.clear()
    ends, took = await hammer(client, 1.8)
    assert ends == {Unreachable}
    # The machine may stand still for a while; who waited for the next try would do so each time.
    assert statistics.median(took) < patient(0.2)
    assert 3 <= len(proxy.attempts) <= 4
    assert proxy.most_attempts_within(1.0) <= 2
    assert client.counters.consecutive_failures >= len(proxy.attempts)
    assert [record.levelname for record in caplog.records if "connect" in record.message] == [
        "WARNING"
    ]
    proxy.heal()
    await eventually(lambda: answers(client), patient(2))
    assert client.counters.consecutive_failures == 0
    assert 0 < client.counters.success_rate < 1


async def test_a_server_that_hangs_up_on_everybody_is_not_hammered_either(
    open_client, valkey_server, fault_proxy
):
    """Connecting works and the first command ends it: every call would connect again."""
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    proxy.cut_before("PING", times=None)
    ends, _ = await hammer(client, 1.8, [Role.DEFAULT])
    assert ends == {Unreachable, OutcomeUnknown}
    assert 3 <= len(proxy.attempts) <= 5
    assert proxy.most_attempts_within(0.9) <= 2
    proxy.heal()
    await eventually(lambda: answers(client), patient(2))


async def test_a_closed_port_is_answered_at_once_and_opened_again_is_found(
    open_client, valkey_server, fault_proxy
):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    proxy.stop_listening()
    proxy.cut()
    started = now()
    for _ in range(100):
        with pytest.raises((Unreachable, OutcomeUnknown)):
            await client.call("PING")
    assert now() - started < patient(1)
    proxy.heal()
    await eventually(lambda: answers(client), patient(2))


async def test_many_callers_of_a_silent_server_wait_for_one_try_together(
    open_client, valkey_server, fault_proxy
):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url, timeouts=TimeoutSettings(connect_s=0.4, command_s=0.4))
    proxy.blackhole()
    started = now()
    ends = await asyncio.gather(
        *(client.call("PING", role=role) for role in Role for _ in range(20)),
        return_exceptions=True,
    )
    assert {type(end) for end in ends} == {Unreachable, OutcomeUnknown}
    assert now() - started < patient(1.2)
    assert proxy.most_attempts_within(1.0) <= 2 + 1  # and the one of the beginning
    proxy.heal()
    await eventually(lambda: answers(client), patient(2))


async def test_a_restarted_server_is_found_with_its_data_and_without_its_scripts(
    open_client, start_server, namespace
):
    server = start_server()
    client = await open_client(server.url)
    await client.call("SET", f"{namespace}:key", "value")
    await scripts_of(client).probe(probe=f"{namespace}:probe", token="t", ttl_ms=60_000)
    server.kill()
    with pytest.raises((Unreachable, OutcomeUnknown)):
        await client.call("PING")
    server.restart()
    await eventually(lambda: answers(client), patient(2))
    assert await client.call("GET", f"{namespace}:key") == b"value"
    assert await scripts_of(client).probe(probe=f"{namespace}:probe", token="t", ttl_ms=1_000) > 0


async def test_what_was_confirmed_survives_a_storm_of_killed_connections(
    open_client, start_server, fault_proxy
):
    server = start_server()
    proxy = fault_proxy(server)
    client = await open_client(proxy.url)
    ends = {"confirmed": 0, "rejected": 0, "unknown": 0}
    storm_over = asyncio.Event()

    async def caller():
        while not storm_over.is_set():
            try:
                await client.call("INCR", "count")
                ends["confirmed"] += 1
            except ServerError as error:
                ends[error.outcome] += 1
                await asyncio.sleep(0.001)  # a caller that has something else to do

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(caller())
        for _ in range(4):
            seen = ends["confirmed"]
            await eventually(lambda seen=seen: ends["confirmed"] > seen + 100)
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        storm_over.set()
    assert ends["confirmed"] <= int(server.command("GET", "count"))
    assert int(server.command("GET", "count")) <= ends["confirmed"] + ends["unknown"]
    assert ends["unknown"] > 0
    assert proxy.most_attempts_within(0.95) <= 2
    await eventually(lambda: answers(client), patient(2))


async def test_a_rotated_password_in_a_file_counts_without_a_restart(
    open_client, start_server, tmp_path
):
    server = start_server(password="first")
    secret = tmp_path / "password"
    secret.write_text("first\n")
    client = await open_client(f"redis://127.0.0.1:{server.port}", password_file=str(secret))
    server.command("CONFIG", "SET", "requirepass", "second")
    server.password = "second"
    assert await client.call("PING") == b"PONG"
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def refused():
        try:
            await client.call("PING")
        except AuthenticationFailed:
            return True
        except ServerError:
            return False

    await eventually(refused)
    secret.unlink()
    await eventually(lambda: not client._map.only._is_recent(client._map.only._refused_at))
    with pytest.raises(AuthenticationFailed, match="password_file"):
        await client.call("PING")
    secret.write_text("second\n")
    await eventually(lambda: answers(client), patient(2))


async def test_subscriptions_come_back_with_a_rotated_password(open_client, start_server, tmp_path):
    server = start_server(password="first")
    secret = tmp_path / "password"
    secret.write_text("first\n")
    client = await open_client(f"redis://127.0.0.1:{server.port}", password_file=str(secret))
    stock = await client.redis_py()
    async with stock.pubsub() as pubsub:
        await pubsub.subscribe("news")
        server.command("CONFIG", "SET", "requirepass", "second")
        server.password = "second"
        server.command("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")

        async def heard():
            server.command("PUBLISH", "news", "hello")
            with suppress(redis.exceptions.ConnectionError):
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=0.1)
                return message is not None and message["data"] == b"hello"

        async def refused():
            try:
                await pubsub.get_message(timeout=0.1)
            except redis.exceptions.AuthenticationError:
                return True

        await eventually(refused)
        secret.unlink()
        with pytest.raises(redis.exceptions.AuthenticationError, match="password_file"):
            await pubsub.get_message(timeout=1)
        secret.write_text("second\n")
        await eventually(heard, patient(2))
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with suppress(redis.exceptions.ConnectionError):
        await stock.ping()
    assert await stock.ping()


@pytest.mark.parametrize("role", [Role.DEFAULT, Role.QUEUE])
async def test_a_lost_reply_is_never_answered_by_sending_again(
    open_client, valkey_server, fault_proxy, namespace, role
):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    rule = proxy.swallow("INCR")
    with pytest.raises(OutcomeUnknown):
        await client.call("INCR", f"{namespace}:one", role=role)
    assert rule.hits == 1
    await eventually(lambda: answers(client), patient(2))
    assert valkey_server.command("GET", f"{namespace}:one") == "1"

    proxy.swallow("INCR")
    await eventually(lambda: answers(client, role), patient(2))
    ends = await client.pipeline(
        [("SET", f"{namespace}:before", 1), *[("INCR", f"{namespace}:two")] * 3], role=role
    )
    assert ends[0] == b"OK"
    assert [type(end) for end in ends[1:]] == [OutcomeUnknown] * 3
    await eventually(lambda: answers(client), patient(2))
    assert int(valkey_server.command("GET", f"{namespace}:two")) <= 3


async def test_the_stock_client_does_not_send_again_either(
    open_client, valkey_server, fault_proxy, namespace
):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    stock = await client.redis_py()
    rule = proxy.swallow("INCRBY", times=None)
    with pytest.raises(redis.exceptions.ConnectionError):
        await stock.incr(f"{namespace}:one")
    assert rule.hits == 1
    with pytest.raises(redis.exceptions.ConnectionError):
        await stock.pipeline(transaction=False).incr(f"{namespace}:two").execute()
    assert rule.hits == 2
    assert valkey_server.command("MGET", f"{namespace}:one", f"{namespace}:two") == ["1", "1"]
    proxy.heal()
    assert await stock.incr(f"{namespace}:one") == 2


async def test_a_demoted_server_is_connected_to_anew_and_owed_replies_still_come(
    open_client, start_server
):
    server = start_server()
    client = await open_client(server.url)
    wire = await client.wire()
    before = await wire.call("CLIENT", "ID")
    await eventually(lambda: now() - wire.opened_at > FRESH_S)
    server.command("REPLICAOF", "127.0.0.1", free_port())
    ends = await asyncio.gather(
        *(client.call("SET", "key", "value") for _ in range(50)),
        *(client.call("ECHO", "x") for _ in range(50)),
        return_exceptions=True,
    )
    assert {type(end) for end in ends[:50]} == {ReadOnlyReplica}
    assert ends[50:] == [b"x"] * 50
    assert not wire.alive
    await eventually(lambda: wire.ended)
    server.command("REPLICAOF", "NO", "ONE")
    assert await client.call("SET", "key", "value") == b"OK"
    assert await client.call("CLIENT", "ID") != before


async def test_writing_to_a_replica_again_and_again_does_not_mean_connecting_each_time(
    open_client, start_server, fault_proxy
):
    server = start_server()
    server.command("REPLICAOF", "127.0.0.1", free_port())
    proxy = fault_proxy(server)
    client = await open_client(proxy.url)
    until = now() + 1.6
    while now() < until:
        with pytest.raises(ReadOnlyReplica):
            await client.call("SET", "key", "value")
    assert len(proxy.attempts) >= 3
    assert proxy.most_attempts_within(0.95) <= 2


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
async def test_through_any_weather_the_counts_are_what_was_promised(
    open_client, start_server, fault_proxy, seed, figure
):
    """Random faults for a while: confirmed is there, rejected is not, no reply is another's."""
    chance = random.Random(seed)  # noqa: S311
    server = start_server()
    proxy = fault_proxy(server)
    client = await open_client(proxy.url, timeouts=TimeoutSettings(connect_s=0.3, command_s=0.3))
    ends = [dict.fromkeys(Outcome, 0) for _ in range(40)]
    over = asyncio.Event()

    async def caller(number):
        role = chance.choice(list(Role))
        while not over.is_set():
            try:
                async with asyncio.timeout(chance.choice([None, None, 0.005])):
                    nonce = f"{number}:{chance.random()}"
                    assert await client.call("ECHO", nonce, role=role) == nonce.encode()
            except (TimeoutError, ServerError):
                pass
            for end in await client.pipeline([("INCR", f"count:{number}")] * 3, role=role):
                outcome = end.outcome if isinstance(end, ServerError) else Outcome.CONFIRMED
                ends[number][outcome] += 1
            await asyncio.sleep(0)

    faults = [
        lambda: proxy.latency(chance.random() / 20),
        lambda: proxy.cut(reset=chance.random() < 0.5),
        lambda: proxy.reset_after(chance.randrange(3_000), way="to_client"),
        lambda: proxy.reset_after(chance.randrange(3_000), way="to_server"),
        lambda: proxy.swallow("INCR", times=chance.randrange(1, 5)),
        lambda: proxy.cut_before("INCR", times=chance.randrange(1, 5)),
        lambda: proxy.blackhole(way=chance.choice(["to_client", "to_server"])),
        lambda: proxy.bytewise(way="to_client"),
        proxy.refuse,
    ]
    async with asyncio.TaskGroup() as tasks:
        for number in range(len(ends)):
            tasks.create_task(caller(number))
        for _ in range(30):
            chance.choice(faults)()
            await asyncio.sleep(chance.random() / 2)  # the weather's own pace
            proxy.heal()
            await eventually(lambda: answers(client), patient(5))
        over.set()
    lost = invented = 0
    for number, counted in enumerate(ends):
        stored = int(server.command("GET", f"count:{number}") or 0)
        lost += max(0, counted["confirmed"] - stored)
        invented += max(0, stored - counted["confirmed"] - counted["unknown"])
    confirmed, unknown = (sum(counted[end] for counted in ends) for end in ("confirmed", "unknown"))
    assert unknown > 0
    for name, value, op, bar in (
        ("confirmed", confirmed, ">=", 1_000),
        ("confirmed and lost", lost, "<=", 0),
        ("rejected and stored, or sent twice", invented, "<=", 0),
    ):
        figure("torture-core", f"random weather, seed {seed}: {name}", value, "calls", op, bar)


# ---- connections that one side still believes in


@pytest.mark.parametrize("way", ["to_client", "to_server"])
async def test_a_half_open_connection_is_replaced_while_the_server_answers_others(
    open_client, valkey_server, fault_proxy, way
):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    proxy.drop(way=way)
    started = now()
    ends = await asyncio.gather(*(client.call("PING") for _ in range(3)), return_exceptions=True)
    assert {type(end) for end in ends} == {OutcomeUnknown}
    assert now() - started < client.settings.timeouts.command_s / 2
    assert await client.call("PING") == b"PONG"
    assert proxy.open_connections <= 2  # the proxy still keeps the one that the client has left


@pytest.mark.parametrize("pause", ["ALL", "WRITE"])
async def test_a_server_that_lets_everybody_wait_is_waited_for(
    open_client, valkey_server, fault_proxy, pause
):
    client = await open_client(fault_proxy(valkey_server).url)
    valkey_server.command("CLIENT", "PAUSE", "1500", pause)
    started = now()
    assert await client.call("SET", "a", "b") == b"OK"
    assert now() - started > 1


async def test_a_server_that_is_far_away_is_waited_for(open_client, valkey_server, fault_proxy):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    proxy.latency(0.45)
    for _ in range(2):
        assert await client.call("PING") == b"PONG"


async def test_a_command_that_may_block_is_not_taken_for_a_dead_connection(
    open_client, valkey_server, fault_proxy
):
    client = await open_client(fault_proxy(valkey_server).url)
    started = now()
    assert await client.call("BLPOP", "nothing", "1.2", timeout_s=3) is None
    assert now() - started > 1


async def test_a_client_closes_while_it_compares_connections(
    open_client, valkey_server, fault_proxy
):
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url)
    proxy.blackhole()
    call = asyncio.create_task(client.call("PING"))
    await eventually(lambda: len(proxy.attempts) == 2)
    await client.close()
    with pytest.raises(OutcomeUnknown):
        await call
    proxy.heal()
    await eventually(lambda: proxy.open_connections == 0)
