"""redis-py's connection to the embedded server."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import UnixDomainSocketConnection

from penstock.processes.peer import open_own_connection
from penstock.redis.embedded.server import Embedded

__all__ = ["EmbeddedConnection"]


class EmbeddedConnection(UnixDomainSocketConnection):
    """Checks that the server is this user's, and knows its socket of the moment."""

    def __init__(self, *, embedded: Embedded, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]
        self._embedded = embedded

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            self.path = self._embedded.socket
            connection = await open_own_connection(asyncio.get_running_loop(), self.path)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        await self.on_connect()
