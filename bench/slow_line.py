"""A line to the server that takes its time: python slow_line.py <ms of a round trip>.

It passes bytes on as they come, later. The proxy of `penstock.testing` understands every reply, for
which it needs more time than the server; this one must not be what is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import deque
from typing import cast

import uvloop

UPSTREAM = os.environ["BENCH_URL"].removeprefix("unix://")


class End(asyncio.Protocol):
    """One end of a connection: what it hears, the other end says after a while."""

    def __init__(self, delay_s: float, other: End | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.other = other
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._late: deque[bytes] = deque()
        self._opening: asyncio.Task[object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.other is None:
            self.other = End(self._delay_s, self)
            self._opening = self._loop.create_task(self._open(self.other))

    async def _open(self, other: End) -> None:
        await self._loop.create_unix_connection(lambda: other, UPSTREAM)
        while self._late:
            self._pass_on()

    def data_received(self, data: bytes) -> None:
        self._late.append(data)
        self._loop.call_later(self._delay_s, self._pass_on)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def _pass_on(self) -> None:
        """Whichever timer rings, the oldest goes first."""
        if self._late and self.other is not None and self.other.transport is not None:
            self.other.transport.write(self._late.popleft())


async def serve(round_trip_ms: float) -> None:
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        path = f"{folder}/line"
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: End(round_trip_ms / 2_000), path)
        print(json.dumps({"url": f"unix://{path}"}), flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(float(sys.argv[1])))
