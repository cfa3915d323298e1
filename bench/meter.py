"""Processor time of a program and of the server, over a stretch of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.redis import Client

__all__ = ["Meter", "Spent", "commands_in", "percentile"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used between two moments."""

    seconds: float
    client_us: float
    server_us: float
    commands: float
    """All that the server has run, those of scripts included."""


class Meter:
    """Reads the clocks of this process and of the server, by INFO.

    meter = await Meter(client).start()
    ...
    spent = await meter.spent()
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(self) -> Meter:
        self._began = await self._read()
        return self

    async def spent(self) -> Spent:
        now = await self._read()
        return Spent(*(new - old for new, old in zip(now, self._began, strict=True)))

    async def _read(self) -> tuple[float, float, float, float]:
        text = (await self._client.call("INFO", "everything")).decode()
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        server_s = float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])
        commands = float(facts["total_commands_processed"])
        return time.monotonic(), time.process_time() * 1e6, server_s * 1e6, commands


async def commands_in(seconds: float, path: str) -> int:
    """Count what clients send to the server at a socket, without what scripts call.

    MONITOR costs the server time: measure processor time before or after it.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"MONITOR\r\n")
    count, deadline = -1, time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                line = await reader.readline()
        except TimeoutError:
            break
        count += b" lua] " not in line
    writer.close()
    return count


def percentile(values: Sequence[float], percent: int) -> float:
    """One of the values, which `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
