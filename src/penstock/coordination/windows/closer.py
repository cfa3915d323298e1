"""Closes batches that are due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.coordination.windows.records import read_records
from penstock.coordination.windows.scripts import CloseStatus
from penstock.coordination.windows.targets import BatchStore
from penstock.coordination.windows.window import Window
from penstock.errors import NotOpen, PenstockError, TopicMissing
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.runtime.service import Service
from penstock.runtime.waiting import retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["WindowCloser"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_READ_AGAIN_S: Final = 5.0
"""How often the registry is read: other processes may use windows that are not declared here."""
_SHORTEST_S: Final = 0.005
_TROUBLED_AFTER: Final = 3
_BROKEN_FOR_S: Final = 15.0
"""Longer than `close_windows` postpones what it cannot close."""
_MOST_CALLS: Final = 1_000
"""Calls for one store in a row, before others are checked again."""
_MOST_BROKEN: Final = 10_000


@dataclass(slots=True)
class _Duty:
    """A recurring call; the failure of one does not affect the others."""

    run: Callable[[], Awaitable[float]]
    """Returns the seconds until the next call."""
    next_at: float = 0.0
    failures: int = 0
    is_under_way: bool = False

    @property
    def is_failing(self) -> bool:
        return self.failures >= _TROUBLED_AFTER


class WindowCloser(Service):
    """Closes batches when they are due: any number of processes may, each at any time.

    Every worker runs one, for the windows that it declares and for all that others have ever used.
    It polls every `windows.look_s`, and earlier if the next batch is due earlier; so a batch is
    closed well within a second of its time. A cluster node that is away, or hangs, delays its own
    batches only.
    """

    restartable = True

    def __init__(self, client: Client, codec: Codec, windows: Iterable[Window] = ()) -> None:
        super().__init__("windows")
        self.closed = 0
        """Batches that this closer has closed."""
        self.looks = 0
        self._client, self._codec = client, codec
        self._windows = {window.record.field: window for window in windows}
        self._declared = frozenset(self._windows)
        self._look_s = client.settings.windows.look_s
        # By window and store. That without a store finds stores, that without both finds windows.
        self._duties = {("", ""): _Duty(self._read_registry)}
        self._wake = asyncio.Event()
        self._is_over = False
        self._broken: dict[tuple[str, bytes], float] = {}
        """Batches that could not be closed, and until when that counts."""

    def trouble(self) -> str | None:
        failing = [name for (name, _), one in list(self._duties.items()) if one.is_failing]
        if failing:
            return f"batches cannot be closed: {', '.join(filter(None, failing)) or 'any'}"
        now = time.monotonic()
        broken = sum(until > now for until in list(self._broken.values()))
        return f"batches cannot be closed: {broken} that others have changed" if broken else None

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._wake.set()

    async def run(self) -> None:
        for duty in self._duties.values():
            duty.is_under_way = False
        for field in self._windows:
            self._follow(field)
        async with asyncio.TaskGroup() as group:
            while not self.stopping and not self._is_over:
                self._wake.clear()
                now = time.monotonic()
                for duty in list(self._duties.values()):
                    if not duty.is_under_way and duty.next_at <= now:
                        duty.is_under_way = True
                        group.create_task(self._run_duty(duty), name="windows")
                await self._rest()

    async def look(self) -> int:
        """Close all that is due now: how many batches. What fails is raised, after the rest."""
        before = self.closed
        errors: list[PenstockError] = []
        try:
            await self._read_registry()
        except PenstockError as error:
            errors.append(error)
        for window in list(self._windows.values()):
            try:
                for store in await window.target.stores():
                    await self._close_at(window, store)
            except TopicMissing:
                continue
            except PenstockError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return self.closed - before

    async def _rest(self) -> None:
        free = [one.next_at for one in self._duties.values() if not one.is_under_way]
        wait_s = min(free, default=time.monotonic() + self._look_s) - time.monotonic()
        try:
            async with asyncio.timeout(max(wait_s, _SHORTEST_S)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _run_duty(self, duty: _Duty) -> None:
        try:
            wait_s = await duty.run()
        except NotOpen:
            self._is_over = True  # the client was closed: other processes close the rest
        except Exception as error:  # noqa: BLE001  one broken window must not stop the others
            duty.failures += 1
            duty.next_at = time.monotonic() + retry_delay_s(duty.failures)
            expected = isinstance(error, PenstockError)
            quiet.warning(
                type(error).__name__,
                "batches were not closed, trying again: %s",
                error,
                exc_info=None if expected else error,
            )
        else:
            duty.failures = 0
            duty.next_at = time.monotonic() + wait_s
        duty.is_under_way = False
        self._wake.set()

    # ---- duties

    async def _read_registry(self) -> float:
        for record in await read_records(self._client):
            field = record.field
            known = self._windows.get(field)
            if field in self._declared or (known is not None and known.record == record):
                continue
            try:
                self._windows[field] = Window.registered(self._client, self._codec, record)
            except Exception as error:  # noqa: BLE001  one odd record must not hide the others
                quiet.warning(field, "window %s cannot be closed here: %s", field, error)
            else:
                self._follow(field)
        return _READ_AGAIN_S

    def _follow(self, field: str) -> None:
        """Close the batches of a window from now on: first find where they are stored."""
        window = self._windows[field]

        async def find_stores() -> float:
            try:
                stores = await window.target.stores()
            except TopicMissing:
                stores = ()  # it was deleted, or never used
            wanted = {
                (field, store.beside): partial(self._close_at, window, store) for store in stores
            }
            for key in [key for key in self._duties if key[0] == field and key[1]]:
                if key not in wanted:
                    del self._duties[key]
            for key, run in wanted.items():
                self._duties.setdefault(key, _Duty(run)).run = run
            return self._look_s

        self._duties[field, ""] = _Duty(find_stores)

    def _warn(self, window: Window, broken: Sequence[bytes]) -> None:
        """Log batches that cannot be closed, each with its reason; the script retries them."""
        if not broken:
            return
        now = time.monotonic()
        if len(self._broken) >= _MOST_BROKEN:
            self._broken = {one: until for one, until in self._broken.items() if until > now}
        for name, why in zip(broken[::2], broken[1::2], strict=True):
            self._broken[window.record.field, name] = now + _BROKEN_FOR_S
            shown = name.decode(errors="replace")
            quiet.warning(
                f"broken {shown}",
                "window %s: the batch of %s cannot be closed: %s",
                window.name,
                shown,
                why.decode(errors="replace"),
            )

    async def _close_at(self, window: Window, store: BatchStore) -> float:
        """Close all that is due in one store: seconds until it is checked again."""
        self.looks += 1
        for _ in range(_MOST_CALLS):
            reply = await window.close_at(store)
            self._warn(window, reply.broken)
            self.closed += len(reply.closed)
            if reply.closed:
                await window.target.got_some()
            if reply.lost_jobs:
                await window.target.note_losses(reply.lost_jobs)
            if reply.status == CloseStatus.MISSING:
                await window.target.mend(store)
                return 0.0
            if reply.status == CloseStatus.FULL:
                quiet.warning(
                    f"full {store.beside}",
                    "window %s: %s is full, batches that are due stay open",
                    window.name,
                    store.beside,
                )
                return self._look_s
            if reply.wait_ms != 0 or self.stopping:
                wait_ms = reply.wait_ms
                return min(wait_ms / 1000, self._look_s) if wait_ms > 0 else self._look_s
            # What cannot be closed was postponed, what is gone was removed: others may be next.
        return 0.0
