"""Where the unix socket of a data directory is: a path every process can work out."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

__all__ = ["make_home", "socket_path"]

# A unix socket's path must fit into 108 bytes (104 on macOS), its end included.
_LONGEST = 100


def socket_path(home: Path, name: str) -> str:
    """In the data directory, or, where that path is too long for a socket, in a short place.

    That place hangs on the data directory alone, not on TMPDIR: every process must find it.
    """
    path = str(home / name)
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return f"/tmp/penstock-{os.getuid()}/{digest}.sock"  # noqa: S108


def make_home(home: Path, path: str) -> None:
    """Make a data directory and the folder of its socket, for this user alone; OSError if not."""
    folder = Path(path).parent
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{error.filename} is no directory") from None
    facts = folder.lstat()
    if folder != home and not (
        stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o77
    ):
        # It stands where everybody may write: somebody else's server must not pass for ours.
        raise PermissionError(errno.EPERM, f"{folder} must be a directory of this user alone")
