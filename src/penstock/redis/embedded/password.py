"""The password of an embedded server that listens on a TCP port, in a file of the data directory.

Made once, at random. Every connection of ours sends it if there is one: a server without a password
accepts any.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from penstock.processes.home import open_own

__all__ = ["FILE", "password_of", "read_password"]

FILE = "password"
_BYTES = 24
_LONGEST = 256
_WELL_FORMED = re.compile(rb"[A-Za-z0-9_-]{22,128}")
"""No character that a file of settings would need quotes for."""


def read_password(home: Path) -> str | None:
    """The password of a data directory, None if there is none; OSError if it cannot be used."""
    try:
        file = open_own(home / FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        text = os.read(file, _LONGEST).rstrip(b"\n")
        mode = os.fstat(file).st_mode
    finally:
        os.close(file)
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        why = f"other users may read it, type: chmod 600 {shlex.quote(str(home / FILE))}"
        raise OSError(errno.EPERM, why, str(home / FILE))
    if not _WELL_FORMED.fullmatch(text):
        why = "expected one line of 22 to 128 letters, digits, _ and -: remove it to get a new one"
        raise OSError(errno.EINVAL, why, str(home / FILE))
    return text.decode()


def password_of(home: Path) -> str:
    """The password of a data directory, made if there is none."""
    if known := read_password(home):
        return known
    draft = home / f"{FILE}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    file = open_own(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(file, os.urandom(_BYTES).hex().encode() + b"\n")
        # Whole or not at all, and only the first of several processes.
        with suppress(FileExistsError):
            os.link(draft, home / FILE)
    finally:
        os.close(file)
        draft.unlink()
    return read_password(home) or password_of(home)
