"""What SQLite's errors mean to callers."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from penstock.errors import StoreAway, StoreError, StoreFull

__all__ = ["is_busy", "judged"]

_PRIMARY = 0xFF
"""An extended code of SQLite has the general one in its lowest byte."""
_NO_ROOM = 1024 * 1024
"""Where fewer bytes than this are free, a write that failed had no room."""

_AWAY = {
    sqlite3.SQLITE_BUSY: "other writers hold it",
    sqlite3.SQLITE_LOCKED: "other writers hold it",
    sqlite3.SQLITE_INTERRUPT: "it was interrupted",
    sqlite3.SQLITE_NOMEM: "there is no memory",
}
_BROKEN = {
    sqlite3.SQLITE_CORRUPT: "is damaged: put back a copy, or move it away to begin anew",
    sqlite3.SQLITE_NOTADB: "is not a database: move it away, or name another in tables.url",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: does its folder exist, and may you write there?",
    sqlite3.SQLITE_PERM: "cannot be opened: may you write there?",
    sqlite3.SQLITE_READONLY: "may only be read",
    sqlite3.SQLITE_AUTH: "cannot be opened: access denied",
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another writer has the lock."""
    return _code(error) & _PRIMARY in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def judged(error: Exception, path: Path) -> StoreError:
    """Say what it means; for whatever a statement raised, also of values that cannot be stored."""
    if isinstance(error, OverflowError | UnicodeError):
        return StoreError(f"a value cannot be stored: {error}")
    if not isinstance(error, sqlite3.Error):
        return StoreError(f"{path}: {type(error).__name__}: {error}")
    kind = _code(error) & _PRIMARY
    if kind == sqlite3.SQLITE_FULL or (kind == sqlite3.SQLITE_IOERR and _had_no_room(error, path)):
        return StoreFull(f"no room for {path}: {error}")
    if kind == sqlite3.SQLITE_IOERR:
        return StoreAway(f"the disk of {path} fails ({_name(error)}): {error}")
    if kind in _AWAY:
        return StoreAway(f"{path} does not answer in time: {_AWAY[kind]}")
    broken = _BROKEN.get(kind)
    return StoreError(f"{path} {broken} ({error})" if broken else f"{path}: {error}")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0)


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "unknown")


def _had_no_room(error: sqlite3.Error, path: Path) -> bool:
    if _code(error) == sqlite3.SQLITE_IOERR_FSYNC:
        return False  # room or no room: what was written may be there or not
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _NO_ROOM
