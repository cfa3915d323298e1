"""Parts of a document that were read, kept so that an interrupted job need not read them again.

Each job has a folder, whose name the caller derives from the content of the file and how it is
read. Its files can be lost at any time.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.pipelines.documents.parsing.sandbox.protocol import Read

__all__ = ["Spool", "discard", "purge"]

logger = logging.getLogger(__name__)

_parts = msgspec.msgpack.Decoder(Read)


class Spool:
    """The folder of one job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def kept(self, index: int) -> Read | None:
        """A part that was read earlier; None if it is missing or incomplete."""
        try:
            return _parts.decode(self._path(index).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("a kept part cannot be used and is read again: %s", error)
            return None

    def keep(self, index: int, part: Read) -> None:
        """Keep a part, unless the disk fails."""
        path = self._path(index)
        beside = path.with_suffix(f".{os.getpid()}.new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside.write_bytes(msgspec.msgpack.encode(part))
            beside.replace(path)
        except OSError as error:
            logger.warning("a part of a document is not kept: %s", error)
            with suppress(OSError):
                beside.unlink()

    def _path(self, index: int) -> Path:
        return self._folder / f"part-{index:06d}.msgpack"


def discard(folder: Path) -> None:
    """Remove what was kept for a job, if anything."""
    shutil.rmtree(folder, ignore_errors=True)


def purge(work_dir: Path, older_than_s: float) -> int:
    """Remove the folders of jobs that have kept nothing new for so long; how many."""
    before = time.time() - older_than_s
    removed = 0
    try:
        folders = list(os.scandir(work_dir))
    except (FileNotFoundError, NotADirectoryError):
        return 0
    for folder in folders:
        try:
            old = folder.is_dir(follow_symlinks=False) and folder.stat().st_mtime < before
        except FileNotFoundError:  # another process was faster
            continue
        if old:
            discard(Path(folder))
            removed += 1
    return removed
