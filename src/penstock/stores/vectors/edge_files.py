"""Names and small files of the engine's directory, safe against a crash of the machine."""

from __future__ import annotations

import os
import string
from pathlib import Path

from penstock.errors import StoreFull, StoreMismatch
from penstock.errors.base import shown

__all__ = ["LITTLE_ROOM", "check_room", "collection_name", "folder_name", "sync_path"]
__all__ += ["sync_tree", "write_durably"]

# Capitals are spelled out: some file systems ignore case.
_PLAIN = frozenset((string.ascii_lowercase + string.digits + "-_").encode())
_LONGEST_NAME = 200

LITTLE_ROOM = 4 * 1024 * 1024
"""What opening and deleting need at most."""


def folder_name(collection: str) -> str:
    """The file name of a collection; StoreMismatch if its name has none."""
    try:
        raw = collection.encode()
    except UnicodeEncodeError:
        raise StoreMismatch(f"collection name {shown(collection)}: it is not text") from None
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw)
    if not 0 < len(name) <= _LONGEST_NAME:
        raise StoreMismatch(f"collection name {shown(collection)}: it is empty or too long")
    return name


def collection_name(folder: str) -> str:
    """The collection with this file name."""
    head, *rest = folder.split("%")
    return b"".join(
        (head.encode(), *(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest))
    ).decode()


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically: after any crash it has the old or the new content."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_path(path.parent)


def check_room(folder: Path, size: int) -> None:
    """StoreFull if the disk has less room than `size` bytes.

    The engine writes to mapped memory: without room on the disk its process is killed.
    """
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < size:
        raise StoreFull(f"no room for vectors on the disk of {folder.resolve()}")


def sync_tree(top: Path) -> None:
    """Sync everything below a folder to the disk."""
    for folder, _, files in os.walk(top):
        for name in files:
            sync_path(Path(folder, name))
        sync_path(Path(folder))


def sync_path(path: Path) -> None:
    """Sync a file, or creations, renames and removals in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
