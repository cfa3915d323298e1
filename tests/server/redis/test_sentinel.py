"""A primary that sentinels guard: found, lost, and found again elsewhere."""

import asyncio

import pytest
from tests.kit.patience import patient

from penstock.errors import AddressError, ServerError, Unreachable
from penstock.redis.client import Client
from penstock.redis.node import Role
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.eventually import eventually
from penstock.testing.servers import free_port

QUICK = TimeoutSettings(connect_s=0.5, command_s=0.5)


async def writes(client, key="key"):
    try:
        return await client.call("SET", key, "value") == b"OK"
    except ServerError:
        return False


@pytest.mark.faults
async def test_a_primary_is_found_followed_through_failovers_and_found_by_the_last_sentinel(
    start_sentinel,
):
    setup = start_sentinel(sentinels=3)
    first, second = setup.servers
    async with Client(Settings(url=setup.url, timeouts=QUICK)) as client:
        assert await client.call("SET", "before", "value") == b"OK"
        assert first.command("GET", "before") == "value"
        stock = await client.redis_py()
        assert await stock.get("before") == b"value"
        blocked = asyncio.create_task(
            client.call("BLPOP", "list", 0, role=Role.QUEUE, timeout_s=60)
        )
        await eventually(lambda: first.info("clients")["blocked_clients"] == "1")

        # The old primary lives on as a replica, the worst case: it answers, and refuses to write.
        await asyncio.to_thread(setup.failover)
        await eventually(lambda: writes(client, "after"), patient(4))
        assert second.command("GET", "after") == "value"
        with pytest.raises(ServerError):
            await blocked
        assert await client.redis_py() is not stock
        assert await (await client.redis_py()).get("before") == b"value"
        await eventually(lambda: "name=penstock" not in first.command("CLIENT", "LIST"))

        # All but one sentinel die, the one that was asked so far among them.
        for sentinel in setup.sentinels[:2]:
            sentinel.kill()
        await eventually(lambda: writes(client), patient(4))
        second.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(lambda: writes(client), patient(4))

    # A new client finds the primary by the last sentinel of its list.
    async with Client(Settings(url=setup.url, timeouts=QUICK)) as client:
        assert await writes(client)


@pytest.mark.faults
async def test_a_primary_that_dies_is_replaced_without_a_restart(start_sentinel, caplog):
    setup = start_sentinel(sentinels=1)
    async with Client(Settings(url=setup.url, timeouts=QUICK)) as client:
        assert await writes(client)
        setup.primary.kill()
        errors = []

        async def written():
            try:
                return await client.call("SET", "key", "value")
            except ServerError as error:
                errors.append(error)

        assert await eventually(written)
        assert errors
        assert all(error.transient for error in errors)
    lines = [record for record in caplog.records if "cannot connect" in record.message]
    assert len(lines) <= 4  # one for each cause and place, however often it was tried


@pytest.mark.faults
async def test_a_frozen_primary_does_not_hold_the_client_for_ever(start_sentinel):
    setup = start_sentinel(sentinels=1)
    async with Client(Settings(url=setup.url, timeouts=QUICK)) as client:
        assert await writes(client)
        old = setup.primary
        old.pause()
        await eventually(lambda: writes(client))
        new = next(server for server in setup.servers if server is not old)
        assert new.command("GET", "key") == "value"


async def test_wrong_names_and_places_are_named(start_sentinel, start_server):
    setup = start_sentinel(sentinels=1)
    (sentinel,) = setup.sentinels
    place = f"127.0.0.1:{sentinel.port}"
    plain = start_server()

    async def error_of(url):
        with pytest.raises((ServerError, AddressError)) as raised:
            await Client(Settings(url=url, timeouts=QUICK)).open()
        return raised.value

    error = await error_of(f"redis+sentinel://{place}/nosuch")
    assert "knows no primary named 'nosuch'" in str(error)
    error = await error_of(f"redis+sentinel://127.0.0.1:{free_port()},{place}/nosuch")
    assert "knows no primary named 'nosuch'" in str(error)
    error = await error_of(f"redis+sentinel://127.0.0.1:{free_port()}/main")
    assert isinstance(error, Unreachable)
    error = await error_of(f"redis+sentinel://127.0.0.1:{plain.port}/main")
    assert "is not a sentinel" in str(error)
    error = await error_of(f"redis://{place}")
    assert "redis+sentinel://" in str(error)

    # A wrong entry in the list does not hide the right one.
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{plain.port},{place}/main"
    async with Client(Settings(url=url, timeouts=QUICK)) as client:
        assert await writes(client)
