"""Closing the batches that are due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from penstock.coordination.windows.records import read_records
from penstock.coordination.windows.targets import Place
from penstock.coordination.windows.window import Window
from penstock.errors import NotOpen, PenstockError, TopicMissing
from penstock.quiet import RateLimitedLog
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.service import Service
from penstock.topics.topic import Topic

__all__ = ["WindowCloser"]

quiet = RateLimitedLog(logging.getLogger(__name__))

_READ_AGAIN_S: Final = 5.0
"""How often the registry is read: other processes may use windows that we do not know."""
_SHORTEST_S: Final = 0.005
_TROUBLED_AFTER: Final = 3


class WindowCloser(Service):
    """Closes batches when they are due: any number of processes may, each at any time.

    Every worker runs one, for the windows that it declares and for all that others have ever used.
    It looks every `windows.look_s`, and earlier if the next batch is due earlier; so a batch is
    closed well within a second of its time.
    """

    def __init__(self, client: Client, codec: Codec, windows: Iterable[Window] = ()) -> None:
        super().__init__("windows")
        self.closed = 0
        """Batches that this one has closed."""
        self.looks = 0
        self._client, self._codec = client, codec
        self._declared = {window.record.field: window for window in windows}
        self._windows = dict(self._declared)
        self._look_s = client.settings.windows.look_s
        self._read_at = 0.0
        self._failures = 0

    def trouble(self) -> str | None:
        return "batches cannot be closed" if self._failures >= _TROUBLED_AFTER else None

    async def run(self) -> None:
        try:
            while not self.stopping:
                await self._rest(await self._round())
        except NotOpen:
            return  # the client was closed: others will close what is left
        finally:
            for window in self._windows.values():
                if window.record.field not in self._declared and isinstance(window.to, Topic):
                    await window.to.close()

    async def look(self) -> int:
        """Close all that is due now: how many batches. What fails is raised, after the rest."""
        closed, errors, _ = await self._close_due()
        if errors:
            raise errors[0]
        return closed

    async def _round(self) -> float:
        """Close what is due; how long to rest."""
        _, errors, wait_s = await self._close_due()
        if not errors:
            self._failures = 0
            return min(wait_s, self._look_s)
        if any(isinstance(error, NotOpen) for error in errors):
            raise errors[0]
        self._failures += 1
        quiet.warning(
            type(errors[0]).__name__,
            "batches were not closed, trying again: %s",
            errors[0],
        )
        return retry_delay_s(self._failures)

    async def _rest(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(max(wait_s, _SHORTEST_S)):
                await self.stop_asked.wait()
        except TimeoutError:
            return

    async def _close_due(self) -> tuple[int, list[PenstockError], float]:
        """Look at every place: batches closed, what went wrong, seconds until the next is due."""
        errors: list[PenstockError] = []
        try:
            await self._read_registry()
        except PenstockError as error:
            errors.append(error)
        before, waits = self.closed, [self._look_s]
        await asyncio.gather(
            *(self._close_all_of(window, waits, errors) for window in self._windows.values())
        )
        self.looks += 1
        return self.closed - before, errors, min(waits)

    async def _close_all_of(
        self, window: Window, waits: list[float], errors: list[PenstockError]
    ) -> None:
        async def at(place: Place) -> None:
            try:
                waits.append(await self._close_at(window, place))
            except PenstockError as error:
                errors.append(error)

        try:
            places = await window.target.places()
        except TopicMissing:
            return  # it was deleted, or nothing was ever sent to it
        except PenstockError as error:
            errors.append(error)
        else:
            await asyncio.gather(*map(at, places))

    async def _close_at(self, window: Window, place: Place) -> float:
        """Close all that is due at one place: seconds until the next is."""
        while True:
            status, wait_ms, _, closed, packed = await window.close_at(place)
            self.closed += len(closed)
            if packed:
                await window.target.note_losses(packed)
            if status < 0:
                await window.target.mend(place)
                return 0.0
            if status == 0:
                quiet.warning(
                    f"full {place.beside}",
                    "window %s: %s is full, batches that are due stay open",
                    window.name,
                    place.beside,
                )
                return self._look_s
            if wait_ms != 0 or not closed or self.stopping:
                return wait_ms / 1000 if wait_ms > 0 else self._look_s

    async def _read_registry(self) -> None:
        if time.monotonic() < self._read_at:
            return
        for record in await read_records(self._client):
            field = record.field
            if field in self._declared:
                continue
            known = self._windows.get(field)
            if known is None or known.record != record:
                try:
                    self._windows[field] = Window.registered(self._client, self._codec, record)
                except PenstockError as error:
                    quiet.warning(field, "window %s cannot be closed here: %s", field, error)
        self._read_at = time.monotonic() + _READ_AGAIN_S
