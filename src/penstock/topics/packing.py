"""Large payloads are compressed in a thread; no message of their key overtakes them meanwhile."""

from __future__ import annotations

import asyncio

from penstock.redis.codec import Codec, Unpacked

__all__ = ["Packing"]


class Packing:
    """What of one producer is being compressed."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.last: dict[str | None, asyncio.Future[None]] = {}
        """Of each key that has a large message under way, the end of the last one."""

    async def in_turn(self, key: str | None, encoded: bytes | Unpacked) -> bytes:
        """Return the payload as it is stored, after those of the same key that came before.

        The caller sends it without awaiting anything else before.
        """
        before, mine = self.last.get(key), asyncio.get_running_loop().create_future()
        self.last[key] = mine
        try:
            if isinstance(encoded, Unpacked):
                encoded = await self._codec.finish(encoded)
            if before is not None:
                await asyncio.shield(before)
            return encoded
        finally:
            if self.last.get(key) is mine:
                del self.last[key]
            if before is None or before.done():
                mine.set_result(None)
            else:  # cut short: whoever comes next still waits for those before
                before.add_done_callback(lambda _: mine.set_result(None))
