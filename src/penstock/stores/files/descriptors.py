"""Files opened by descriptor: identity, content, and our errors for those of the system."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

from penstock.errors import FileMissing, FileRefused, StoreAway, StoreError, StoreFull
from penstock.errors.base import shown

if TYPE_CHECKING:
    from penstock.stores.files.folder import Folder

__all__ = ["Identity", "OpenFile", "open_regular", "translated"]

BLOCK = 1024 * 1024
# NONBLOCK: to open a FIFO must not wait for its writer. NOCTTY: a terminal must not become ours.
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_NOT_A_FILE = {
    errno.ENXIO: "a socket or a device",
    errno.EISDIR: "a folder",
    errno.ENOTEMPTY: "a folder",
    errno.EEXIST: "a folder",
}


class Identity(NamedTuple):
    """Identifies a file and its version."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, facts: os.stat_result) -> Identity:
        return cls(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)

    def content(self) -> tuple[int, int, int, int]:
        """Without ctime, which a rename sets."""
        return self[:4]


class OpenFile:
    """An open regular file. Closed at the end of `with`.

    Everything is read by position, so `fd` may be shared with a child process.
    """

    def __init__(self, fd: int, relative: str, facts: os.stat_result, max_bytes: int) -> None:
        self.fd, self.relative, self.max_bytes = fd, relative, max_bytes
        self.identity = Identity.of(facts)
        self._read: int | None = None

    @property
    def size(self) -> int:
        return self.identity.size

    @property
    def mtime_ns(self) -> int:
        return self.identity.mtime_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def blocks(self) -> Iterator[bytes]:
        """The file's content; FileRefused once it is larger than allowed."""
        at = 0
        while True:
            with translated(self.relative):
                block = os.pread(self.fd, min(BLOCK, self.max_bytes + 1 - at), at)
            if not block:
                self._read = at
                return
            at += len(block)
            if at > self.max_bytes:
                raise too_large(self.relative, at, self.max_bytes, "grew while it was read, to")
            yield block

    def digest(self) -> str:
        """SHA-256 of what was read, in hex. Check `changed()` afterwards."""
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()

    def changed(self) -> bool:
        """Whether the file was written to since it was opened.

        A file whose size is not what was read (as under `/proc`) counts as changed; so does one
        with other permissions or links.
        """
        with translated(self.relative):
            now = Identity.of(os.fstat(self.fd))
        return now != self.identity or self._read not in (None, self.size)

    def still_at(self, folder: Folder, relative: str) -> bool:
        """Whether this name is still this very file."""
        present = folder.identity(relative)
        return present is not None and present[:2] == self.identity[:2]


def open_regular(
    path: str | os.PathLike[str], *, dir_fd: int | None, shown_as: str, max_bytes: int
) -> OpenFile:
    """Open a regular file for reading. With `dir_fd`, `path` must not be a symbolic link."""
    confined = dir_fd is not None
    # Checked before it is opened, because opening alone can trigger a device, and again by
    # descriptor, because only that is what was opened.
    before = os.stat(path, dir_fd=dir_fd, follow_symlinks=not confined)
    _check_kind(before.st_mode, shown_as)
    fd = os.open(path, _READING | (os.O_NOFOLLOW if confined else 0), dir_fd=dir_fd)
    try:
        facts = os.fstat(fd)
        _check_kind(facts.st_mode, shown_as)
        _check_size(facts.st_size, max_bytes, shown_as)
    except BaseException:
        os.close(fd)
        raise
    return OpenFile(fd, shown_as, facts, max_bytes)


@contextmanager
def translated(relative: str) -> Generator[None]:
    """Raise the system's errors about a path as ours."""
    try:
        yield
    except OSError as error:
        raise _translation(error, relative) from error


def _translation(error: OSError, relative: str) -> StoreError | FileRefused | FileMissing:
    name, number = shown(relative), error.errno
    if number in (errno.ENOENT, errno.ENOTDIR):
        return FileMissing(
            f"there is no file {name}",
            "ERR_FILE_NOT_FOUND",
            ("It was moved or removed after it was submitted: put it back and submit it again",),
        )
    if number == errno.ELOOP:
        return symlink(relative)
    if number in (errno.EACCES, errno.EPERM):
        return FileRefused(
            f"file {name} may not be read or moved: {error.strerror}",
            "ERR_FILE_PERMISSION",
            (f"Give the user with id {os.geteuid()} the right to read and move it",),
        )
    if number in _NOT_A_FILE:
        return not_a_file(relative, _NOT_A_FILE[number])
    if number in _FULL:
        return StoreFull(f"no room for file {name}: {error.strerror}")
    # Too many open files, a lost network drive, a failing disk: none of it is about the file, so
    # none of it may refuse the file for good.
    return StoreAway(f"file {name} cannot be reached now: {error.strerror}")


def _check_kind(mode: int, shown_as: str) -> None:
    if stat.S_ISLNK(mode):
        raise symlink(shown_as)
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        raise not_a_file(shown_as, kinds.get(stat.S_IFMT(mode), "a device"))


def _check_size(size: int, max_bytes: int, shown_as: str) -> None:
    if size > max_bytes:
        raise too_large(shown_as, size, max_bytes, "has")


def not_a_file(relative: str, what: str) -> FileRefused:
    return FileRefused(f"{shown(relative)} is not a regular file but {what}", "ERR_NOT_A_FILE")


def symlink(relative: str) -> FileRefused:
    return FileRefused(
        f"{shown(relative)} is or passes through a symbolic link",
        "ERR_SYMLINK",
        ("Put the file itself into the folder",),
    )


def too_large(relative: str, size: int, most: int, has: str) -> FileRefused:
    return FileRefused(
        f"file {shown(relative)} {has} {size:,} bytes; {most:,} are allowed",
        "ERR_FILE_TOO_LARGE",
        ("Split the file, or allow larger ones in the configuration",),
    )
