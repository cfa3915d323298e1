"""The schedules of an app: declared in its code, looked at and changed while they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.delivery.audit import record_act
from penstock.delivery.looking import text
from penstock.errors import ConfigError, QueueError
from penstock.queues.cron import read_when
from penstock.queues.facts import is_queue
from penstock.queues.items import LATEST_MS, new_id
from penstock.queues.schedule import PAUSED, QUEUED, Schedule, enqueue
from penstock.queues.scheduler import Scheduler
from penstock.queues.timetable import PAGE
from penstock.redis.client import Client
from penstock.redis.keys.keyring import QueueKeyring

__all__ = ["ScheduleView", "Schedules"]

TRIES: Final = 10
"""A schedule that is paused while it fires is looked at again."""


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands on the server."""

    name: str
    queue: str
    when: str
    """As it was declared: `cron UTC */5 * * * *`, or `every 90000 0` in ms, period and offset."""
    next_ms: int | None
    """The next tick in server ms; None while it is paused."""
    paused: bool
    orphan: bool
    """Whether no worker declares it any more. It fires for nobody, and stays until removed."""


class Schedules:
    """What recurs: `app.schedules`.

    for schedule in await app.schedules.list(): print(schedule.name, schedule.next_ms)
    await app.schedules.pause("nightly-report")

    A name that stands nowhere raises `QueueError`, a change is noted in the queue's audit.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._declared: dict[str, Callable[[], Schedule]] = {}

    @property
    def declared(self) -> Sequence[Schedule]:
        """What the code of this app declares."""
        return tuple(renew() for renew in self._declared.values())

    def add(self, schedule: Schedule, renew: Callable[[], Schedule] | None = None) -> None:
        """Declare a schedule; workers made from now on look after it.

        `renew` makes it anew for each of them, where it hangs on what is configured later.
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
        """Make the service that looks after all that is declared."""
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
            facts = await self._client.scripts.look_at_schedule(keys=self._keys(queue), name=name)
            if facts:
                (view,) = _read_views(queue, [name.encode(), *facts])
                return view
        raise QueueError(f"there is no schedule {name!r} on the server")

    async def pause(self, name: str, *, who: str | None = None) -> bool:
        """Let a schedule fire no more; False if it was paused. What passes by is not made up."""
        for _ in range(TRIES):
            view = await self.get(name)
            if view.paused:
                return False
            if await self._move(view, str(view.next_ms), PAUSED):
                await self._note(view.queue, who, "pause schedule", name)
                return True
        raise QueueError(f"schedule {name!r} fires too often to be paused; try again")

    async def resume(self, name: str, *, who: str | None = None) -> bool:
        """Let a paused schedule go on with its next tick; False if it was not paused."""
        view = await self.get(name)
        if not view.paused:
            return False
        when = read_when(view.when)
        if when is None:
            raise QueueError(f"schedule {name!r} is declared in unknown words: {view.when!r}")
        resumed = await self._move(view, PAUSED, str(when.next_after(await self._now_ms())))
        if resumed:
            await self._note(view.queue, who, "resume schedule", name)
        return resumed

    async def trigger(self, name: str, *, who: str | None = None) -> str:
        """Queue a job of a schedule now, beside its ticks, paused or not; the job's id.

        This app's code has to declare it: only that knows the job.
        """
        renew = self._declared.get(name)
        if renew is None:
            raise ConfigError(f"schedule {name!r} is not declared by this app")
        schedule = renew()
        job_id = f"cron:{name}:{new_id()}"
        done = await enqueue(self._client, schedule, [(job_id, await self._now_ms())])
        if done != QUEUED:
            reason = "its last job has not ended" if done else f"queue {schedule.queue!r} is full"
            raise QueueError(f"schedule {name!r}: {reason}; nothing was queued")
        await self._note(schedule.queue, who, "trigger schedule", name)
        return job_id

    async def remove(self, name: str, *, who: str | None = None) -> bool:
        """Forget a schedule; False if there was none.

        Workers that run and still declare it leave it alone; the next that starts brings it back.
        """
        renew = self._declared.get(name)
        own = [renew().queue] if renew else []
        for queue in (*own, *sorted(await self._registered())):
            if await self._client.scripts.remove_schedule(keys=self._keys(queue), name=name):
                await self._note(queue, who, "remove schedule", name)
                return True
        return False

    async def _now_ms(self) -> int:
        seconds, micros = map(int, await self._client.call("TIME"))
        return seconds * 1000 + micros // 1000

    async def _queues(self) -> list[str]:
        return sorted({*await self._registered(), *(one.queue for one in self.declared)})

    async def _registered(self) -> set[str]:
        known = await self._client.call("SMEMBERS", self._client.keys.queues().registry)
        return {name for name in map(text, known) if is_queue(self._client, name)}

    async def _views(self, queue: str) -> list[ScheduleView]:
        views: dict[bytes | int, ScheduleView] = {}
        cursor: bytes | int = b"0"
        while True:
            cursor, *facts = await self._client.scripts.list_schedules(
                keys=self._keys(queue), cursor=cursor, count=PAGE
            )
            views |= zip(facts[::4], _read_views(queue, facts), strict=True)
            if cursor == b"0":
                return list(views.values())

    async def _move(self, view: ScheduleView, found: str, tick: str) -> bool:
        return await self._client.scripts.move_tick(
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
    """When it is next; other programs may have stored any number."""
    return int(min(max(float(tick), 0), LATEST_MS))


def _text(told: bytes | int) -> str:
    return told.decode(errors="backslashreplace") if isinstance(told, bytes) else str(told)
