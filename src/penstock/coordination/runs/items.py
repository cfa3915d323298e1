"""Items of a run: which were processed, which failed and when they are retried."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Final

from penstock.coordination.runs.keys import RunKeys
from penstock.coordination.runs.records import FailurePage, RunFailure, read_failures
from penstock.coordination.runs.scripts import NO_RUN, RunChange, RunChangeStatus, RunScripts
from penstock.coordination.runs.validation import (
    ItemId,
    check_cursor,
    check_items,
    check_whole,
    describe_error,
)
from penstock.delivery.retries import Exponential
from penstock.delivery.times import wait_s
from penstock.errors import InvalidItem, RunConflict, RunMissing
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.codec.escaping import escaped
from penstock.redis.retry import repeat_until_known

__all__ = ["RunItems"]

MOST_AT_ONCE: Final = 1_000
"""Items in one call of a script: other clients wait while it runs."""
_WAITS: Final = Exponential()
_HOUR_MS: Final = 3_600_000


class RunHandle:
    """One run, by its id: base of `Run`."""

    def __init__(self, client: Client, codec: Codec, run_id: str) -> None:
        self.id = run_id
        self.keys = RunKeys.of(client.keys, run_id)
        self.client, self.codec = client, codec
        self._keep_ms = round(client.settings.runs.keep_hours * _HOUR_MS)
        self._failed_ms = round(client.settings.runs.failed_hours * _HOUR_MS)
        self._cap = client.settings.feeds.cap

    async def _act(self, call: Callable[[str], Awaitable[int]]) -> int:
        """Call a script with a token for this one call, until its reply is known."""
        token = uuid.uuid4().hex
        reply = await repeat_until_known(lambda: call(token))
        if reply == NO_RUN:
            raise RunMissing(self.id)
        return reply

    async def _compare(self, call: Callable[[str], Awaitable[RunChange]]) -> int:
        """As `_act`, for scripts that compare before they change; the new version."""
        token = uuid.uuid4().hex
        reply = await repeat_until_known(lambda: call(token))
        if reply.outcome is RunChangeStatus.NO_RUN:
            raise RunMissing(self.id)
        if reply.outcome is RunChangeStatus.WRONG_WATERMARK:
            raise InvalidItem("watermark: the run has one of another kind, number or text")
        if reply.outcome is RunChangeStatus.CONFLICT:
            raise RunConflict(self.id, reply.status, reply.version)
        return reply.version


class RunItems(RunHandle):
    """The items of one run. An item is processed, an open failure, or neither; never both."""

    async def mark_processed(self, *ids: ItemId) -> int:
        """Record processed items; how many of them are new. Their failures are resolved.

        Each thousand is recorded in one step. A final run accepts them, too.
        """
        items = check_items(ids)
        new = 0
        for start in range(0, len(items), MOST_AT_ONCE):
            part = items[start : start + MOST_AT_ONCE]
            new += await self._mark(part)
        return new

    async def _mark(self, part: list[str]) -> int:
        return await self._act(
            lambda token: RunScripts.of(self.client).mark_processed(
                keys=self.keys, token=token, keep_ms=self._keep_ms, cap=self._cap, ids=part
            )
        )

    async def is_processed(self, item: ItemId) -> bool:
        """Whether an item was processed."""
        return bool(await self.processed([item]))

    async def processed(self, ids: Iterable[ItemId]) -> set[str]:
        """Which of the items were processed; one round trip for each thousand."""
        items = check_items(ids)
        found: set[str] = set()
        for start in range(0, len(items), MOST_AT_ONCE):
            part = items[start : start + MOST_AT_ONCE]
            flags = await self.client.call("SMISMEMBER", self.keys.processed, *part)
            found.update(item for item, there in zip(part, flags, strict=True) if there)
        return found

    async def processed_count(self) -> int:
        """How many items were processed."""
        return await self.client.call("SCARD", self.keys.processed)

    async def iter_processed(self) -> AsyncIterator[str]:
        """All items that were processed, in no order, a thousand or so per round trip.

        One that is processed meanwhile may be missing, and any may come twice.
        """
        cursor: bytes | int = 0
        while True:
            cursor, found = await self.client.call(
                "SSCAN", self.keys.processed, cursor, "COUNT", MOST_AT_ONCE
            )
            for item in found:
                yield item.decode(errors="backslashreplace")
            if cursor == b"0":
                return

    # ---- failures

    async def fail(
        self,
        item: ItemId,
        error: BaseException | str,
        *,
        retry_in_s: float | timedelta | None = None,
        final: bool = False,
        api_calls: int = 0,
    ) -> int:
        """Record that an attempt at an item failed; how many have by now.

        - `retry_in_s`: when it is due again; by default a delay that doubles with each attempt.
        - `final`: it is not retried, and stays open until it is resolved.
        - `api_calls`: calls that the attempt made; they are added up.

        0 means that the item was processed meanwhile by another caller: nothing is recorded.
        """
        (name,) = check_items([item])
        redacts = self.client.settings.log.redact
        error_type, message = describe_error(error, redacts=redacts)
        check_whole("api_calls", api_calls, 0)
        retry = "never" if final else "" if retry_in_s is None else _ms("retry_in_s", retry_in_s)
        return await self._act(
            lambda token: RunScripts.of(self.client).fail_item(
                keys=self.keys,
                failed=self.keys.failed_prefix,
                token=token,
                item=name,
                error_type=error_type,
                error=message,
                retry=retry,
                base_ms=round(_WAITS.base_s * 1000),
                max_ms=round(_WAITS.max_s * 1000),
                api_calls=api_calls,
                keep_ms=self._keep_ms,
                cap=self._cap,
                failed_ms=self._failed_ms,
            )
        )

    async def resolve(self, item: ItemId | bytes) -> bool:
        """Settle a failure without its item being processed; False if none was open.

        An item whose name is not UTF-8 is named by its bytes: see `RunFailure.raw`.
        """
        name = item if isinstance(item, bytes) else check_items([item])[0]
        done = await self._act(
            lambda token: RunScripts.of(self.client).resolve_failure(
                keys=self.keys, token=token, item=name, keep_ms=self._keep_ms, cap=self._cap
            )
        )
        return bool(done)

    async def claim_due(
        self, limit: int = 100, lease_s: float | timedelta = 60
    ) -> list[RunFailure]:
        """Take failures that are due, the longest due first, to try them again.

        No other caller gets them within `lease_s`; then they are due again. So call
        `mark_processed`, `fail` or `resolve` before that.
        """
        check_whole("limit", limit, 1)
        lease_ms = _ms("lease_s", lease_s)
        if not lease_ms:
            raise InvalidItem("lease_s: expected more than nothing")
        token = uuid.uuid4().hex
        rows = await repeat_until_known(
            lambda: RunScripts.of(self.client).claim_failures(
                keys=self.keys, token=token, most=min(limit, MOST_AT_ONCE), lease_ms=lease_ms
            )
        )
        if isinstance(rows, int):
            raise RunMissing(self.id)
        return read_failures(rows)

    async def due_failures(self, limit: int = 100) -> list[RunFailure]:
        """Read failures that are due, the longest due first, without claiming them."""
        return (await self._read(limit, due_only=True)).failures

    async def failures(self, limit: int = 100, cursor: str | None = None) -> FailurePage:
        """Read open failures by the time they are due; `cursor` is from the previous page."""
        return await self._read(limit, cursor=cursor)

    async def _read(
        self, limit: int, *, due_only: bool = False, cursor: str | None = None
    ) -> FailurePage:
        check_whole("limit", limit, 1)
        most = min(limit, MOST_AT_ONCE)
        score, item = ("", b"") if cursor is None else check_cursor(cursor)
        rows = await RunScripts.of(self.client).look_at_failures(
            keys=self.keys, most=most, due_only=due_only, score=score, item=item
        )
        found = read_failures(rows)
        is_last = len(found) < most
        after = None if is_last else f"{rows[-2].decode()} {escaped(rows[-3])}"
        return FailurePage(failures=found, cursor=after)


def _ms(name: str, wait: float | timedelta) -> int:
    try:
        return math.ceil(round(wait_s(wait, name) * 1000, 3))
    except (TypeError, ValueError) as error:
        raise InvalidItem(str(error)) from None
