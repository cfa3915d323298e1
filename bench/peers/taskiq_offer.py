"""taskiq on its stream broker, sending: `offer <one by one> <in bulk>`; it has no bulk."""

from __future__ import annotations

import offering
import sending
import uvloop
from taskiq_peer import broker, handle


async def offer() -> None:
    await broker.startup()
    await offering.offer(lambda: handle.kiq(sending.ORDER))
    await broker.shutdown()


if __name__ == "__main__":
    uvloop.run(offer())
