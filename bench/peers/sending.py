"""What all producers share: the message, and how fast it is taken from them.

Standard library only: the peers have an environment of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

URL = os.environ["BENCH_URL"]
"""The server that all contenders use, as `unix://<path>`."""
CALLERS = 100
ORDER = json.loads((Path(__file__).parent / "order.json").read_text())
"""200 bytes of JSON."""


def count() -> int:
    """How many messages this program was asked to send: its last argument."""
    return int(sys.argv[-1])


def tell(sent: int, since: float) -> None:
    """Say on standard output how many messages a second were taken."""
    print(json.dumps({"rate": sent / (time.perf_counter() - since)}), flush=True)


async def send_at_once(send: Callable[[], Awaitable[object]]) -> None:
    """Send from many tasks, each of which awaits its message before the next."""
    each = count() // CALLERS

    async def caller() -> None:
        for _ in range(each):
            await send()

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    tell(each * CALLERS, started)
