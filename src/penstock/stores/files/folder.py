"""A root folder; no path leads out of it.

Each component of a path is opened from the descriptor of the one before and never through a
symbolic link, so what was checked is what is used. Hard links count as files: Linux lets only users
create one who may read and write the file anyway.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath, PurePosixPath

from penstock.errors import DocumentError, FileMissing, FileRefused, StoreAway
from penstock.errors.base import shown
from penstock.stores.files import naming
from penstock.stores.files.descriptors import Identity, OpenFile, open_regular, symlink, translated
from penstock.stores.files.moving import PART, move_between, part_file, write_all

__all__ = ["Folder", "Identity", "OpenFile"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """A root and the files below it. Thread-safe; every call waits for the disk.

        incoming, processed = Folder.made(root / "incoming"), Folder.made(root / "processed")
        name = incoming.relative("reports/2024.pdf")
        with incoming.open(name, max_bytes=10_000_000) as file:
            digest = file.digest()
            incoming.move(name, processed, name, identity=file.identity, suffix=job_id)

    Paths are POSIX paths below the root. FileRefused and FileMissing are about the file, StoreAway
    and StoreFull about the disk: those may be tried again.
    """

    def __init__(self, root: Path) -> None:
        self._given = Path.cwd() / root
        # A link *to* the root is the operator's own and resolved once.
        self.root = self._given.resolve()
        self._unsettled: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    @classmethod
    def made(cls, root: Path) -> Folder:
        """Make the folder unless it exists, for this user alone."""
        folder = cls(root)
        with translated(str(root)):
            folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def __repr__(self) -> str:
        return f"Folder({str(self.root)!r})"

    def relative(self, path: str | PurePath) -> str:
        """A path below this folder for one that is absolute or relative to it."""
        text = str(path)
        if not text or "\0" in text:
            raise naming.outside(text, "contains a NUL" if text else "is empty")
        pure = PurePosixPath(text)
        if pure.is_absolute():
            for root in (self.root, self._given):
                if pure.is_relative_to(root):  # by components: `root-evil` is not below `root`
                    pure = pure.relative_to(root)
                    break
            else:
                raise naming.outside(text, "is outside its folder")
        relative = "/".join(pure.parts)
        naming.components(relative)
        return relative

    def open(self, relative: str, *, max_bytes: int) -> OpenFile:
        """Open a regular file. Never waits for a FIFO, never follows a link."""
        with self._parent_of(relative) as (parent, last), translated(relative):
            return open_regular(last, dir_fd=parent, shown_as=relative, max_bytes=max_bytes)

    def identity(self, relative: str) -> Identity | None:
        """The file or link of this name; None if there is none."""
        try:
            with self._parent_of(relative) as (parent, last), translated(relative):
                return Identity.of(os.stat(last, dir_fd=parent, follow_symlinks=False))
        except FileMissing:
            return None

    def read(self, name: str, max_bytes: int) -> bytes:
        with self.open(name, max_bytes=max_bytes) as file:
            return b"".join(file.blocks())

    def move(
        self,
        relative: str,
        target: Folder,
        name: str,
        *,
        identity: Identity,
        suffix: str,
        sync: bool = True,
    ) -> str | None:
        """Move the file of this identity; its new name, with a suffix if `name` is taken.

        None if the name is another file now, or a newer version of this one, which then stays. May
        be repeated: a file that is at the target already counts as moved.

        Nothing is replaced, and a file that takes the source's place at the last moment is put
        back. It is at the target for an instant, and stays there if this process is killed in it;
        a process that still has the file open can write to it afterwards.

        To another file system the file is copied; killed before its source is removed, it is at
        both places, and a repetition makes a second copy.
        """
        if "/" in suffix:
            raise naming.outside(suffix, "is not a suffix of a name")
        with ExitStack() as stack:
            try:
                parent, last = stack.enter_context(self._parent_of(relative))
            except FileMissing:
                return self._moved_before(target, name, suffix, identity)
            there, _ = stack.enter_context(target._parent_of(name, make=True))
            stack.enter_context(translated(relative))
            names = naming.candidates(name, suffix)
            moved = move_between(parent, last, there, names, identity=identity, suffix=suffix)
            if moved is None:
                return self._moved_before(target, name, suffix, identity)
            # The new name first: a power failure leaves two names rather than none.
            target._settle(there, name, now=sync)
            self._settle(parent, relative, now=sync)
            return moved

    def write(self, name: str, data: bytes, *, sync: bool = True, lasting: bool = True) -> None:
        """Make or replace a file atomically; readable for this user alone.

        Unless it is `lasting` it may be empty after a crash of the machine.
        """
        with (
            self._parent_of(name, make=True) as (parent, last),
            translated(name),
            part_file(parent) as (fd, part),
        ):
            write_all(fd, data)
            if lasting:
                os.fsync(fd)
            os.rename(part, last, src_dir_fd=parent, dst_dir_fd=parent)
            self._settle(parent, name, now=sync)

    def copy_in(self, source_path: str | Path, name: str, *, max_bytes: int) -> None:
        """Copy a file from anywhere to this name, atomically, replacing what was there.

        `source_path` is trusted and may be a link. DocumentError if it is written to meanwhile.
        """
        with ExitStack() as stack:
            with translated(str(source_path)):
                source = stack.enter_context(
                    open_regular(
                        source_path, dir_fd=None, shown_as=str(source_path), max_bytes=max_bytes
                    )
                )
            parent, last = stack.enter_context(self._parent_of(name, make=True))
            stack.enter_context(translated(name))
            fd, part = stack.enter_context(part_file(parent))
            for block in source.blocks():
                write_all(fd, block)
            if source.changed():
                raise DocumentError(
                    f"file {shown(str(source_path))} was written to while it was copied",
                    "ERR_FILE_CHANGED",
                )
            os.fsync(fd)
            os.rename(part, last, src_dir_fd=parent, dst_dir_fd=parent)
            self._settle(parent, name, now=True)

    def remove(self, name: str) -> None:
        """Remove a file or a link, if it exists."""
        try:
            with self._parent_of(name) as (parent, last), translated(name):
                if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                os.unlink(last, dir_fd=parent)
                self._settle(parent, name, now=True)
        except FileMissing:
            return

    def walk(self, refused: Callable[[FileRefused], None] | None = None) -> Iterator[str]:
        """Every regular file below, unordered, without names that begin with a dot.

        `refused` is called for folders that cannot be read. Names may contain bytes that are not
        text: see `label`.
        """
        folders = [""]
        while folders:
            prefix = folders.pop()
            try:
                with (
                    self._folder(tuple(prefix.split("/")[:-1])) as fd,
                    translated(prefix),
                    os.scandir(fd) as entries,
                ):
                    for entry in entries:
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(f"{prefix}{entry.name}/")
                        elif entry.is_file(follow_symlinks=False):
                            yield prefix + entry.name
            except FileMissing:
                continue  # removed meanwhile
            except FileRefused as error:
                if refused is not None:
                    refused(error)

    @staticmethod
    def label(relative: str) -> str:
        """The document name of this file; see `naming.label`."""
        return naming.label(relative)

    def settle(self) -> None:
        """Make durable all that was moved or written with `sync=False`."""
        with self._lock:
            folders, self._unsettled = self._unsettled, set()
        try:
            while folders:
                parts = folders.pop()
                try:
                    with self._folder(parts) as fd, translated("/".join(parts)):
                        os.fsync(fd)
                except FileMissing:
                    continue
                except BaseException:
                    folders.add(parts)
                    raise
        finally:
            with self._lock:
                self._unsettled |= folders

    def tidy(self, *, older_s: float) -> int:
        """Remove files that killed processes left half written; how many."""
        removed = 0
        prefixes = {""} | {name.rpartition("/")[0] for name in self.walk()}
        for prefix in prefixes:
            parts = tuple(filter(None, prefix.split("/")))
            with self._folder(parts) as fd, translated(prefix), os.scandir(fd) as entries:
                for entry in entries:
                    if not entry.name.startswith(PART):
                        continue
                    written = entry.stat(follow_symlinks=False).st_mtime
                    if time.time() - written >= older_s:
                        os.unlink(entry.name, dir_fd=fd)
                        removed += 1
        return removed

    @contextmanager
    def _parent_of(self, relative: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        *folders, last = naming.components(relative)
        with self._folder(tuple(folders), make=make) as fd:
            yield fd, last

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, make: bool = False) -> Generator[int]:
        try:
            fd = os.open(self.root, _FOLDER)
        except OSError as error:
            # The files of a drive that is not mounted must not count as missing.
            raise StoreAway(f"folder {self.root} cannot be opened: {error.strerror}") from error
        try:
            for part in parts:
                with translated("/".join(parts)):
                    inner = _open_folder(fd, part, make=make)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def _settle(self, fd: int, name: str, *, now: bool) -> None:
        if now:
            os.fsync(fd)
            return
        with self._lock:
            self._unsettled.add(tuple(name.split("/")[:-1]))

    def _moved_before(
        self, target: Folder, name: str, suffix: str, identity: Identity
    ) -> str | None:
        for candidate in naming.candidates(name, suffix):
            present = target.identity(candidate)
            if present is None:
                return None
            if present.content() == identity.content():
                return candidate
        return None


def _open_folder(fd: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    except NotADirectoryError:
        # Linux raises it for a link, too.
        if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
            raise symlink(part) from None
        raise
    try:
        os.mkdir(part, 0o700, dir_fd=fd)
        os.fsync(fd)
    except FileExistsError:
        pass  # another process was first
    return os.open(part, _FOLDER, dir_fd=fd)
