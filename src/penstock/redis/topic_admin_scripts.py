"""The scripts by which topics are looked after."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.redis.script import ScriptCaller
from penstock.redis.wire import Argument

__all__ = ["TopicAdminScripts"]


class TopicAdminScripts(ScriptCaller):
    """Scripts by which people change topics, groups and dead letters, as calls."""

    async def remove_letters(
        self,
        *,
        dlq: str,
        dlq_index: str,
        audit: str,
        who: str,
        what: str,
        detail: str,
        ids: Sequence[str],
    ) -> int:
        """Take dead letters away; how many there were."""
        return await self.run("remove_letters", (dlq, dlq_index, audit), (who, what, detail, *ids))

    async def trim_letters(
        self,
        *,
        dlq: str,
        dlq_index: str,
        audit: str,
        max_length: int,
        max_age_ms: int,
        count: int,
        who: str,
        what: str,
    ) -> int:
        """Drop up to `count` of the oldest dead letters; how many were dropped. -1: no limit."""
        arguments = (max_length, max_age_ms, count, who, what)
        return await self.run("trim_letters", (dlq, dlq_index, audit), arguments)

    async def edit_letter(
        self,
        *,
        dlq: str,
        dlq_index: str,
        audit: str,
        id_: str,
        who: str,
        index_field: str,
        fields: Sequence[Argument],
    ) -> bytes | None:
        """Replace a dead letter; the id of the new one, None if it is not there."""
        keys = (dlq, dlq_index, audit)
        return await self.run("edit_letter", keys, (id_, who, index_field, *fields))
