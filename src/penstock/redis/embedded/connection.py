"""A connection for a few words with the embedded server, from its keeper or its users."""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.processes.peer import connect_own
from penstock.redis.embedded.password import read_password

__all__ = ["connect"]

_LONGEST_LINE = 512


def connect(home: Path, path: str, *, timeout_s: float) -> socket.socket:
    """Connect to the server at this socket, authenticated where a password is set.

    OSError if that fails, NotOurs if it is another user's: then nothing was sent.
    """
    connection = connect_own(path, timeout_s=timeout_s)
    try:
        if password := read_password(home):
            connection.sendall(f"AUTH default {password}\r\n".encode())
            _read_line(connection)  # a refusal is that of the command which follows, too
    except BaseException:
        connection.close()
        raise
    return connection


def _read_line(connection: socket.socket) -> None:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        if not (more := connection.recv(1)):
            return
        line += more
