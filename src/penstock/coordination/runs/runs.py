"""All runs: start them, find them again, list them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from penstock.coordination.feeds.hub import FeedHub
from penstock.coordination.runs.keys import RunKeys, RunsKeys
from penstock.coordination.runs.records import RunRecord
from penstock.coordination.runs.run import Run, read_run, run_reads
from penstock.coordination.runs.scripts import RunScripts
from penstock.coordination.runs.validation import (
    check_facts,
    check_kind,
    check_run,
    check_status,
    check_whole,
)
from penstock.coordination.stored_names import RUN_ID
from penstock.errors import CommandRefused, RunMissing, ServerError, TooMany
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.names import MAX_ID
from penstock.redis.retry import repeat_until_known
from penstock.throttled_log import RateLimitedLog

__all__ = ["GRACE_MS", "Runs"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_PAGE: Final = 100
_SWEPT_PER_START: Final = 20
_SWEPT_IF_FULL: Final = 500
GRACE_MS: Final = 600_000
"""A run registered within this time may be about to get its record."""


class Runs:
    """The runs of an application.

        runs = app.runs
        run = await runs.start("nightly-2024-09-17", kind="harvest")
        for record in await runs.list(status="running"):
            print(record.id, record.processed, record.failures)

    An id may have any characters, up to 512 of them.
    """

    def __init__(self, client: Client, codec: Codec, hub: FeedHub | None = None) -> None:
        self._client, self._codec, self._hub = client, codec, hub
        self._registry = RunsKeys.of(client.keys).registry

    async def start(
        self, run_id: str, *, kind: str = "harvest", facts: Mapping[str, str] | None = None
    ) -> Run:
        """Return the run of this id, and create it if there is none: see `Run.created`.

        Its status is `created` then. One that is there stays as it is, whatever its status.
        TooMany if there are `runs.max_runs` others.
        """
        stored_facts = check_facts(facts)
        check_kind(kind)
        run = self.open(run_id)
        if await self._client.call("EXISTS", run.keys.record):
            return run
        await self._sweep_some(_SWEPT_PER_START)
        # First: a process that dies in between leaves an id without a record, which is swept, and
        # no record that is in no list.
        if not await self._register(run_id):
            await self._sweep_some(_SWEPT_IF_FULL)
            if not await self._register(run_id):
                raise TooMany("runs", self._client.settings.runs.max_runs, "runs.max_runs")
        token = uuid.uuid4().hex
        run.created = await repeat_until_known(
            lambda: RunScripts.of(self._client).start_run(
                keys=run.keys,
                token=token,
                run=run_id,
                kind=kind,
                cap=self._client.settings.feeds.cap,
                id_field=RUN_ID,
                facts=stored_facts,
            )
        )
        return run

    def open(self, run_id: str) -> Run:
        """Return a run without checking that it exists."""
        return Run(self._client, self._codec, check_run(run_id), self._hub)

    async def get(self, run_id: str) -> RunRecord:
        """Read a run; `RunMissing` if there is none. One round trip."""
        return await self.open(run_id).record()

    async def list(
        self,
        limit: int = 50,
        before: str | RunRecord | None = None,
        status: str | None = None,
    ) -> list[RunRecord]:
        """List runs, the latest first; `before` is the last one of the previous page.

        Two round trips for each hundred runs that it looks at; with a `status`, that may be all.
        """
        check_whole("limit", limit, 1)
        if status is not None:
            check_status(status)
        place = 0 if before is None else await self._place_after(before)
        found: list[RunRecord] = []
        gone: list[bytes] = []
        while len(found) < limit:
            ids: list[bytes] = await self._client.call(
                "ZRANGE", self._registry, place, place + _PAGE - 1, "REV"
            )
            records = await self._records(ids)
            gone += [id_ for id_, record in records.items() if record is None]
            found += [
                record
                for record in records.values()
                if record is not None and (status is None or record.status == status)
            ]
            place += _PAGE
            if len(ids) < _PAGE:
                break
        await self._forget(gone)
        return found[:limit]

    async def _place_after(self, before: str | RunRecord) -> int:
        run_id = check_run(before.id if isinstance(before, RunRecord) else before)
        rank: int | None = await self._client.call("ZREVRANK", self._registry, run_id)
        if rank is None and isinstance(before, RunRecord) and before.started_ms is not None:
            return await self._client.call("ZCOUNT", self._registry, before.started_ms, "+inf")
        if rank is None:
            raise RunMissing(run_id)
        return rank + 1

    async def _records(self, ids: list[bytes]) -> dict[bytes, RunRecord | None]:
        """What is known of runs, by their ids; None for those that are gone.

        Foreign entries are left out: one of them hides no run.
        """
        names = _names(ids)
        reads = [run_reads(self._client, name) for name in names.values()]
        replies = await self._client.pipeline([command for one in reads for command in one])
        size = len(reads[0]) if reads else 1
        records: dict[bytes, RunRecord | None] = {}
        for number, (id_, name) in enumerate(names.items()):
            own = replies[number * size : (number + 1) * size]
            fault = next((reply for reply in own if isinstance(reply, ServerError)), None)
            if fault is None:
                records[id_] = read_run(name, own)
            elif isinstance(fault, CommandRefused):
                quiet.warning(name, "run %.100s cannot be read: %s", name, fault)
            else:
                raise fault
        return records

    # ---- the registry

    async def _register(self, run_id: str) -> bool:
        """Note a run; False if there are as many as there may be."""
        made_ms = await repeat_until_known(
            lambda: RunScripts.of(self._client).register_run(
                registry=self._registry, run=run_id, max_runs=self._client.settings.runs.max_runs
            )
        )
        return made_ms > 0

    async def _sweep_some(self, count: int) -> None:
        """Check some random runs, so that expired ones do not accumulate."""
        ids: list[bytes] = await self._client.call("ZRANDMEMBER", self._registry, count)
        names = _names(ids)
        there = await self._client.pipeline(
            [("EXISTS", RunKeys.of(self._client.keys, name).record) for name in names.values()]
        )
        await self._forget([id_ for id_, one in zip(names, there, strict=True) if one == 0])

    async def _forget(self, ids: list[bytes]) -> None:
        for start in range(0, len(ids), _PAGE):
            part = ids[start : start + _PAGE]
            try:
                await RunScripts.of(self._client).forget_runs(
                    registry=self._registry, grace_ms=GRACE_MS, runs=part
                )
            except ServerError:
                return  # the next caller does it


def _names(ids: Iterable[bytes]) -> dict[bytes, str]:
    """Ids that can be those of runs, decoded; other members of the registry are ignored."""
    names: dict[bytes, str] = {}
    for id_ in ids:
        with suppress(UnicodeDecodeError):
            if 1 <= len(name := id_.decode()) <= MAX_ID:
                names[id_] = name
    return names
