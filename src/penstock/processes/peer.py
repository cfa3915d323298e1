"""Connections to unix sockets of this user's own daemons: the other side is checked first.

Only this user counts, root does not: whatever listens or connects at our sockets runs as we do.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.processes.home import NotOurs, check_home

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["check_peer", "connect_own", "open_own_connection"]

_CREDENTIALS = struct.Struct("iII")
"""Linux: process, user and group (`struct ucred`)."""
# macOS: level SOL_LOCAL, option LOCAL_PEERCRED; `struct xucred` begins with version and user.
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1
_XUCRED = struct.Struct("2I")
_XUCRED_SIZE = 76


def check_peer(connection: socket.socket) -> None:
    """Raise NotOurs unless the process at the other end runs as this user."""
    uid = _peer_uid(connection)
    if uid != os.geteuid():
        raise NotOurs(
            errno.EPERM,
            f"the process at this socket runs as uid {uid}, not as uid {os.geteuid()}: "
            "nothing was sent to it",
        )


def connect_own(path: str, *, timeout_s: float) -> socket.socket:
    """Connect to a daemon of this user, with this time limit; NotOurs if it is another's."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        check_home(Path(path).parent)
        connection.connect(path)
        check_peer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def open_own_connection(loop: AbstractEventLoop, path: str) -> socket.socket:
    """As `connect_own`, for a transport of this loop."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        check_home(Path(path).parent)
        await loop.sock_connect(connection, path)
        check_peer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _peer_uid(connection: socket.socket) -> int:
    if sys.platform == "linux":
        facts = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(facts)[1]
    facts = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_SIZE)
    return _XUCRED.unpack_from(facts)[1]
