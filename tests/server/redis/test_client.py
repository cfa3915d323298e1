"""The client on one server: roles and their pools, leases, opening and closing."""

import asyncio
import os
import random
import traceback

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of

from penstock.errors import (
    CommandRefused,
    NotOpen,
    OutcomeUnknown,
    PenstockError,
    PoolExhausted,
    ServerError,
    Unreachable,
)
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.settings import PoolSettings, Settings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import free_port


def connections(server):
    return sum("name=penstock" in line for line in server.command("CLIENT", "LIST").splitlines())


async def test_it_speaks_to_every_supported_server(open_client, any_server, namespace):
    client = await open_client(any_server.url)
    assert client.server_version[0] in {6, 7, 9}
    assert await client.call("SET", f"{namespace}:key", "value") == b"OK"
    found, refused = await client.pipeline([("GET", f"{namespace}:key"), ("NOSUCH",)])
    assert found == b"value"
    assert isinstance(refused, CommandRefused)


async def test_a_unix_socket_and_a_database(open_client, valkey_server, namespace):
    client = await open_client(f"{valkey_server.unix_url}?db=2")
    await client.call("SET", f"{namespace}:key", "value")
    assert valkey_server.command("EXISTS", f"{namespace}:key") == 0
    assert await client.call("EXISTS", f"{namespace}:key") == 1


async def test_reads_that_block_delay_no_other_role(open_client, start_server):
    server = start_server()
    client = await open_client(server.url, pools=PoolSettings(queue=15, wait_s=0.2))
    blocked = [
        asyncio.create_task(client.call("BLPOP", "list", 0, role=Role.QUEUE, timeout_s=60))
        for _ in range(15)
    ]
    await eventually(lambda: server.info("clients")["blocked_clients"] == "15")
    async with asyncio.timeout(30):
        for role in set(Role) - {Role.QUEUE}:
            assert await client.call("PING", role=role) == b"PONG"
    with pytest.raises(PoolExhausted, match=r"all 15 connections of role queue.*pools\.queue"):
        await client.call("PING", role=Role.QUEUE)
    await client.call("RPUSH", "list", *range(15))
    items = await asyncio.gather(*blocked)
    assert {int(item[1]) for item in items} == set(range(15))


@pytest.mark.parametrize("role", list(Role))
async def test_a_role_holds_as_many_connections_as_it_may_and_not_one_more(
    open_client, start_server, role
):
    server = start_server()
    client = await open_client(server.url, pools=PoolSettings(**{role: 4}))
    most = 4 if role is Role.QUEUE else 3  # one place is kept for the shared connection
    held = most_held = 0
    ids = set()

    async def borrow():
        nonlocal held, most_held
        async with client.lease(role) as wire:
            held += 1
            most_held = max(most_held, held)
            ids.add(await wire.call("CLIENT", "ID"))
            held -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(borrow() for _ in range(200)))
    assert most_held == most
    assert len(ids) == most
    if role is not Role.QUEUE:
        await client.call("PING", role=role)
        assert connections(server) == 4 + (role is not Role.DEFAULT)


async def test_who_finds_no_connection_waits_his_time_and_no_longer(open_client, valkey_server):
    client = await open_client(valkey_server.url, pools=PoolSettings(queue=1, wait_s=0.2))
    started = asyncio.get_running_loop().time()
    async with client.lease():
        with pytest.raises(PoolExhausted) as raised:
            async with client.lease():
                pytest.fail("there is only one")
    assert 0.19 < asyncio.get_running_loop().time() - started < patient(1)
    assert raised.value.outcome == "rejected"
    assert raised.value.transient
    async with client.lease() as wire:
        assert await wire.call("PING") == b"PONG"


async def test_a_place_that_becomes_free_goes_to_who_waits_for_that_role(
    open_client, valkey_server
):
    client = await open_client(valkey_server.url, pools=PoolSettings(queue=1, cache=2, wait_s=30))
    async with client.lease(Role.CACHE):
        async with client.lease(Role.QUEUE):
            first = asyncio.create_task(_ping(client, Role.CACHE))
            second = asyncio.create_task(_ping(client, Role.QUEUE))
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            assert await second == b"PONG"
        assert not first.done()
    async with asyncio.timeout(60):
        assert await first == b"PONG"


async def _ping(client, role):
    async with client.lease(role) as wire:
        return await wire.call("PING")


@pytest.mark.parametrize("seed", range(2))
async def test_no_place_is_ever_lost(open_client, valkey_server, fault_proxy, seed, namespace):
    """Openings fail, callers are cancelled at any point: in the end every place is there."""
    chance = random.Random(seed)  # noqa: S311
    proxy = fault_proxy(valkey_server)
    client = await open_client(proxy.url, pools=PoolSettings(queue=3, wait_s=0.3))

    async def borrow(name):
        async with client.lease() as wire:
            if chance.random() < 0.3:
                await wire.call("BLPOP", f"{namespace}:none", 0.01)
            assert await wire.call("ECHO", name) == name.encode()

    for round_number in range(6):
        tasks = [asyncio.create_task(borrow(f"{round_number}:{number}")) for number in range(50)]
        if round_number % 2:
            proxy.refuse()
            proxy.cut(reset=True)
        for victim in chance.sample(tasks, 30):
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            victim.cancel()
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = {type(end) for end in ends}
        assert kinds <= {
            type(None), asyncio.CancelledError, Unreachable, OutcomeUnknown, PoolExhausted
        }  # fmt: skip
        proxy.heal()

    async def all_places():
        try:
            async with client.lease() as one, client.lease() as two, client.lease() as three:
                return len({id(one), id(two), id(three)}) == 3
        except Unreachable:  # the last refusal still counts for half a second
            return False

    assert await eventually(all_places)
    async with client.lease(), client.lease(), client.lease():
        with pytest.raises(PoolExhausted):
            async with client.lease():
                pytest.fail("there are three")


async def test_the_connection_of_a_cancelled_read_is_not_used_again(open_client, start_server):
    server = start_server()
    client = await open_client(server.url, pools=PoolSettings(queue=1))
    before = await client.call("CLIENT", "ID", role=Role.QUEUE)
    assert await client.call("CLIENT", "ID", role=Role.QUEUE) == before
    read = asyncio.create_task(client.call("BLPOP", "list", 0, role=Role.QUEUE, timeout_s=60))
    await eventually(lambda: server.info("clients")["blocked_clients"] == "1")
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert await client.call("CLIENT", "ID", role=Role.QUEUE) != before
    await eventually(lambda: server.info("clients")["blocked_clients"] == "0")
    # Nobody is left who would take the item and drop it.
    await client.call("RPUSH", "list", "item")
    assert await client.call("BLPOP", "list", 1, role=Role.QUEUE) == [b"list", b"item"]


@pytest.mark.parametrize("seed", range(2))
async def test_cancelled_callers_never_see_what_others_asked_for(
    open_client, valkey_server, namespace, seed
):
    chance = random.Random(seed)  # noqa: S311
    client = await open_client(valkey_server.url, pools=PoolSettings(queue=5))

    async def caller(name):
        for number in range(15):
            role = chance.choice(list(Role))
            nonce = f"{name}:{number}"
            if role is Role.QUEUE and chance.random() < 0.3:
                await client.call("BLPOP", f"{namespace}:none", 0.01, role=role)
            assert await client.call("ECHO", nonce, role=role) == nonce.encode()

    tasks = [asyncio.create_task(caller(name)) for name in range(300)]
    for victim in chance.sample(tasks, 200):
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        victim.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {type(None), asyncio.CancelledError}


async def test_a_connection_of_role_queue_is_not_shared(open_client, valkey_server):
    client = await open_client(valkey_server.url)
    with pytest.raises(ValueError, match="lease"):
        await client.wire(Role.QUEUE)
    assert await (await client.wire(Role.CACHE)).call("PING") == b"PONG"


async def test_an_empty_command_is_refused(open_client, valkey_server):
    client = await open_client(valkey_server.url)
    with pytest.raises(ValueError, match="empty"):
        await client.call()
    with pytest.raises(ValueError, match="empty"):
        await client.pipeline([("PING",), ()])
    assert await client.call("ECHO", "next") == b"next"


@pytest.mark.parametrize("name", ["SUBSCRIBE", "monitor", b"SELECT", "MULTI", "HELLO"])
async def test_what_changes_a_connection_is_refused_where_it_is_shared(
    open_client, valkey_server, name
):
    client = await open_client(valkey_server.url)
    with pytest.raises(CommandRefused, match="redis_py"):
        await client.call(name, "1")
    with pytest.raises(CommandRefused, match="redis_py"):
        await client.pipeline([("PING",), (name, "1")])
    assert await client.call("ECHO", "next") == b"next"


async def test_before_opening_and_after_closing_it_is_not_open(valkey_server):
    client = Client(Settings(url=valkey_server.url))
    await client.close()
    with pytest.raises(NotOpen):
        await client.call("PING")
    await client.open()
    await client.open()
    assert await client.call("PING") == b"PONG"
    await client.close()
    await client.close()
    for use in (
        client.call("PING"),
        client.pipeline([("PING",)]),
        client.wire(),
        client.redis_py(),
    ):
        with pytest.raises(NotOpen):
            await use
    await client.open()
    assert await client.call("PING") == b"PONG"
    await client.close()


async def test_closing_ends_every_connection_also_lent_and_half_open_ones(
    start_server, fault_proxy
):
    server = start_server()
    proxy = fault_proxy(server)
    client = Client(Settings(url=proxy.url))
    await client.open()
    stock = await client.redis_py()
    await stock.ping()
    read = asyncio.create_task(client.call("BLPOP", "list", 0, role=Role.QUEUE, timeout_s=60))
    await eventually(lambda: server.info("clients")["blocked_clients"] == "1")
    proxy.blackhole(way="to_client")
    opening = asyncio.create_task(client.call("PING", role=Role.CACHE))
    await eventually(lambda: proxy.open_connections == 4)
    await client.close()
    proxy.heal()
    with pytest.raises(OutcomeUnknown):
        await read
    with pytest.raises((ServerError, NotOpen)):
        await opening
    await eventually(lambda: proxy.open_connections == 0)


async def test_an_address_without_a_server_shows_when_opening():
    client = Client(Settings(url=f"redis://127.0.0.1:{free_port()}"))
    with pytest.raises(Unreachable):
        await client.open()
    with pytest.raises(NotOpen):
        await client.call("PING")


async def test_a_forked_child_is_told_to_open_its_own(open_client, valkey_server):
    client = await open_client(valkey_server.url)
    child = os.fork()
    if child == 0:
        try:
            client._nodes()
        except NotOpen as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await client.call("PING") == b"PONG"


async def test_scripts_are_found_again_after_the_server_forgot_them(
    open_client, any_server, namespace
):
    client = await open_client(any_server.url)
    for _ in range(2):
        assert await scripts_of(client).probe(probe=f"{namespace}:p", token="t", ttl_ms=1_000) > 0
        await client.call("SCRIPT", "FLUSH")


async def test_the_stock_client_is_ready_for_publish_and_subscribe(
    open_client, valkey_server, namespace
):
    client = await open_client(valkey_server.url)
    stock = await client.redis_py()
    assert await client.redis_py() is stock
    async with stock.pubsub() as listener:
        await listener.subscribe(namespace)
        await client.call("PUBLISH", namespace, "news")

        async def heard():
            message = await listener.get_message(ignore_subscribe_messages=True, timeout=0.1)
            return message and message["data"]

        assert await eventually(heard) == b"news"


async def test_no_secret_is_shown(start_server, caplog):
    server = start_server(password="hunter2-right")
    settings = Settings(
        url=f"redis://:hunter2-wrong@127.0.0.1:{server.port}", timeouts=TimeoutSettings()
    )
    client = Client(settings)
    with pytest.raises(ServerError) as raised:
        await client.open()
    shown = [repr(client), str(client.address), repr(client.address), repr(settings)]
    shown += [str(raised.value), repr(raised.value), caplog.text]
    assert not any("hunter2" in text for text in shown)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_close_that_is_cancelled_ends_its_connections_all_the_same(
    open_client, valkey_server, turns
):
    client, other = [await open_client(valkey_server.url) for _ in range(2)]
    number = await client.call("CLIENT", "ID")
    closing = asyncio.create_task(client.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    if turns == 0:  # it has not begun
        await client.close()

    async def is_gone():
        return b"id=%d " % number not in await other.call("CLIENT", "LIST")

    await eventually(is_gone)


async def test_where_some_connections_are_refused_the_others_are_not(open_client, start_server):
    client = await open_client(start_server("valkey", "--maxclients", "24").url)
    served = 0

    async def hold(length_s):
        nonlocal served
        try:
            async with client.dedicated() as wire:
                await wire.call("PING")
                served += 1
                await asyncio.sleep(length_s)
        except (PoolExhausted, Unreachable):
            pass

    for _ in range(5):
        await asyncio.gather(*(hold(number % 5 / 100) for number in range(100)))
    assert served


@pytest.mark.parametrize("password", [None, "secret"])
async def test_a_server_with_no_room_for_a_connection_says_so(open_client, start_server, password):
    server = start_server("valkey", password=password)
    await (await open_client(server.url)).call("PING")
    server.command("CONFIG", "SET", "maxclients", "1")
    with pytest.raises(Unreachable, match="max number of clients"):
        await (await open_client(server.url)).call("PING")


@pytest.mark.parametrize(
    "address",
    [
        *("redis://USER@127.0.0.1:1", "rediss://USER@localhost:1", "redis://USER@[::1]:1/3"),
        *("redis+sentinel://USER@127.0.0.1:1/main", "redis+cluster://USER@127.0.0.1:1,127.0.0.1:2"),
        *("unix://USER@/nowhere/valkey.sock", "redis://USER@a b", "redis://USER@"),
        *("redis://USER@host:port", "redis://USER@[::1", "http://USER@host", "redis://USER@h/many"),
        *("redis://USER@h?colour=red", "redis+cluster://USER@h/3", "USER@h", "redis://USER/@h"),
    ],
)
async def test_no_address_that_leads_nowhere_shows_its_password(address, caplog):
    settings = Settings(
        url=address.replace("USER", "u:s3cret-pass"),
        allow_unauthenticated=True,
        timeouts=TimeoutSettings(connect_s=0.5, command_s=0.5),
    )
    with pytest.raises(PenstockError) as failed:
        await Client(settings).open()
    text = "".join(traceback.format_exception(failed.value))
    assert "s3cret" not in f"{failed.value!r} {text} {settings!r} {caplog.text}"
