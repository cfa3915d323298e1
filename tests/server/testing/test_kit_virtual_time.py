"""The kit's clock of scripts."""

from __future__ import annotations

from tests.kit.scripts import scripts_of

from penstock.redis.client import Client
from penstock.redis.keys.probe import ProbeKeys
from penstock.settings import Settings
from penstock.testing.virtual_time import VirtualTime


async def test_scripts_take_the_time_that_was_set_for_the_servers(valkey_server, namespace):
    async with Client(Settings(url=valkey_server.url, namespace=namespace)) as client:
        time = VirtualTime(client)
        await time.set_ms(1_700_000_000_123)
        told = await scripts_of(client).probe(
            probe=ProbeKeys.of(client.keys).value, token="x", ttl_ms=1000
        )
        assert told == 1_700_000_000_123
        await time.advance(90)
        told = await scripts_of(client).probe(
            probe=ProbeKeys.of(client.keys).value, token="x", ttl_ms=1000
        )
        assert told == 1_700_000_090_123
