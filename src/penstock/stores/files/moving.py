"""Moves and copies between open folders: nothing is replaced, nothing is left half written."""

from __future__ import annotations

import ctypes
import errno
import os
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from enum import Enum, auto

from penstock.errors import StoreError
from penstock.errors.base import shown
from penstock.stores.files.descriptors import Identity, open_regular
from penstock.stores.files.naming import candidates

__all__ = ["PART", "move_between", "part_file", "rename_new", "write_all"]

PART = ".penstock-part-"
"""Prefix of files that are not complete yet."""
_AWAY = ".penstock-away-"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOREPLACE = 1
_UNABLE = frozenset((errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP))

_Renameat2 = Callable[[int, bytes, int, bytes, int], int]


class _Outcome(Enum):
    MOVED = auto()
    TAKEN = auto()
    CHANGED = auto()


def move_between(
    parent: int, last: str, there: int, names: Iterable[str], *, identity: Identity, suffix: str
) -> str | None:
    """Move a file to the first free name; None if it is another file by now."""
    tried = last
    for tried in names:
        if _content(parent, last) != identity.content():
            return None
        match _move(parent, last, there, tried.rpartition("/")[2], identity, suffix):
            case _Outcome.MOVED:
                return tried
            case _Outcome.CHANGED:
                return None
            case _Outcome.TAKEN:
                continue
    raise StoreError(f"every name like {shown(tried)} is taken")


@contextmanager
def part_file(parent: int) -> Generator[tuple[int, str]]:
    """A new file with a name that `Folder.walk` skips; removed unless it is renamed."""
    name = PART + uuid.uuid4().hex
    fd = os.open(name, _NEW, 0o600, dir_fd=parent)
    try:
        yield fd, name
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _move(
    parent: int, last: str, there: int, final: str, identity: Identity, suffix: str
) -> _Outcome:
    if _content(there, final) == identity.content():
        # A link to this very file, by a killed move or by its owner.
        _take_away(parent, last, identity, suffix)
        return _Outcome.MOVED
    try:
        rename_new(parent, last, there, final)
    except FileExistsError:
        return _Outcome.TAKEN
    except FileNotFoundError:
        return _Outcome.CHANGED
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _move_by_copy(parent, last, there, final, identity, suffix)
    if _content(there, final) == identity.content():
        return _Outcome.MOVED
    _put_back(there, final, parent, last, suffix)
    return _Outcome.CHANGED


def _move_by_copy(
    parent: int, last: str, there: int, final: str, identity: Identity, suffix: str
) -> _Outcome:
    with open_regular(last, dir_fd=parent, shown_as=last, max_bytes=identity.size) as source:
        if source.identity.content() != identity.content():
            return _Outcome.CHANGED
        with part_file(there) as (fd, part):
            for block in source.blocks():
                write_all(fd, block)
            if source.changed():
                return _Outcome.CHANGED
            os.utime(fd, ns=(identity.mtime_ns, identity.mtime_ns))
            os.fsync(fd)
            try:
                rename_new(there, part, there, final)
            except FileExistsError:
                return _Outcome.TAKEN
        os.fsync(there)
    _take_away(parent, last, identity, suffix)
    return _Outcome.MOVED


def _take_away(parent: int, last: str, identity: Identity, suffix: str) -> None:
    """Remove this file, but not one that took its place at the last moment."""
    away = _AWAY + uuid.uuid4().hex
    try:
        os.rename(last, away, src_dir_fd=parent, dst_dir_fd=parent)
    except FileNotFoundError:
        return
    if _content(parent, away) == identity.content():
        os.unlink(away, dir_fd=parent)
    else:
        _put_back(parent, away, parent, last, suffix)


def _put_back(there: int, final: str, parent: int, last: str, suffix: str) -> None:
    """Restore a file's name, or a similar one if that is taken."""
    for name in candidates(last, suffix):
        try:
            rename_new(there, final, parent, name)
        except FileExistsError:
            continue
        return


def _content(fd: int, name: str) -> tuple[int, int, int, int] | None:
    try:
        return Identity.of(os.stat(name, dir_fd=fd, follow_symlinks=False)).content()
    except FileNotFoundError:
        return None


def _renameat2() -> _Renameat2 | None:
    """The C library's `renameat2`, which only Linux has."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    path = (ctypes.c_int, ctypes.c_char_p)
    function.argtypes = (*path, *path, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


_rename_noreplace = _renameat2()


def rename_new(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Rename atomically; FileExistsError if the new name is taken, other OSError as from rename.

    Where that is not supported, link and unlink: a process that is killed between them leaves both
    names, and a file that replaces the source between them is lost.
    """
    if _rename_noreplace is not None:
        names = os.fsencode(source), os.fsencode(target)
        if _rename_noreplace(source_dir, names[0], target_dir, names[1], _NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in _UNABLE:
            raise OSError(number, os.strerror(number), source, None, target)
    os.link(source, target, src_dir_fd=source_dir, dst_dir_fd=target_dir, follow_symlinks=False)
    os.unlink(source, dir_fd=source_dir)
