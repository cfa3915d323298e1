"""Privileges: no capabilities, and instead of root a user id that nothing else has."""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Left", "leave"]

_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x0800_0000, 0x1000_0000, 0x4000_0000
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAPABILITIES_3 = 0x2008_0522
_NEEDED = 1 << 5 | 1 << 6 | 1 << 7  # CAP_KILL for the parent, CAP_SETGID, CAP_SETUID


class Left(NamedTuple):
    """What a process has left behind."""

    network: str
    """Why it has not left the network, "" if it has."""
    privileges: str
    """Why it still has privileges, "" if it has none."""
    counted_alone: bool
    """The kernel does not count processes of others as its own."""


def leave(libc: ctypes.CDLL, program: str | None) -> Left:
    """Leave the network, and give up all privileges, for good.

    Files that are open stay usable. The `program` has to be one that all users can run.
    """
    # Root does so first: in a user namespace it could not change its user id.
    gone = libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC) == 0
    was_root = os.geteuid() == 0
    privileges = _leave_root(program) if was_root else ""
    counted_alone = was_root and not privileges
    if not gone:
        gone = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC) == 0
        counted_alone = counted_alone or gone
    network = "" if gone else f"network namespace: {os.strerror(ctypes.get_errno())}"
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    if libc.capset(header, bytes(24)) != 0:
        privileges = privileges or f"capabilities: {os.strerror(ctypes.get_errno())}"
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        privileges = privileges or f"no_new_privs: {os.strerror(ctypes.get_errno())}"
    # Other processes of the same user can neither trace it nor read its memory.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return Left(network, privileges, counted_alone)


def _leave_root(program: str | None) -> str:
    if program is not None and not _runs_for_all(Path(program)):
        return f"only root can run {program}"
    if _effective() & _NEEDED != _NEEDED:
        return "root without CAP_SETUID, CAP_SETGID and CAP_KILL cannot change its user id"
    pid = os.getpid()
    # The second one for containers, whose ids often end at 65535.
    for own in (0x7000_0000 + pid, 50_000 + pid % 10_000):
        with suppress(OSError):
            os.setgroups([])
            os.setresgid(own, own, own)
            os.setresuid(own, own, own)
            return ""
    return "there is no user id to change to in this user namespace"


def _effective() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _runs_for_all(program: Path) -> bool:
    real = program.resolve()
    executable = all(parent.stat().st_mode & 0o001 for parent in real.parents)
    return executable and real.stat().st_mode & 0o005 == 0o005  # noqa: PLR2004
