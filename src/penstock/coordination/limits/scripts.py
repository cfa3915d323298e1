"""The scripts of rate limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from penstock.coordination.limits.keys import LimitKeys
from penstock.redis.node import Role
from penstock.redis.prepared_call import Prepared, SharedLink
from penstock.redis.script import LuaFolder, ScriptCaller
from penstock.redis.wire import Argument

__all__ = [
    "LIMIT_LUA",
    "NO_PERMITS",
    "REASONS",
    "WINDOWS_FROM",
    "HourCount",
    "LimitScripts",
    "PermitUse",
    "Reason",
]

LIMIT_LUA = LuaFolder("penstock.coordination.limits")

Reason = Literal["", "limit", "line", "penalty", "away"]
"""Why not: the limit itself, callers that waited before, a penalty, or the server is away."""
REASONS: Final[tuple[Reason, ...]] = ("", "limit", "line", "penalty")
"""By their number in replies of `acquire_limit`."""
WINDOWS_FROM: Final = 6
"""Index of the first window in replies of `acquire_limit`."""


class PermitUse(NamedTuple):
    """Permits that were granted, and how many of them were used."""

    id: bytes | str
    granted: int
    used: int
    logged_ms: int
    """The server's ms that was logged for them."""


NO_PERMITS: Final = PermitUse("", 0, 0, 0)


class HourCount(NamedTuple):
    """The reply to `count_hour`."""

    calls: int
    """In the hour, with those just counted."""
    allowed: int
    """Whether these calls were counted."""
    now_ms: int
    """The server's time."""


class LimitScripts(ScriptCaller):
    """Scripts of rate limits, as calls. `setting` is the algorithm, buckets and the windows."""

    lua = LIMIT_LUA

    def acquire_limit(
        self,
        *,
        link: SharedLink,
        keys: LimitKeys,
        algorithm: str,
        wanted: int,
        fewest: int,
        share: float = 1,
        hold_ms: int = 0,
        ticket: str = "",
        priority: int = 0,
        waiting: bytes = b"",
        returned: PermitUse = NO_PERMITS,
        setting: Sequence[Argument],
    ) -> Prepared:
        """Take permits: granted, ms to wait, ms logged, id, `REASONS`, ahead, then each window.

        For callers that wait, `waiting` describes them; then the waits asked for come last.
        """
        return Prepared(
            link,
            self.script("acquire_limit"),
            (keys.log, keys.state, keys.waiting, keys.tickets),
            (
                *(algorithm, wanted, fewest, share, hold_ms, ticket, priority, waiting),
                *(*returned, *setting),
            ),
        )

    async def settle_limit(
        self,
        *,
        keys: LimitKeys,
        algorithm: str,
        permits: PermitUse,
        as_of_now: bool,
        setting: Sequence[Argument],
    ) -> int:
        """Let permits weigh what was used: how many came back."""
        return await self.run(
            "settle_limit",
            (keys.log, keys.state),
            (algorithm, *permits, int(as_of_now), *setting),
            Role.RATELIMIT,
        )

    async def penalise_limit(
        self, *, keys: LimitKeys, algorithm: str, penalty_ms: int, setting: Sequence[Argument]
    ) -> int:
        """Refuse all calls for a while: ms until that ends."""
        return await self.run(
            "penalise_limit",
            (keys.log, keys.state),
            (algorithm, penalty_ms, *setting),
            Role.RATELIMIT,
        )

    async def reconcile_limit(
        self, *, keys: LimitKeys, algorithm: str, counted: bytes, setting: Sequence[Argument]
    ) -> list[int]:
        """Add what the provider has counted: for each window, what it counts besides our own."""
        return await self.run(
            "reconcile_limit",
            (keys.log, keys.state),
            (algorithm, counted, *setting),
            Role.RATELIMIT,
        )

    async def leave_limit(self, *, keys: LimitKeys, ticket: str) -> bool:
        """Remove the ticket of callers that wait no longer; False if there was none."""
        return bool(
            await self.run("leave_limit", (keys.waiting, keys.tickets), (ticket,), Role.RATELIMIT)
        )

    async def declare_limit(self, *, registry: str, name: str, text: bytes) -> bytes:
        """Store the declared setting unless an edited one is stored; the stored one."""
        return await self.run("declare_limit", (registry,), (name, text), Role.RATELIMIT)

    async def count_hour(
        self, *, counters: str, calls: int, limit: int, buffer: int, keep_ms: int
    ) -> HourCount:
        """Count calls in the clock hour, or read the count with 0.

        `counters` is the prefix of the counters of all hours.
        """
        arguments = (calls, limit, buffer, keep_ms)
        return HourCount(*await self.run("count_hour", (counters,), arguments, Role.RATELIMIT))
