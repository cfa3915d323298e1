"""The folder `incoming/` of one RAG: its files, and which of them are complete."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["MOST_KNOWN", "IncomingFolder", "ScanResult"]

UNFINISHED: Final = ("~", ".tmp", ".part", ".crdownload")
"""Suffixes of files that programs rename when they are complete."""
MOST_KNOWN: Final = 200_000
"""Maximum number of tracked files of a folder; others follow as these are removed."""
DEEPEST: Final = 32

Facts = tuple[int, int, int]
"""Size, time of the last change, inode."""


@dataclass(slots=True)
class _Known:
    facts: Facts
    since_s: float
    """Time of its last change."""
    submitted: bool = False
    refused: bool = False


@dataclass(slots=True)
class ScanResult:
    """Result of one scan."""

    whole: list[str] = field(default_factory=list[str])
    """Names to submit now, longest known first."""
    due_s: float | None = None
    """When the next incomplete file may be complete; None if all are."""
    left: dict[str, str] = field(default_factory=dict[str, str])
    """An example of a skipped file for each reason."""


class IncomingFolder:
    """Tracks files between scans, to distinguish growing from complete ones; not thread-safe."""

    def __init__(
        self, folder: Path, extensions: Iterable[str], *, settle_s: float, most: int = MOST_KNOWN
    ) -> None:
        self.folder, self.extensions = folder, frozenset(extensions)
        self._settle_s, self._most = settle_s, most
        self._known: dict[str, _Known] = {}

    def look(
        self, now_s: float, *, again: bool, stop: Callable[[], bool] = lambda: False
    ) -> ScanResult:
        """Scan the folder. `again` includes files that were submitted and still exist.

        OSError if the folder cannot be read. Removed files are forgotten.
        """
        sight = ScanResult()
        seen: dict[str, _Known] = {}
        for name, facts in self._files(sight, stop):
            known = self._known.get(name)
            if known is None or known.facts != facts:
                if len(seen) >= self._most:
                    continue
                known = _Known(facts, now_s)
            seen[name] = known
            due_s = known.since_s + self._settle_s
            if known.refused or (known.submitted and not again):
                continue
            if due_s <= now_s:
                sight.whole.append(name)
            else:
                sight.due_s = min(due_s, sight.due_s or due_s)
        if not stop():
            self._known = seen
        return sight

    def submitted(self, names: Iterable[str]) -> None:
        for name in names:
            if (known := self._known.get(name)) is not None:
                known.submitted = True

    def refused(self, name: str) -> None:
        """Skip a file until it changes."""
        if (known := self._known.get(name)) is not None:
            known.refused = True

    def gone(self, names: Iterable[str]) -> None:
        """Forget removed files: at the same path they are new, even with the same facts."""
        for name in names:
            self._known.pop(name, None)

    def _files(self, sight: ScanResult, stop: Callable[[], bool]) -> Iterator[tuple[str, Facts]]:
        folders: list[tuple[str, int]] = [("", 0)]
        while folders and not stop():
            within, depth = folders.pop()
            entries = self._entries(within)
            for name, facts in entries.items():
                path = f"{within}/{name}" if within else name
                if stat.S_ISDIR(facts.st_mode):
                    if depth < DEEPEST:
                        folders.append((path, depth + 1))
                elif not stat.S_ISREG(facts.st_mode) or not self._is_taken(path, sight):
                    continue
                # A browser makes an empty file of the final name beside the one that it writes.
                elif facts.st_size or not any(f"{name}{end}" in entries for end in UNFINISHED):
                    yield path, (facts.st_size, facts.st_mtime_ns, facts.st_ino)

    def _entries(self, within: str) -> dict[str, os.stat_result]:
        """Entries of a folder without hidden ones; links are not followed."""
        found: dict[str, os.stat_result] = {}
        try:
            with os.scandir(self.folder / within) as listing:
                for entry in listing:
                    if not entry.name.startswith("."):
                        with suppress(OSError):  # it has gone since
                            found[entry.name] = entry.stat(follow_symlinks=False)
        except OSError:
            if not within:
                raise
            # A subfolder was removed, or must not be read.
        return dict(sorted(found.items()))

    def _is_taken(self, path: str, sight: ScanResult) -> bool:
        name = path.rpartition("/")[2]
        if name.lower().endswith(UNFINISHED):
            return False
        extension = os.path.splitext(name)[1].lower()  # noqa: PTH122  a path for each costs more
        if extension not in self.extensions:
            sight.left.setdefault(extension or "no extension", path)
            return False
        if not _is_text(path):
            sight.left.setdefault("a name that is not UTF-8", path)
            return False
        return True


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
