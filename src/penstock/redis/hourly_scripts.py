"""The script of the limit per clock hour."""

from __future__ import annotations

from penstock.redis.node import Role
from penstock.redis.script import ScriptCaller

__all__ = ["HourlyScripts"]


class HourlyScripts(ScriptCaller):
    """The script of the limit per clock hour, as a call."""

    async def count_hour(
        self, *, counters: str, calls: int, limit: int, buffer: int, keep_ms: int
    ) -> tuple[int, bool, int]:
        """Count calls (0 to look): calls in the hour, whether these are counted, server ms.

        `counters` is what the counters of all hours begin with.
        """
        arguments = (calls, limit, buffer, keep_ms)
        count, allowed, now_ms = await self.run(
            "count_hour", (counters,), arguments, role=Role.RATELIMIT
        )
        return count, bool(allowed), now_ms
