"""Watching the `incoming/` folders of the RAGs: complete files are submitted."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.errors.documents import ConfigurationWrong, DocumentRefused, RagMissing
from penstock.pipelines.documents.config.models import DocumentsConfig, RagConfig
from penstock.pipelines.documents.submit.submitter import SUBMITTED
from penstock.pipelines.documents.watch.fs_events import FileSystemEvents
from penstock.pipelines.documents.watch.incoming import IncomingFolder, ScanResult
from penstock.runtime.logs import cleaned
from penstock.runtime.service import Service
from penstock.runtime.waiting import happens_within, retry_delay_s
from penstock.settings import DocumentSettings
from penstock.throttled_log import RateLimitedLog

__all__ = ["Watcher"]

logger = logging.getLogger(__name__)

BATCH: Final = 500
"""Maximum number of names of one submission."""
REST: Final = 2
"""Pause after a scan, as a multiple of its duration."""
MOST_WARNED: Final = 1_000
"""Maximum number of warnings about kinds of files, over all RAGs."""
MOST_GONE: Final = 100_000
"""Maximum number of removed paths that are kept between two scans."""

T = TypeVar("T")


class Watcher(Service):
    """Submits files of `incoming/` folders when they are complete.

        Watcher(settings.documents, configuration=current, submit=service.submit_names)

    - It scans after file system events, and every `rescan_s` in any case. A file is complete when
      it has not changed for `settle_ms`. Links, and names that begin with a dot or end like those
      of unfinished downloads, are skipped.
    - `submit(rag_id, names)` gets names relative to `incoming/`, at most `BATCH` of them. It must
      be safe to repeat: files that still exist at a rescan are submitted again, by every watcher
      of every machine. If it fails, the files are submitted again later. A `DocumentRefused` for
      several names is narrowed down, so that one bad name holds up no others.
    - `configuration()` is called in a thread before every scan; it should be quick when nothing
      has changed. Only RAGs with `sources.watch` are scanned.
    """

    def __init__(
        self,
        settings: DocumentSettings,
        *,
        configuration: Callable[[], DocumentsConfig],
        submit: Callable[[str, list[str]], Awaitable[object]],
        clock: Clock = SYSTEM_CLOCK,
        name: str = "watcher",
    ) -> None:
        super().__init__(name)
        self.looks = 0
        """Number of scans."""
        self.submitted = 0
        """Names that were submitted, repetitions included."""
        self._configuration, self._submit, self._clock = configuration, submit, clock
        self._settle_s = settings.settle_ms / 1_000
        self._rescan_s = settings.rescan_s
        self._quiet = RateLimitedLog(logger, clock=clock)
        self._wake = asyncio.Event()
        self._halt = threading.Event()
        self._folders: dict[str, IncomingFolder] = {}
        self._gone: set[str] = set()
        self._warned: set[tuple[str, str]] = set()
        self._looked_s = 0.0
        self._failures = 0
        self._reason = ""
        self._events: FileSystemEvents | None = None
        self._listened: frozenset[tuple[Path, int]] = frozenset()

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._halt.set()
        self._wake.set()

    def trouble(self) -> str | None:
        return f"{self.name}: {self._reason}" if self._failures else None

    async def run(self) -> None:
        files = ThreadPoolExecutor(1, thread_name_prefix="penstock incoming")
        try:
            await self._watch(files)
            if self._events is not None:
                await self._events.close()
        finally:
            # Leave no thread, also if cancelled; a scan under way is broken off.
            self._halt.set()
            if self._events is not None:
                self._events.join()
            files.shutdown(wait=True)

    async def _watch(self, files: ThreadPoolExecutor) -> None:
        rescan_at_s = self._clock.monotonic()
        while not self.stopping:
            self._wake.clear()
            now_s = self._clock.monotonic()
            again = now_s >= rescan_at_s
            if again:
                rescan_at_s = now_s + self._rescan_s
            due_s = await self._round(files, again=again)
            # In a folder of 100,000 files that others empty, events come faster than scans.
            await happens_within(self.stop_asked, REST * self._looked_s, self._clock)
            until_s = min(rescan_at_s, due_s) if due_s is not None else rescan_at_s
            if self._failures:
                # Events must not shorten this, or every new file would cost a failure.
                delay_s = retry_delay_s(self._failures, max(self._rescan_s, 1.0))
                await happens_within(self.stop_asked, delay_s, self._clock)
                continue
            await happens_within(self._wake, until_s - self._clock.monotonic(), self._clock)

    async def _round(self, files: ThreadPoolExecutor, *, again: bool) -> float | None:
        """Scan, and submit complete files; when to scan next, if known."""
        try:
            config = await self._in(files, self._configuration)
            listened = await self._in(files, lambda: self._prepare(config))
            await self._listen(listened)
            gone, self._gone = self._gone, set()
            now_s = self._clock.monotonic()
            scans = await self._in(files, lambda: self._look(gone, now_s, again=again))
        except Exception as error:  # noqa: BLE001  one bad round must not end the watcher
            self._note_failure(error, "cannot scan for files")
            return None
        self.looks += 1
        self._looked_s = self._clock.monotonic() - now_s
        failed = False
        for rag_id, scan in scans.items():
            self._warn(rag_id, scan)
            failed |= not await self._submit_all(rag_id, scan.whole)
        if not failed:
            self._failures = 0
        return min((s.due_s for s in scans.values() if s.due_s is not None), default=None)

    async def _in(self, files: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(files, call)

    def _prepare(self, config: DocumentsConfig) -> frozenset[tuple[Path, int]]:
        """Have an `IncomingFolder` for every watched RAG; the folders to listen to, with inodes.

        Runs in the thread. A folder that was replaced has another inode.
        """
        watched = {rag.rag_id: rag for rag in config.rags.values() if rag.sources.watch}
        for gone in self._folders.keys() - watched.keys():
            del self._folders[gone]
        places: list[Path] = [config.rags_dir]
        for rag_id, rag in watched.items():
            folder = self._folder(config, rag)
            known = self._folders.get(rag_id)
            extensions = frozenset(rag.sources.extensions)
            if known is None or (known.folder, known.extensions) != (folder, extensions):
                self._folders[rag_id] = IncomingFolder(folder, extensions, settle_s=self._settle_s)
            places.append(folder)
        return frozenset(_identified(places))

    def _folder(self, config: DocumentsConfig, rag: RagConfig) -> Path:
        folder = config.folder_of(rag) / "incoming"
        # Nothing is created without the root, which may be an unmounted disk.
        if config.sources_root.is_dir():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self._quiet.warning(f"folder {rag.rag_id}", "cannot make %s: %s", folder, error)
        return folder

    async def _listen(self, places: frozenset[tuple[Path, int]]) -> None:
        if places == self._listened:
            return
        if self._events is not None:
            await self._events.close()
            self._events = None
        if places and not self.stopping:
            folders = frozenset(folder for folder, _ in places)
            self._events = FileSystemEvents(
                folders, self._woken, ignored=SUBMITTED, quiet=self._quiet
            )
        self._listened = places

    def _woken(self, gone: frozenset[str]) -> None:
        if any(str(folder) in gone for folder, _ in self._listened):
            # It was removed, and its successor may have the same inode.
            self._listened = frozenset()
        if len(self._gone) < MOST_GONE:  # a rescan finds the others
            self._gone |= gone
        self._wake.set()

    def _look(self, gone: set[str], now_s: float, *, again: bool) -> dict[str, ScanResult]:
        scans: dict[str, ScanResult] = {}
        for rag_id, incoming in self._folders.items():
            within = f"{incoming.folder}/"
            incoming.gone(path.removeprefix(within) for path in gone if path.startswith(within))
            try:
                scans[rag_id] = incoming.look(now_s, again=again, stop=self._halt.is_set)
            except OSError as error:
                self._quiet.warning(
                    f"look {rag_id}", "cannot read %s: %s", incoming.folder, error.strerror
                )
        return scans

    async def _submit_all(self, rag_id: str, names: list[str]) -> bool:
        """Submit in batches; False if the server failed."""
        for start in range(0, len(names), BATCH):
            if self.stopping:
                break
            if not await self._submit_some(rag_id, names[start : start + BATCH]):
                return False
        return True

    async def _submit_some(self, rag_id: str, names: list[str]) -> bool:
        try:
            await self._submit(rag_id, names)
        except (RagMissing, ConfigurationWrong) as error:
            # Its file has just changed: the next scan uses it.
            self._quiet.warning(f"rag {rag_id}", "cannot submit files of %s: %s", rag_id, error)
            return True
        except DocumentRefused as error:
            if len(names) > 1:
                for name in names:
                    if self.stopping or not await self._submit_some(rag_id, [name]):
                        return False
                return True
            self._quiet.warning(
                f"refused {rag_id}", "%s: %s is left where it is: %s", rag_id, names[0], error
            )
            self._folders[rag_id].refused(names[0])
        except Exception as error:  # noqa: BLE001  the server may be away; nothing is forgotten
            self._note_failure(error, f"cannot submit files of {rag_id}, trying again")
            return False
        else:
            self.submitted += len(names)
            self._folders[rag_id].submitted(names)
        return True

    def _warn(self, rag_id: str, scan: ScanResult) -> None:
        for reason, name in scan.left.items():
            if (rag_id, reason) in self._warned or len(self._warned) >= MOST_WARNED:
                continue
            self._warned.add((rag_id, reason))
            logger.warning(
                "%s: files with %s are left in incoming/, such as %s; it takes %s",
                rag_id,
                reason,
                cleaned(name),
                ", ".join(sorted(self._folders[rag_id].extensions)),
            )

    def _note_failure(self, error: Exception, what: str) -> None:
        self._failures += 1
        self._reason = cleaned(f"{what}: {type(error).__name__}: {error}")
        expected = isinstance(error, (PenstockError, OSError))  # a bug needs its trace
        self._quiet.warning(
            type(error).__name__,
            "%s: %s",
            self.name,
            self._reason,
            exc_info=None if expected else error,
        )


def _identified(places: list[Path]) -> Iterator[tuple[Path, int]]:
    for place in places:
        with suppress(OSError):
            yield place, place.stat().st_ino
