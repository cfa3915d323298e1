"""One client for the whole process, for programs that want it so: web applications, mostly.

    async with lifespan: init_redis() at the start, close_redis() at the end

    @api.get("/greeting")
    async def greeting(redis: Annotated[Client, Depends(get_redis)]) -> str: ...

Everything else takes a `Client` or a `Penstock` as an object.
"""

from __future__ import annotations

from penstock.errors import NotOpen
from penstock.redis.client import Client
from penstock.settings import Settings

__all__ = ["close_redis", "get_redis", "get_redis_optional", "init_redis"]

_clients: list[Client] = []


async def init_redis(url: str | None = None, *, settings: Settings | None = None) -> Client:
    """Open the process's client, waiting for the server as `with_retry` does. May come twice."""
    if _clients:
        return _clients[0]
    client = Client(settings or Settings.load({"url": url}))
    await client.with_retry(client.open, "init_redis")
    _clients.append(client)
    if client is not _clients[0]:  # another call was quicker
        await _clients.pop().close()
    return _clients[0]


async def close_redis() -> None:
    """Close the process's client. May come twice, or before any `init_redis`."""
    while _clients:
        await _clients.pop().close()


async def get_redis() -> Client:
    """Return the process's client, for FastAPI's `Depends`; `NotOpen` without `init_redis`."""
    if not _clients:
        raise NotOpen("no client: call init_redis() when the application starts")
    return _clients[0]


async def get_redis_optional() -> Client | None:
    """Return the process's client, or None without one."""
    return _clients[0] if _clients else None
