"""Data directories and the sockets of their daemons, shown to be this user's alone.

Another user of the machine must not be able to pose as a daemon, or to exchange its files. So a
data directory and the folder of a socket must belong to this user, with no right for others to
write, and files in them are opened without following links.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["NotOurs", "check_file", "check_folder", "check_home", "make_home", "note_socket"]
__all__ += ["open_own", "socket_path"]

# The path of a unix socket must fit into 108 bytes (104 on macOS), with its final NUL.
_LONGEST_PATH = 100
_TEMPORARY = "/tmp"  # noqa: S108  not TMPDIR: every process must find it


class NotOurs(PermissionError):
    """A folder, file or process that another user controls; the text says what to type."""


# ---- data directories


def make_home(home: Path, socket: str | None = None, *, data: str = "") -> None:
    """Make a data directory and its socket's folder, for this user alone, or raise OSError.

    The folder `data` in it is checked, if it is there.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_home(home)
        with suppress(FileNotFoundError):
            check_home(home / data)
        if socket is not None:
            folder = Path(socket).parent
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder != home:
                check_folder(folder)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{error.filename} is not a directory") from None


def check_home(home: Path) -> None:
    """Raise NotOurs unless a data directory is this user's alone. It may be a link to one."""
    facts = home.lstat()
    if stat.S_ISLNK(facts.st_mode):
        if facts.st_uid not in {0, os.geteuid()}:
            raise NotOurs(errno.EPERM, f"{home} is a link of uid {facts.st_uid}: choose another")
        home = home.resolve()
    check_folder(home)


def check_folder(folder: Path, shown_as: str = "") -> None:
    """Raise NotOurs unless this user owns a directory and no other may write to it."""
    facts, shown = folder.lstat(), shlex.quote(shown_as or str(folder))
    if stat.S_ISLNK(facts.st_mode):
        raise NotOurs(errno.EPERM, f"{shown} is a link, and must be a directory: remove it")
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{shown} is not a directory")
    if facts.st_uid != os.geteuid():
        raise NotOurs(
            errno.EPERM,
            f"{shown} belongs to uid {facts.st_uid}, this process runs as uid {os.geteuid()}: "
            f"choose another directory, or type: chown -R {os.geteuid()} {shown}",
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotOurs(errno.EPERM, f"other users may write to {shown}, type: chmod go-w {shown}")


def check_file(path: Path, facts: os.stat_result, *, writes: bool = True) -> None:
    """Raise NotOurs unless a file of a data directory is this user's alone.

    A directory that is closed to others now may have been open to them before.
    """
    us, shown = os.geteuid(), shlex.quote(str(path))
    remove = "remove it, or if you trust its contents, type:"
    if stat.S_ISLNK(facts.st_mode):
        problem = "it is a symbolic link: remove it"
    elif not stat.S_ISREG(facts.st_mode):
        problem = "it is not a regular file: remove it"
    elif facts.st_uid != us:
        problem = f"it belongs to uid {facts.st_uid}: {remove} chown {us} {shown}"
    elif facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"other users may write to it: {remove} chmod go-w {shown}"
    elif writes and facts.st_nlink > 1:
        problem = "it is a hard link: remove it"
    else:
        return
    raise NotOurs(errno.EPERM, problem, str(path))


def open_own(path: Path, flags: int) -> int:
    """Open a file of a data directory, made for this user alone; see `check_file`.

    Not with O_TRUNC: it would be truncated before it is checked.
    """
    try:
        # Without O_NONBLOCK a FIFO in its place would wait for its other end.
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
            check_file(path, path.lstat())
        raise
    try:
        check_file(path, os.fstat(file), writes=flags & os.O_ACCMODE != os.O_RDONLY)
    except NotOurs:
        os.close(file)
        raise
    return file


# ---- sockets


def socket_path(home: Path, name: str) -> str:
    """Path of the socket of a data directory's daemon: the one in use, or else the next one.

    It is in the directory. Where that path is too long it is in XDG_RUNTIME_DIR or below /tmp:
    then its daemon notes it in the directory, as other processes may have another environment.
    """
    path = str(home / name)
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    import hashlib  # noqa: PLC0415  a keeper should start in milliseconds

    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    # Without a note it is that of an earlier version.
    temporary = f"{_TEMPORARY}/penstock-{os.geteuid()}/{digest}.sock"
    for used in (_noted(home, name), temporary):
        if used and _is_there(Path(used)):
            return used
    if (runtime := os.environ.get("XDG_RUNTIME_DIR", "")).startswith("/"):
        path = f"{runtime}/penstock/{digest}.sock"
        with suppress(OSError):
            check_folder(Path(runtime))
            if len(os.fsencode(path)) <= _LONGEST_PATH:
                return path
    return temporary


def note_socket(home: Path, name: str, path: str) -> None:
    """Note where the socket is, for `socket_path` in other processes."""
    if Path(path).name != name:
        note = open_own(_note_of(home, name), os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(note, 0)
            os.write(note, os.fsencode(path))
        finally:
            os.close(note)


def _noted(home: Path, name: str) -> str:
    try:
        note = open_own(_note_of(home, name), os.O_RDONLY)
    except OSError:
        return ""
    try:
        path = os.fsdecode(os.read(note, _LONGEST_PATH + 1))
    finally:
        os.close(note)
    return path if path.startswith("/") and len(os.fsencode(path)) <= _LONGEST_PATH else ""


def _note_of(home: Path, name: str) -> Path:
    return home / f"{name}.path"


def _is_there(path: Path) -> bool:
    """Whether it is a socket in a folder of this user's alone."""
    try:
        check_folder(path.parent)
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
