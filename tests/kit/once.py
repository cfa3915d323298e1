"""Programs that do something once: as many as a test wants, each with its own connections."""

from __future__ import annotations

from contextlib import asynccontextmanager

from penstock import Penstock
from penstock.coordination.leases import Leases
from penstock.coordination.once.once import Once


@asynccontextmanager
async def once_of(settings):
    """What is done once in another process, as far as the server can tell; `.app` is its app."""
    async with Penstock(settings=settings) as app:
        leases = Leases(app.redis)
        try:
            once = Once(app.redis, app.codec, leases)
            once.app = app
            yield once
        finally:
            await leases.close()
