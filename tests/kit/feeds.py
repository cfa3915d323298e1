"""Programs that publish and read feeds: as many as a test wants, each with its own connections."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

from penstock.coordination.feeds.feed import Feed
from penstock.coordination.feeds.hub import FeedHub
from penstock.coordination.wakeups import Wakeups
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.settings import FeedSettings, Settings, TimeoutSettings


@dataclass
class Program:
    """One process, as far as the server can tell."""

    client: Client
    codec: Codec
    hub: FeedHub

    def feed(self, name="news"):
        return Feed(self.client, self.codec, self.hub, name)


@asynccontextmanager
async def program(url, namespace="", timeouts=None, **feeds):
    settings = Settings(
        url=url,
        namespace=namespace,
        feeds=FeedSettings(**{"poll_s": 60.0, **feeds}),
        timeouts=timeouts or TimeoutSettings(),
    )
    async with Client(settings) as client:
        wakeups = Wakeups(client)
        codec = Codec(settings.codec)
        hub = FeedHub(client, codec, wakeups)
        try:
            yield Program(client, codec, hub)
        finally:
            await hub.close()
            await wakeups.close()


async def take(reader, count):
    """The next events, soon."""
    async with asyncio.timeout(50):
        return [await anext(reader) for _ in range(count)]


async def rest(reader):
    """All events up to the final one, soon."""
    async with asyncio.timeout(50):
        return [event async for event in reader]


def numbers(events):
    return [event.number for event in events]
