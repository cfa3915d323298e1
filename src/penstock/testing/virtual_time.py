"""A server clock that a test sets by hand, for everything that scripts decide."""

from __future__ import annotations

from functools import cache
from typing import Final

from penstock.redis.client import Client
from penstock.redis.keys.probe import ProbeKeys
from penstock.redis.script import Script, script_of

__all__ = ["VirtualTime"]

_TIME: Final = "redis.call('TIME')"
_KEEP_MS: Final = 3_600_000


class VirtualTime:
    """Lets the scripts of some clients read the time from a key instead of the server's clock.

        time = VirtualTime(app.redis, other.redis)
        await time.set_ms(1_700_000_000_000)
        await time.advance(90)

    The server, its data and the scripts are the real ones; only what they take for the time of day
    is set. Keys still expire by the server's own clock, and so do `BLPOP` and the like. One server
    only: on a cluster a script cannot read the key.
    """

    def __init__(self, *clients: Client) -> None:
        self._client = clients[0]
        self._key = ProbeKeys.of(self._client.keys, "time").value
        self.now_ms = 0.0
        for client in clients:
            client.substituted = lambda script: _rewritten(script, self._key)

    async def set_ms(self, now_ms: float) -> None:
        """Let it be so many ms after 1970."""
        await self._client.call(*self.setting(now_ms))

    async def advance(self, seconds: float) -> None:
        await self.set_ms(self.now_ms + seconds * 1000)

    def setting(self, now_ms: float) -> tuple[str | int, ...]:
        """The command that sets it, for pipelines."""
        self.now_ms = now_ms
        seconds, ms = divmod(now_ms, 1000)
        return ("SET", self._key, f"{int(seconds)} {int(ms * 1000)}", "PX", _KEEP_MS)


@cache
def _rewritten(script: Script, key: str) -> Script:
    source = f"{{string.match(redis.call('GET', '{key}'), '(%d+) (%d+)')}}"
    return script_of(
        script.name, script.text.replace(_TIME, source), script.plain_text.replace(_TIME, source)
    )
