"""Messages that may have ended a process begin one at a time, so that the next crash names one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from penstock.redis.client import Client

__all__ = ["Turns", "turns_of"]

_LONGEST_TURN_S: Final = 2.0
"""A handler that has run for this long is unlikely to be what ends processes: the next one may
begin beside it, so that slow handlers do not hold each other up for ever."""


class Turns:
    """Turns of suspects: messages that were in the hands of a process when it died.

    Perhaps one of them took it down, perhaps one that ran beside them did. If only one suspect runs
    at a time, the next crash is charged to no other.
    """

    def __init__(self, longest_s: float = _LONGEST_TURN_S) -> None:
        self._lock, self._longest_s = asyncio.Lock(), longest_s

    async def take(self) -> Callable[[], None]:
        """Wait for a turn; returns what ends it. It ends by itself when it has lasted too long."""
        await self._lock.acquire()
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                timer.cancel()
                self._lock.release()

        timer = asyncio.get_running_loop().call_later(self._longest_s, end)
        return end


# Shared by all consumers of a client: a crash takes them all down.
_turns: WeakKeyDictionary[Client, Turns] = WeakKeyDictionary()


def turns_of(client: Client) -> Turns:
    """The turns of the process that a client belongs to."""
    return _turns.setdefault(client, Turns())
