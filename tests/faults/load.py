"""Work that comes in for as long as something else goes on."""

from __future__ import annotations

import asyncio

WAVE = 200


async def send_until(ended: asyncio.Event, crew, least: int, **orders) -> int:
    """Let the crew send in waves until it has ended, and `least` at least; how many were sent."""
    sent = 0
    while sent < least or not ended.is_set():
        await crew.send_many(WAVE, seed=sent, failing=0, **orders)
        sent += WAVE
    return sent
