"""Large payloads are compressed in a thread; no message of their key overtakes them meanwhile."""

from __future__ import annotations

import asyncio

from penstock.redis.codec import Codec, Unpacked

__all__ = ["Packing"]


class Packing:
    """What of one producer is being compressed, by key. Falsy while nothing is."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._last: dict[str | None, asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    async def in_turn(self, key: str | None, encoded: bytes | Unpacked) -> bytes:
        """Return the payload as it is stored, after those of the same key that came before.

        The caller sends it without awaiting anything else before.
        """
        before, mine = self._last.get(key), asyncio.get_running_loop().create_future()
        self._last[key] = mine
        try:
            if isinstance(encoded, Unpacked):
                encoded = await self._codec.finish(encoded)
            if before is not None:
                await asyncio.shield(before)
            return encoded
        finally:
            if self._last.get(key) is mine:
                del self._last[key]
            if before is None or before.done():
                mine.set_result(None)
            else:  # cut short: whoever comes next still waits for those before
                before.add_done_callback(lambda _: mine.set_result(None))
