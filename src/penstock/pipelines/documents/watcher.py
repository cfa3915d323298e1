"""Takes what is put into the `incoming/` folders of the RAGs."""

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
from penstock.pipelines.documents.configuration import DocumentsConfig, RagConfig
from penstock.pipelines.documents.incoming import Incoming, Sight
from penstock.pipelines.documents.signs import Signs
from penstock.quiet import RateLimitedLog
from penstock.runtime.backoff import retry_delay_s
from penstock.runtime.logs import cleaned
from penstock.runtime.service import Service
from penstock.runtime.waiting import happens_within
from penstock.settings import DocumentSettings

__all__ = ["Watcher"]

logger = logging.getLogger(__name__)

BATCH: Final = 500
"""Most names of one submission."""
REST: Final = 2
"""Times as long as it has looked, a watcher looks away."""
MOST_WARNED: Final = 1_000
"""Kinds of files that are warned of, over all RAGs."""
MOST_GONE: Final = 100_000
"""Paths that were taken away, remembered from one look to the next."""

T = TypeVar("T")


class Watcher(Service):
    """Submits files of `incoming/` folders when they are whole.

        Watcher(settings.documents, configuration=current, submit=service.submit_names)

    - It looks when the file system tells of something, and every `rescan_s` in any case. A file is
      whole when it has stayed the same for `settle_ms`. Names that begin with a dot or end like
      those of unfinished downloads, and links, are left alone.
    - `submit(rag_id, names)` gets names relative to `incoming/`, at most `BATCH` of them. It must
      be safe to repeat: what is still there at a rescan is submitted again, by every watcher of
      every machine. If it fails, the files are submitted again later. A `DocumentRefused` for
      several names is narrowed down, so that one bad name holds up no others.
    - `configuration()` is called in a thread before every look; it should be quick when nothing
      has changed. Only RAGs with `sources.watch` are looked at.
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
        """How often the folders have been looked through."""
        self.submitted = 0
        """Names that were submitted, repetitions included."""
        self._configuration, self._submit, self._clock = configuration, submit, clock
        self._settle_s = settings.settle_ms / 1_000
        self._rescan_s = settings.rescan_s
        self._quiet = RateLimitedLog(logger, clock=clock)
        self._wake = asyncio.Event()
        self._halt = threading.Event()
        self._folders: dict[str, Incoming] = {}
        self._gone: set[str] = set()
        self._warned: set[tuple[str, str]] = set()
        self._looked_s = 0.0
        self._failures = 0
        self._reason = ""
        self._signs: Signs | None = None
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
            if self._signs is not None:
                await self._signs.close()
        finally:
            # Cancelled or not, no thread is left; the one that looks is asked to break off.
            self._halt.set()
            if self._signs is not None:
                self._signs.join()
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
            # In a folder of 100,000 files that others empty, signs come faster than looks.
            await happens_within(self.stop_asked, REST * self._looked_s, self._clock)
            until_s = min(rescan_at_s, due_s) if due_s is not None else rescan_at_s
            if self._failures:
                # A sign must not shorten this, or every new file would cost a failure.
                delay_s = retry_delay_s(self._failures, max(self._rescan_s, 1.0))
                await happens_within(self.stop_asked, delay_s, self._clock)
                continue
            await happens_within(self._wake, until_s - self._clock.monotonic(), self._clock)

    async def _round(self, files: ThreadPoolExecutor, *, again: bool) -> float | None:
        """Look, and submit what is whole; when to look next, if that is known."""
        try:
            config = await self._in(files, self._configuration)
            listened = await self._in(files, lambda: self._prepare(config))
            await self._listen(listened)
            gone, self._gone = self._gone, set()
            now_s = self._clock.monotonic()
            sights = await self._in(files, lambda: self._look(gone, now_s, again=again))
        except Exception as error:  # noqa: BLE001  one bad round must not end the watcher
            self._note_failure(error, "cannot look for files")
            return None
        self.looks += 1
        self._looked_s = self._clock.monotonic() - now_s
        failed = False
        for rag_id, sight in sights.items():
            self._warn(rag_id, sight)
            failed |= not await self._submit_all(rag_id, sight.whole)
        if not failed:
            self._failures = 0
        return min((s.due_s for s in sights.values() if s.due_s is not None), default=None)

    async def _in(self, files: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(files, call)

    def _prepare(self, config: DocumentsConfig) -> frozenset[tuple[Path, int]]:
        """Have an `Incoming` for every RAG that is watched; the folders to listen to.

        In the thread. With each folder goes its inode: one that was made again is another one.
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
                self._folders[rag_id] = Incoming(folder, extensions, settle_s=self._settle_s)
            places.append(folder)
        return frozenset(_identified(places))

    def _folder(self, config: DocumentsConfig, rag: RagConfig) -> Path:
        folder = config.folder_of(rag) / "incoming"
        # Without the root nothing is made: it may be a disk that is not there at the moment.
        if config.sources_root.is_dir():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self._quiet.warning(f"folder {rag.rag_id}", "cannot make %s: %s", folder, error)
        return folder

    async def _listen(self, places: frozenset[tuple[Path, int]]) -> None:
        if places == self._listened:
            return
        if self._signs is not None:
            await self._signs.close()
            self._signs = None
        if places and not self.stopping:
            folders = frozenset(folder for folder, _ in places)
            self._signs = Signs(folders, self._woken, quiet=self._quiet)
        self._listened = places

    def _woken(self, gone: frozenset[str]) -> None:
        if any(str(folder) in gone for folder, _ in self._listened):
            # It has gone, and what is made in its place may well have its inode.
            self._listened = frozenset()
        if len(self._gone) < MOST_GONE:  # a rescan shows what is left out
            self._gone |= gone
        self._wake.set()

    def _look(self, gone: set[str], now_s: float, *, again: bool) -> dict[str, Sight]:
        sights: dict[str, Sight] = {}
        for rag_id, incoming in self._folders.items():
            within = f"{incoming.folder}/"
            incoming.gone(path.removeprefix(within) for path in gone if path.startswith(within))
            try:
                sights[rag_id] = incoming.look(now_s, again=again, stop=self._halt.is_set)
            except OSError as error:
                self._quiet.warning(
                    f"look {rag_id}", "cannot look into %s: %s", incoming.folder, error.strerror
                )
        return sights

    async def _submit_all(self, rag_id: str, names: list[str]) -> bool:
        """Submit in batches; whether all went well, as far as the server is concerned."""
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
            # Its file has changed this moment: the next look knows.
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

    def _warn(self, rag_id: str, sight: Sight) -> None:
        for reason, name in sight.left.items():
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

    def _note_failure(self, error: Exception, words: str) -> None:
        self._failures += 1
        self._reason = cleaned(f"{words}: {type(error).__name__}: {error}")
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
