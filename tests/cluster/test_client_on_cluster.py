"""The client on a real cluster: routing, moving slots, dying nodes."""

import asyncio

import pytest
from tests.kit.patience import patient
from tests.kit.scripts import scripts_of

from penstock.errors import (
    AddressError,
    ClusterDown,
    CommandRefused,
    OutcomeUnknown,
    Redirected,
    ServerError,
)
from penstock.redis.client import Client
from penstock.redis.keys.hash_slot import SLOTS, key_slot
from penstock.redis.node import Role
from penstock.settings import PoolSettings, Settings, TimeoutSettings
from penstock.testing.cluster import ClusterProcess
from penstock.testing.eventually import eventually

QUICK = TimeoutSettings(connect_s=0.5, command_s=0.5)
NODE_TIMEOUT_S = 1.5  # as the test kit sets it

pytestmark = pytest.mark.places("cluster")


@pytest.fixture(scope="module")
def breakable():
    """A cluster to harm, as long as it is well again afterwards; each start takes seconds."""
    with ClusterProcess(3, 0, "--cluster-require-full-coverage", "no") as running:
        yield running


def keys_per_node(cluster, namespace):
    """One key on each primary, in their order."""
    owners = [SLOTS * number // 3 for number in range(4)]
    found = {}
    for number in range(1_000):
        key = f"{namespace}:{number}"
        home = next(place for place in range(3) if key_slot(key) < owners[place + 1])
        found.setdefault(home, key)
    return [found[place] for place in range(3)]


async def works(client, *keys):
    try:
        replies = await client.pipeline([("SET", key, "value") for key in keys])
    except ServerError:
        return False
    return replies == [b"OK"] * len(keys)


async def test_keys_are_spread_and_found(client, cluster, namespace):
    keys = [f"{namespace}:{number}" for number in range(300)]
    for key in keys:
        assert await client.call("SET", key, key) == b"OK"
    for key in keys:
        assert await client.call("GET", key) == key.encode()
    held = [node.command("DBSIZE") for node in cluster.nodes]
    assert all(count > 50 for count in held)


async def test_a_pipeline_over_all_nodes_has_its_results_in_order(client, namespace):
    keys = [f"{namespace}:{number}" for number in range(3_000)]
    assert await client.pipeline([("SET", key, key) for key in keys]) == [b"OK"] * 3_000
    replies = await client.pipeline([("GET", key) for key in keys])
    assert replies == [key.encode() for key in keys]
    ends = await client.pipeline(
        [("GET", keys[0]), ("LPUSH", keys[1], 1), ("PING",), ("MGET", *keys[:9]), ("GET", keys[2])]
    )
    assert [ends[0], ends[2], ends[4]] == [keys[0].encode(), b"PONG", keys[2].encode()]
    assert isinstance(ends[1], CommandRefused)
    assert isinstance(ends[3], CommandRefused)
    assert "CROSSSLOT" in str(ends[3])


async def test_two_hundred_callers_at_once(client, namespace):
    async def caller(number):
        for _ in range(10):
            await client.call("INCR", f"{namespace}:{number}")
        return await client.call("GET", f"{namespace}:{number}")

    assert await asyncio.gather(*map(caller, range(200))) == [b"10"] * 200


async def test_scripts_run_by_digest_on_every_node(client, cluster, namespace):
    for _ in range(2):
        for key in keys_per_node(cluster, namespace):
            assert await scripts_of(client).probe(probe=key, token="t", ttl_ms=10_000) > 0
        for node in cluster.nodes:
            node.command("SCRIPT", "FLUSH")


async def test_every_primary_is_known_and_has_a_tag(client, cluster):
    nodes = await client.primaries()
    assert {node.endpoint.port for node in nodes} == {node.port for node in cluster.nodes}
    for node in nodes:
        slot = key_slot(client.tag_on(node))
        assert cluster.primary_of(slot).port == node.endpoint.port


async def test_leases_go_to_the_owner_of_the_slot(client, cluster, namespace):
    for place, key in enumerate(keys_per_node(cluster, namespace)):
        async with client.lease(Role.QUEUE, slot=key_slot(key)) as wire:
            assert wire.endpoint.port == cluster.nodes[place].port
            assert await wire.call("RPUSH", key, "item") == 1
            assert await wire.call("BLPOP", key, 1) == [key.encode(), b"item"]
        assert await client.call("RPUSH", key, "item", role=Role.QUEUE) == 1


async def test_each_kind_of_address_names_the_other(cluster, valkey_server):
    node = cluster.nodes[0]
    with pytest.raises(AddressError, match=r"write redis\+cluster://127"):
        await Client(Settings(url=node.url)).open()
    with pytest.raises(AddressError, match="write redis://127"):
        await Client(Settings(url=f"redis+cluster://127.0.0.1:{valkey_server.port}")).open()


async def test_one_seed_is_enough_and_dead_seeds_do_no_harm(cluster, namespace):
    alive = cluster.nodes[1]
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{alive.port}"
    async with Client(Settings(url=url)) as client:
        assert await works(client, *keys_per_node(cluster, namespace))


async def test_moving_slots_are_followed(breakable, namespace):
    cluster = breakable
    source, target, _ = cluster.nodes
    key = f"{{{keys_per_node(cluster, namespace)[0]}}}"
    slot = key_slot(key)
    async with Client(Settings(url=cluster.url)) as client:
        await client.call("SET", f"{key}:old", "old")
        await client.call("SET", f"{key}:other", "other")
        cluster.begin_move(slot, target)

        # ASK: keys that are not there any more, or not yet, are on the other side.
        source.command("MIGRATE", *target.address, f"{key}:old", 0, 5_000)
        assert await client.call("GET", f"{key}:old") == b"old"
        assert await client.call("GET", f"{key}:other") == b"other"
        ends = await client.pipeline(
            [("SET", f"{key}:new", "new"), ("GET", f"{key}:other"), ("GET", f"{key}:old")]
        )
        assert ends == [b"OK", b"other", b"old"]
        assert await client.call("GET", f"{key}:new", role=Role.QUEUE) == b"new"

        # TRYAGAIN: its keys are on both sides; refused in the end, and answered once united.
        both = ("MGET", f"{key}:old", f"{key}:other")
        with pytest.raises(Redirected, match="TRYAGAIN"):
            await client.call(*both)
        started = asyncio.get_running_loop().time()
        ends = await client.pipeline([both] * 200)
        assert {type(end) for end in ends} == {Redirected}
        assert asyncio.get_running_loop().time() - started < patient(2)
        waiting = asyncio.create_task(client.call(*both))
        await asyncio.to_thread(
            source.command, "MIGRATE", *target.address, f"{key}:other", 0, 5_000
        )
        assert await waiting == [b"old", b"other"]

        # MOVED: followed silently, and known from then on.
        cluster.finish_move(slot, target)
        before = source.info("stats")["total_error_replies"]
        assert await client.call("GET", f"{key}:new") == b"new"
        after = source.info("stats")["total_error_replies"]
        assert await client.call("GET", f"{key}:new") == b"new"
        assert source.info("stats")["total_error_replies"] == after
        assert int(after) - int(before) <= 1
        cluster.move_slot(slot, source)


async def test_a_lease_that_is_told_of_a_move_makes_the_client_look_again(breakable, namespace):
    cluster = breakable
    key = keys_per_node(cluster, namespace)[0]
    async with Client(Settings(url=cluster.url)) as client:
        cluster.move_slot(key_slot(key), cluster.nodes[1])

        async def pushed():
            try:
                async with client.lease(Role.QUEUE, slot=key_slot(key)) as wire:
                    return await wire.call("RPUSH", key, "item")
            except Redirected:
                return None

        assert await eventually(pushed)
    cluster.move_slot(key_slot(key), cluster.nodes[0])


async def test_a_killed_primary_is_replaced_and_a_vanished_node_is_forgotten(
    start_cluster, namespace
):
    cluster = start_cluster(primaries=3, replicas=1)
    keys = keys_per_node(cluster, namespace)
    async with Client(Settings(url=cluster.url, timeouts=QUICK)) as client:
        assert await works(client, *keys)
        victim = cluster.nodes[0]
        victim.kill()
        started = asyncio.get_running_loop().time()
        # The other slots go on as if nothing had happened.
        for _ in range(20):
            assert await works(client, keys[1], keys[2])
            await works(client, keys[0])
        await eventually(lambda: works(client, *keys))
        took_s = asyncio.get_running_loop().time() - started
        assert took_s < patient(2 * NODE_TIMEOUT_S + 1 + 2)
        # It comes back as a replica: no primary any more, so the client lets go of it.
        victim.restart()
        cluster.wait_until_well()
        assert victim.port not in {node.endpoint.port for node in await client.primaries()}
        assert "name=penstock" not in victim.command("CLIENT", "LIST")
        assert victim.port not in {place.port for place in client._cluster._nodes}

        # A planned failover: the old primary answers, with MOVED.
        second = cluster.nodes[1]
        await asyncio.to_thread(cluster.failover, second)
        assert await works(client, *keys)
        await client.primaries()
        await eventually(lambda: "name=penstock" not in second.command("CLIENT", "LIST"))
        assert await works(client, *keys)


async def test_a_frozen_node_holds_up_only_its_own_slots(breakable, namespace):
    cluster = breakable
    keys = keys_per_node(cluster, namespace)
    timeouts = TimeoutSettings(connect_s=1, command_s=1)
    async with Client(
        Settings(url=cluster.url, timeouts=timeouts, pools=PoolSettings(wait_s=1))
    ) as client:
        assert await works(client, *keys)
        cluster.nodes[0].pause()
        loop = asyncio.get_running_loop()
        stuck = [asyncio.create_task(client.call("SET", keys[0], "x")) for _ in range(20)]
        longest, until = 0.0, loop.time() + 1.2
        while loop.time() < until:
            started = loop.time()
            assert await works(client, keys[1], keys[2])
            longest = max(longest, loop.time() - started)
        assert longest < 0.9, "less than those wait that the frozen node holds up"
        ends = await asyncio.gather(*stuck, return_exceptions=True)
        assert {type(end) for end in ends} == {OutcomeUnknown}
        # Now that it is known to be silent, what may go anywhere goes elsewhere.
        async with asyncio.timeout(0.5):
            assert await client.call("PING") == b"PONG"
        cluster.nodes[0].resume()
        await eventually(lambda: works(client, *keys))


async def test_a_cluster_that_is_down_altogether_comes_back(breakable, namespace):
    cluster = breakable
    keys = keys_per_node(cluster, namespace)
    async with Client(Settings(url=cluster.url, timeouts=QUICK)) as client:
        assert await works(client, *keys)
        for node in cluster.nodes:
            node.kill()
        for _ in range(3):
            ends = await client.pipeline([("GET", key) for key in keys])
            assert all(isinstance(end, ServerError) for end in ends)
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            node.wait_ready()
        await eventually(lambda: works(client, *keys))


async def test_a_slot_without_an_owner_is_refused_and_its_neighbours_are_not(breakable, namespace):
    cluster = breakable
    keys = keys_per_node(cluster, namespace)
    async with Client(Settings(url=cluster.url)) as client:
        for node in cluster.nodes:
            node.command("CLUSTER", "DELSLOTS", key_slot(keys[0]))
        for _ in range(3):
            ends = await client.pipeline([("SET", key, "value") for key in keys])
            assert [type(ends[0]), ends[1], ends[2]] == [ClusterDown, b"OK", b"OK"]
            await client.primaries()
        cluster.nodes[0].command("CLUSTER", "ADDSLOTS", key_slot(keys[0]))
        await eventually(lambda: works(client, *keys))
