"""A narrow network: replies of a server arrive at a bounded rate, and requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["slow_link"]

_CHUNK = 8 * 1024


@asynccontextmanager
async def slow_link(port: int, *, bytes_per_s: float) -> AsyncIterator[str]:
    """The URL of a link to a server on the loopback."""

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float
    ) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if rate:
                    await asyncio.sleep(len(data) / rate)  # the link's own delay
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one side has hung up
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as group:
            group.create_task(carry(reader, to_server, 0))
            group.create_task(carry(from_server, writer, bytes_per_s))

    link = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with link:
        yield f"redis://127.0.0.1:{link.sockets[0].getsockname()[1]}"
