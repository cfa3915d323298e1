"""One run: its status, facts, tasks and checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec

from penstock.coordination.feeds.feed import Feed
from penstock.coordination.feeds.hub import FeedHub
from penstock.coordination.limits.hourly import HourlyLimit
from penstock.coordination.limits.keys import HourlyLimitKeys
from penstock.coordination.runs.items import MOST_AT_ONCE, RunItems
from penstock.coordination.runs.keys import RunKeys
from penstock.coordination.runs.records import (
    FINAL,
    RunEvent,
    RunRecord,
    TaskStart,
    read_events,
    read_starts,
)
from penstock.coordination.runs.scripts import RunScripts
from penstock.coordination.runs.validation import (
    Watermark,
    check_expected,
    check_facts,
    check_final,
    check_status,
    check_task,
    check_version,
    check_watermark,
    check_whole,
)
from penstock.coordination.stored_names import RUN_ID, RUN_PROCESSED
from penstock.delivery.message_sizes import MessageSizes
from penstock.delivery.queries import ask
from penstock.errors import InvalidItem, NotOpen, RunMissing
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Command, Reply

__all__ = ["Run", "read_run", "run_reads"]

_LARGEST_SHOWN: Final = 1024
"""Bytes of a cursor that its event contains as well."""
_FIRST: Final = 50
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of events that are read at once, estimated by the sizes of earlier ones."""


class Run(RunItems):
    """A pass over many items, by any number of processes, that survives all of them.

        run = await app.runs.start("manual_2024-09-17T14:30:00+00:00", kind="harvest")
        await run.move("running")
        for item in items:
            if await run.is_processed(item):
                continue
            try:
                ...
            except Exception as error:
                await run.fail(item, error)
            else:
                await run.mark_processed(item)
        await run.checkpoint({"page": 7}, watermark="2024-09-17T14:00:00Z")
        await run.finish()

    Each call is one script: it happens wholly or not at all. A call whose reply is lost is
    repeated, and nothing is done twice. `RunMissing` if there is no such run.
    """

    def __init__(
        self, client: Client, codec: Codec, run_id: str, hub: FeedHub | None = None
    ) -> None:
        super().__init__(client, codec, run_id)
        self._hub = hub
        self.created = False
        """Whether this `Runs.start` created it, and not an earlier one."""
        # JSON that other programs can read, too: never compressed.
        plain = client.settings.codec
        self._encode = Codec(replace(plain, compress_above=plain.max_inflated)).encoder(Any)

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    async def record(self) -> RunRecord:
        """Read the run; one round trip."""
        record = read_run(self.id, await ask(self.client, run_reads(self.client, self.id)))
        if record is None:
            raise RunMissing(self.id)
        return record

    # ---- status

    async def move(
        self,
        to: str,
        *,
        expect: str | Collection[str] | None = None,
        version: int | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> int:
        """Change the status of the run, and facts with it; its new version.

            created → running ⇄ paused → completed, failed or cancelled

        A run may end from each of the first three. `RunConflict`, and nothing is written, if that
        is not legal, or the run's status is none of `expect`, or its version not `version`. Of two
        that do the same at once, one wins.
        """
        return await self._change(check_status(to), expect, version, facts)

    async def finish(
        self,
        status: str = "completed",
        *,
        expect: str | Collection[str] | None = None,
        version: int | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> int:
        """End the run: completed, failed or cancelled; otherwise as `move`.

        It is kept for `runs.keep_hours`, counted from when its last failure is resolved.
        """
        return await self._change(check_final(status), expect, version, facts)

    async def reopen(self, *, version: int | None = None) -> int:
        """Let a run that has ended go on: it is running again, and kept. Otherwise as `move`."""
        return await self._change("running", FINAL, version, None, reopen=True)

    async def note(self, facts: Mapping[str, str], *, version: int | None = None) -> int:
        """Set facts, whatever the run's status; its new version. `RunConflict` as for `move`."""
        if not facts:
            raise InvalidItem("no facts to note")
        return await self._change("", None, version, facts)

    async def _change(
        self,
        to: str,
        expect: str | Collection[str] | None,
        version: int | None,
        facts: Mapping[str, str] | None,
        *,
        reopen: bool = False,
    ) -> int:
        expected, of_version, stored_facts = (
            check_expected(expect),
            check_version(version),
            check_facts(facts),
        )
        return await self._compare(
            lambda token: RunScripts.of(self.client).change_run(
                keys=self.keys,
                token=token,
                to=to,
                expect=expected,
                version=of_version,
                reopen=reopen,
                keep_ms=self._keep_ms,
                cap=self._cap,
                facts=stored_facts,
            )
        )

    # ---- checkpoint

    async def checkpoint(
        self,
        cursor: Any,
        *,
        watermark: Watermark | None = None,
        version: int | None = None,
        force: bool = False,
    ) -> int:
        """Save where to continue, and up to what all is done; the run's new version.

        `cursor` is anything that is JSON. `watermark` is a number, a text or a datetime; one that
        is lower than that of the run leaves it where it is, unless `force` says otherwise. Texts
        are compared byte by byte, as fits times in ISO 8601 of one length. `RunConflict` if the run
        has another version than `version`, or has ended.
        """
        stored, mark, of_version = (
            self._encode(cursor),
            check_watermark(watermark),
            check_version(version),
        )
        return await self._compare(
            lambda token: RunScripts.of(self.client).save_checkpoint(
                keys=self.keys,
                token=token,
                cursor=stored,
                watermark=mark,
                force=force,
                version=of_version,
                cap=self._cap,
                largest_shown=_LARGEST_SHOWN,
            )
        )

    # ---- tasks

    async def note_task_start(
        self, task: str, *, attempt: int = 1, map_index: int | None = None
    ) -> bool:
        """Record that a task began; whether it is its first start.

        A task with a `map_index` is one task for each index. The first start is kept; each attempt
        is recorded beside it, once.
        """
        check_task(task, attempt, map_index)
        label = task if map_index is None else f"{task}[{map_index}]"
        first = await self._act(
            lambda token: RunScripts.of(self.client).note_start(
                keys=self.keys,
                task_start=self.keys.task_start(label),
                token=token,
                task=msgspec.json.encode((task, map_index)),
                start=msgspec.json.encode((task, map_index, attempt)),
                keep_ms=self._keep_ms,
            )
        )
        return bool(first)

    async def task_starts(self) -> list[TaskStart]:
        """Every start of every task, the earliest first."""
        found: dict[bytes, bytes] = {}
        cursor: bytes | int = 0
        while cursor != b"0":
            cursor, some = await self.client.call(
                "HSCAN", self.keys.starts, cursor, "COUNT", MOST_AT_ONCE
            )
            found |= zip(some[::2], some[1::2], strict=True)
        return read_starts([part for one in found.items() for part in one])

    # ---- events

    @property
    def feed(self) -> Feed:
        """The run's events for any number of readers, who end when the run does.

        async for event in run.feed.read():
            print(event.number, event.type, event.data)
        """
        if self._hub is None:
            raise NotOpen("a run has a feed if it comes from an application: `app.runs.open(…)`")
        keys = self.keys
        return Feed.at(
            self.client, self.codec, self._hub, name=self.id, events=keys.events, state=keys.feed
        )

    async def events(self, after: int = 0, limit: int = 100) -> list[RunEvent]:
        """Events after number `after`, in order, as far as they are kept."""
        check_whole("after", after, 0)
        check_whole("limit", limit, 1)
        return read_events(await self._entries("XRANGE", f"({after}-0", "+", limit))

    async def last_events(self, limit: int = 10) -> list[RunEvent]:
        """The latest events, in order."""
        check_whole("limit", limit, 1)
        return read_events(reversed(await self._entries("XREVRANGE", "+", "-", limit)))

    async def _entries(
        self, command: Literal["XRANGE", "XREVRANGE"], start: str, end: str, limit: int
    ) -> list[Any]:
        """Entries of the run's events, read in pages that are bounded by bytes."""
        sizes, entries = MessageSizes(_MOST_BYTES, first=_FIRST), list[Any]()
        while len(entries) < limit:
            count = min(MOST_AT_ONCE, limit - len(entries), sizes.fitting())
            some = await self.client.call(command, self.keys.events, start, end, "COUNT", count)
            sizes.note_entries(some)
            entries += some
            if len(some) < count:
                break
            start = f"({some[-1][0].decode()}"
        return entries

    async def contract_view(self) -> dict[str, str]:
        """The fields of the hash that existing programs expect, with lists and objects as JSON.

        The calls of this hour are those that `HourlyLimit` counts: no copy of them is stored.
        Reads the ids of all items that were processed.
        """
        record = await self.record()
        hour = await HourlyLimit(self.client).status()
        processed = sorted({item async for item in self.iter_processed()})
        keys = {
            "state_key": self.keys.record,
            "counter_key": HourlyLimitKeys.of(self.client.keys).count(hour.hour),
            "failed_key": self.keys.failed(hour.hour),
        }
        return {
            RUN_ID: record.id,
            "start_time": record.start_time,
            "current_hour": hour.hour,
            "api_calls_this_hour": str(hour.count),
            "status": record.status,
            RUN_PROCESSED: msgspec.json.encode(processed).decode(),
            "redis_keys": msgspec.json.encode(keys).decode(),
        }


def run_reads(client: Client, run_id: str) -> list[Command]:
    """The commands whose replies `read_run` reads."""
    keys = RunKeys.of(client.keys, run_id)
    return [
        ("HGETALL", keys.record),
        ("SCARD", keys.processed),
        ("ZCARD", keys.failures),
        ("HGET", keys.feed, "seq"),
    ]


def read_run(run_id: str, replies: list[Reply]) -> RunRecord | None:
    """The record of a run; None if there is no such run."""
    stored, processed, failures, events = replies
    return RunRecord.of(run_id, stored, processed, failures, events) if stored else None
