"""Give a file another name without ever taking one that is in use."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

__all__ = ["rename_new"]

_NOREPLACE = 1
_UNABLE = frozenset((errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP))

_Renameat2 = Callable[[int, bytes, int, bytes, int], int]


def _renameat2() -> _Renameat2 | None:
    """The C library's `renameat2`; other systems than Linux have none."""
    try:
        found = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    found.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    found.restype = ctypes.c_int
    return found


_rename_noreplace = _renameat2()


def rename_new(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Rename in one step; FileExistsError if the new name is taken, other OSError as from rename.

    Where the system or the file system cannot do that, link and unlink: a process that is killed
    between them leaves the file under both names, and a file that replaces the source between
    them is lost with the old name.
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
