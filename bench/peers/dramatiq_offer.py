"""Dramatiq, sending: `offer <one by one> <in bulk>`; it has no call for many messages."""

from __future__ import annotations

import asyncio

import offering
import sending
from dramatiq_peer import handle

if __name__ == "__main__":
    asyncio.run(offering.offer(offering.blocking(lambda: handle.send(sending.ORDER))))
