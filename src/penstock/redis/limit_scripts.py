"""The scripts of rate limits."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.keys.coordination import LimitKeys
from penstock.redis.node import Role
from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument

__all__ = ["LimitScripts"]


class LimitScripts(ScriptCaller):
    """Scripts of rate limits, as calls. `setting` is the algorithm, buckets and the windows."""

    async def acquire_limit(
        self,
        *,
        keys: LimitKeys,
        algorithm: str,
        wanted: int,
        fewest: int,
        share: float,
        hold_ms: int,
        ticket: str,
        priority: int,
        waiting: bytes,
        given_back: Sequence[Argument],
        setting: Sequence[Argument],
    ) -> list[int | bytes]:
        """Take permits: granted, ms to wait, ms logged, id, why not, ahead, then each window.

        For callers that wait, `waiting` says who they are; then the waits asked for come last.
        """
        return await self.run(
            "acquire_limit",
            (keys.log, keys.state, keys.waiting, keys.tickets),
            (
                *(algorithm, wanted, fewest, share, hold_ms, ticket, priority, waiting),
                *(*given_back, *setting),
            ),
            Role.RATELIMIT,
        )

    async def settle_limit(
        self,
        *,
        keys: LimitKeys,
        algorithm: str,
        permits: Sequence[Argument],
        as_of_now: str,
        setting: Sequence[Argument],
    ) -> int:
        """Let permits weigh what was used (id, granted, used, ms logged): how many came back."""
        return await self.run(
            "settle_limit",
            (keys.log, keys.state),
            (algorithm, *permits, as_of_now, *setting),
            Role.RATELIMIT,
        )

    async def penalise_limit(
        self, *, keys: LimitKeys, algorithm: str, penalty_ms: int, setting: Sequence[Argument]
    ) -> int:
        """Let nobody through for a while: ms until it ends."""
        return await self.run(
            "penalise_limit",
            (keys.log, keys.state),
            (algorithm, penalty_ms, *setting),
            Role.RATELIMIT,
        )

    async def reconcile_limit(
        self, *, keys: LimitKeys, algorithm: str, told: bytes, setting: Sequence[Argument]
    ) -> list[int]:
        """Count what the provider has counted: for each window, what is counted besides our own."""
        return await self.run(
            "reconcile_limit",
            (keys.log, keys.state),
            (algorithm, told, *setting),
            Role.RATELIMIT,
        )

    async def leave_line(self, *, keys: LimitKeys, ticket: str) -> bool:
        """Wait no longer; whether the ticket was there."""
        return bool(
            await self.run("leave_line", (keys.waiting, keys.tickets), (ticket,), Role.RATELIMIT)
        )

    async def declare_limit(self, *, registry: str, name: str, text: bytes) -> bytes:
        """Note how a limit is set, unless somebody has edited it; how it is set."""
        return await self.run("declare_limit", (registry,), (name, text), Role.RATELIMIT)
