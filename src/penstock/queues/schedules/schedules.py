"""`Schedules`: the schedules of an application, declared in its code and managed at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.delivery.audit import record_act
from penstock.delivery.queries import text
from penstock.errors import ConfigError, QueueError
from penstock.queues.admin.status import is_queue
from penstock.queues.schedules.cron import read_when
from penstock.queues.schedules.schedule import PAUSED, Schedule, enqueue
from penstock.queues.schedules.scheduler import Scheduler
from penstock.queues.schedules.scripts import FireStatus, ScheduleScripts
from penstock.queues.schedules.timetable import PAGE
from penstock.queues.storage.keys import QueueKeyring, QueuesKeys
from penstock.queues.storage.stored_job import LATEST_MS, new_id
from penstock.redis.client import Client

__all__ = ["ScheduleView", "Schedules"]

TRIES: Final = 10
"""Attempts at pausing a schedule that fires meanwhile."""


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule on the server."""

    name: str
    queue: str
    when: str
    """As it was declared: `cron UTC */5 * * * *`, or `every 90000 0` in ms, period and offset."""
    next_ms: int | None
    """The next tick in server ms; None while it is paused."""
    paused: bool
    orphan: bool
    """Whether no worker declares it any more: it does not fire, and stays until removed."""


class Schedules:
    """The schedules of an application: `app.schedules`.

    for schedule in await app.schedules.list(): print(schedule.name, schedule.next_ms)
    await app.schedules.pause("nightly-report")

    An unknown name raises `QueueError`; changes are written to the queue's audit log.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._declared: dict[str, Callable[[], Schedule]] = {}

    @property
    def declared(self) -> Sequence[Schedule]:
        """Schedules that this application's code declares."""
        return tuple(renew() for renew in self._declared.values())

    def add(self, schedule: Schedule, renew: Callable[[], Schedule] | None = None) -> None:
        """Declare a schedule for workers that are made from now on.

        `renew` makes it for each of them, where it depends on options that may be set later.
        """
        if schedule.name in self._declared:
            raise ConfigError(
                f"schedule {schedule.name!r} is declared twice; give one of them another name=…"
            )
        self._declared[schedule.name] = renew or (lambda: schedule)

    def on(self, client: Client) -> Schedules:
        """Return the same declarations with another client."""
        made = Schedules(client)
        made._declared = self._declared
        return made

    def scheduler(self) -> Scheduler:
        """Make the worker service that fires the declared schedules."""
        return Scheduler(self._client, self.declared)

    async def list(self, queue: str | None = None) -> list[ScheduleView]:
        """Return all schedules on the server, by their next tick, paused ones last.

        One round trip for each queue there is, and for each 500 schedules of it.
        """
        views = [
            view
            for name in ([queue] if queue else await self._queues())
            for view in await self._views(name)
        ]
        return sorted(views, key=lambda view: (view.paused, view.next_ms or 0, view.name))

    async def get(self, name: str) -> ScheduleView:
        """Return one schedule. One round trip for each queue, however many schedules there are."""
        renew = self._declared.get(name)
        for queue in [renew().queue] if renew else sorted(await self._registered()):
            facts = await ScheduleScripts.of(self._client).read_schedule(
                keys=self._keys(queue), name=name
            )
            if facts:
                (view,) = _read_views(queue, [name.encode(), *facts])
                return view
        raise QueueError(f"there is no schedule {name!r} on the server")

    async def pause(self, name: str, *, who: str | None = None) -> bool:
        """Pause a schedule; False if it was paused. Ticks that pass meanwhile are not made up."""
        for _ in range(TRIES):
            view = await self.get(name)
            if view.paused:
                return False
            if await self._move(view, str(view.next_ms), PAUSED):
                await self._note(view.queue, who, "pause schedule", name)
                return True
        raise QueueError(f"schedule {name!r} fires too often to be paused; try again")

    async def resume(self, name: str, *, who: str | None = None) -> bool:
        """Resume a paused schedule with its next tick; False if it was not paused."""
        view = await self.get(name)
        if not view.paused:
            return False
        when = read_when(view.when)
        if when is None:
            raise QueueError(
                f"schedule {name!r} has a declaration of a later version: {view.when!r}"
            )
        resumed = await self._move(view, PAUSED, str(when.next_after(await self._now_ms())))
        if resumed:
            await self._note(view.queue, who, "resume schedule", name)
        return resumed

    async def trigger(self, name: str, *, who: str | None = None) -> str:
        """Queue a job of a schedule now, beside its ticks, paused or not; returns the job's id.

        Only for schedules that this application's code declares.
        """
        renew = self._declared.get(name)
        if renew is None:
            raise ConfigError(f"schedule {name!r} is not declared by this app")
        schedule = renew()
        job_id = f"cron:{name}:{new_id()}"
        status = await enqueue(self._client, schedule, [(job_id, await self._now_ms())])
        if status is not FireStatus.QUEUED:
            is_full = status is FireStatus.FULL
            reason = (
                f"queue {schedule.queue!r} is full" if is_full else "its last job has not ended"
            )
            raise QueueError(f"schedule {name!r}: {reason}; nothing was queued")
        await self._note(schedule.queue, who, "trigger schedule", name)
        return job_id

    async def remove(self, name: str, *, who: str | None = None) -> bool:
        """Remove a schedule; False if there was none.

        Running workers that declare it leave it removed; the next one that starts restores it.
        """
        renew = self._declared.get(name)
        own = [renew().queue] if renew else []
        for queue in (*own, *sorted(await self._registered())):
            if await ScheduleScripts.of(self._client).remove_schedule(
                keys=self._keys(queue), name=name
            ):
                await self._note(queue, who, "remove schedule", name)
                return True
        return False

    async def _now_ms(self) -> int:
        seconds, micros = map(int, await self._client.call("TIME"))
        return seconds * 1000 + micros // 1000

    async def _queues(self) -> list[str]:
        return sorted({*await self._registered(), *(one.queue for one in self.declared)})

    async def _registered(self) -> set[str]:
        known = await self._client.call("SMEMBERS", QueuesKeys.of(self._client.keys).registry)
        return {name for name in map(text, known) if is_queue(self._client, name)}

    async def _views(self, queue: str) -> list[ScheduleView]:
        views: dict[bytes | int, ScheduleView] = {}
        cursor: bytes | int = b"0"
        while True:
            cursor, *facts = await ScheduleScripts.of(self._client).list_schedules(
                keys=self._keys(queue), cursor=cursor, count=PAGE
            )
            views |= zip(facts[::4], _read_views(queue, facts), strict=True)
            if cursor == b"0":
                return list(views.values())

    async def _move(self, view: ScheduleView, found: str, tick: str) -> bool:
        return await ScheduleScripts.of(self._client).move_tick(
            keys=self._keys(view.queue), name=view.name, text=view.when, found=found, tick=tick
        )

    async def _note(self, queue: str, who: str | None, what: str, name: str) -> None:
        audit = self._keys(queue).audit
        await record_act(self._client, audit, who=who, what=what, count=1, detail=name)

    def _keys(self, queue: str) -> QueueKeyring:
        return QueueKeyring.of(self._client.keys, queue)


def _read_views(queue: str, facts: Sequence[bytes | int]) -> list[ScheduleView]:
    return [
        ScheduleView(
            name=_text(name),
            queue=queue,
            when=_text(when),
            next_ms=None if tick == PAUSED.encode() else _tick_ms(tick),
            paused=tick == PAUSED.encode(),
            orphan=not seen,
        )
        for name, tick, when, seen in zip(*(facts[at::4] for at in range(4)), strict=True)
    ]


def _tick_ms(tick: bytes) -> int:
    """The next tick; other programs may have stored any number."""
    return int(min(max(float(tick), 0), LATEST_MS))


def _text(value: bytes | int) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
