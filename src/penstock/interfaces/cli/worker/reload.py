"""`penstock worker --reload`: restarts a worker when its code has changed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.clock import SYSTEM_CLOCK
from penstock.runtime import Service
from penstock.runtime.signals import exit_code_of
from penstock.runtime.waiting import happens_within

__all__ = ["Reloading", "places_of"]

logger = logging.getLogger(__name__)

POLL_S: Final = 1.0
_LONGEST_SHARE = 0.1
"""Maximum share of the time that is spent reading file times."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

Stamps = dict[str, tuple[int, int]]
"""Modification time and size of each file."""


class Reloading(Service):
    """Runs a worker as a child process, and restarts it when a file has changed.

    The old worker is asked to stop, and killed after `stop_s`. One that exits on its own, for
    example because the code cannot be imported, is started again after the next change. The child
    has its own session, so that Ctrl-C does not reach it; its standard input is a pipe that closes
    when this process exits.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        places: Sequence[Path],
        *,
        stop_s: float,
        poll_s: float = POLL_S,
    ) -> None:
        super().__init__("reload")
        self._command, self._environ, self._places = command, environ, places
        self._stop_s, self._poll_s = stop_s, poll_s
        self.exit_code = 0
        """Exit code of the last worker, after it was asked to stop."""

    async def run(self) -> None:
        seen = await self._look()
        while not self.stopping:
            process = await self._start()
            try:
                found = await self._changed(seen, process)
                self.exit_code = await self._end(process)
            except asyncio.CancelledError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise
            # Changes made while the old worker stopped are read by the new one.
            seen = found if self.stopping else await self._look()

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, env=self._environ, start_new_session=True
        )

    async def _changed(self, seen: Stamps, process: Process) -> Stamps:
        """Wait for a change, or for the end."""
        warned = False
        wait_s = self._poll_s
        loop = asyncio.get_running_loop()
        while not await happens_within(self.stop_asked, wait_s, SYSTEM_CLOCK):
            if process.returncode is not None and not warned:
                logger.warning(
                    "the worker ended with code %d; the next change starts it again",
                    process.returncode,
                )
                warned = True
            began = loop.time()
            now = await self._look()
            wait_s = max(self._poll_s, (loop.time() - began) / _LONGEST_SHARE)
            if now != seen and not self.stopping:
                logger.info("%s, restarting the worker", _described(seen, now))
                return now
        return seen

    async def _end(self, process: Process) -> int:
        if process.returncode is not None:
            return 0 if self.stopping else process.returncode
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self._stop_s):
                code = await process.wait()
        except TimeoutError:
            logger.warning("the worker did not end within %g s and is killed", self._stop_s)
            process.kill()
            code = await process.wait()
        if code == -signal.SIGTERM:  # before it had installed its signal handler
            return 0
        return code if code >= 0 else exit_code_of(-code)

    async def _look(self) -> Stamps:
        return await asyncio.to_thread(self._stamps)

    def _stamps(self) -> Stamps:
        found: Stamps = {}
        for path in self._files():
            with suppress(OSError):  # it is gone again
                status = path.stat()
                found[str(path)] = (status.st_mtime_ns, status.st_size)
        return found

    def _files(self) -> Iterator[Path]:
        for place in self._places:
            if place.is_file():
                yield place
                continue
            for folder, folders, files in os.walk(place):
                if self.stopping:
                    return
                here = Path(folder)
                folders[:] = [name for name in folders if _is_watched(here / name)]
                yield from (here / name for name in files if name.endswith(".py"))


def places_of(module_name: str) -> list[Path]:
    """Folders to watch: the working directory, and the module's package if it is elsewhere.

    The package is located without importing it.
    """
    here = Path.cwd()
    places = [here]
    top = module_name.partition(".")[0]
    spec = None
    with suppress(ImportError, ValueError):
        spec = find_spec(top)
    if spec is not None:
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        own = folders or ([Path(spec.origin)] if spec.has_location and spec.origin else [])
        places += [place for place in own if not place.resolve().is_relative_to(here.resolve())]
    return places


def _is_watched(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in _SKIPPED:
        return False
    return not (folder / "pyvenv.cfg").exists()  # a virtual environment


def _described(before: Stamps, now: Stamps) -> str:
    """`shop.py changed`, `shop.py and 2 others changed`."""
    changed = sorted(path for path in before | now if before.get(path) != now.get(path))
    first, others = Path(changed[0]), len(changed) - 1
    with suppress(ValueError):
        first = first.relative_to(Path.cwd())
    more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
    return f"{first}{more} changed"
