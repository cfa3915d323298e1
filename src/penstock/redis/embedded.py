"""The server that runs when no address is given: one real Valkey for each data directory.

The first process that needs it starts a keeper (see `keeper.py`), which starts the server; later
ones attach. All of it hangs on file locks that the kernel releases with their process, so nothing
that a killed process leaves behind can wedge the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import EmbeddedError, StartFailed
from penstock.redis import keeper
from penstock.redis.address import Endpoint
from penstock.redis.binary import valkey_binary
from penstock.settings import EmbeddedSettings

__all__ = ["Embedded", "EmbeddedStatus"]

_POLL_S = 0.005
# A unix socket's path must fit into 108 bytes (104 on macOS), its end included.
_LONGEST_SOCKET_PATH = 100
_LOG_TAIL = 400


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """What is known of the server of one data directory."""

    running: bool
    home: str
    socket: str
    keeper_pid: int | None
    in_use: bool
    pinned: bool


class Embedded:
    """One process's hold on the embedded server of a data directory.

    Everything here waits on files and processes: call it from a thread when a loop is running.
    """

    def __init__(self, home: Path, settings: EmbeddedSettings) -> None:
        self.home = home
        self.socket = _socket_path(home)
        self._settings = settings
        self._user: int | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(path=self.socket)

    def attach(self) -> None:
        """Count as a user, and start the server unless it runs. May come twice."""
        deadline = time.monotonic() + self._settings.start_timeout_s
        if self._user is None:
            self._make_home()
            user = self._open("users.lock")
            if not _wait(lambda: _lock(user, fcntl.LOCK_SH), deadline):
                os.close(user)
                raise StartFailed(f"the server in {self.home} is still shutting down")
            self._user = user
        self.ensure_running(deadline)

    def detach(self) -> None:
        """Stop counting as a user. The server stays until the last one has gone."""
        if self._user is not None:
            os.close(self._user)
            self._user = None

    def ensure_running(self, deadline: float | None = None) -> None:
        """Return when the server answers; start it if nobody else is doing that already."""
        deadline = deadline or time.monotonic() + self._settings.start_timeout_s
        if _answers(self.socket):
            return
        starter = self._open("start.lock")
        try:
            if not _wait(lambda: _lock(starter, fcntl.LOCK_EX), deadline):
                raise StartFailed(
                    self._diagnosis("another process has been starting it for too long")
                )
            while not _answers(self.socket):
                if not self._held("keeper.lock"):
                    self._start_keeper()
                if not _wait(
                    lambda: _answers(self.socket) or not self._held("keeper.lock"), deadline
                ):
                    raise StartFailed(self._diagnosis("it did not answer in time"))
                if not self._held("keeper.lock") and not _answers(self.socket):
                    raise StartFailed(self._diagnosis("it ended right after its start"))
        finally:
            os.close(starter)

    def status(self) -> EmbeddedStatus:
        """Look without starting anything."""
        present = self.home.is_dir()
        return EmbeddedStatus(
            running=present and _answers(self.socket),
            home=str(self.home),
            socket=self.socket,
            keeper_pid=self._keeper_pid() if present else None,
            in_use=present and self._held("users.lock"),
            pinned=present and (self.home / "pinned").exists(),
        )

    def pin(self) -> None:
        """Let the server stay without users, until `stop`."""
        (self.home / "pinned").touch()

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Shut the server down and wait for its end; False if it did not run."""
        if not self.home.is_dir():
            return False
        (self.home / "pinned").unlink(missing_ok=True)
        if not self._held("server.lock"):
            return False
        if pid := self._keeper_pid():
            os.kill(pid, signal.SIGTERM)
        else:
            _ask(self.socket, b"SHUTDOWN\r\n")
        if not _wait(lambda: not self._held("server.lock"), time.monotonic() + timeout_s):
            raise EmbeddedError(f"the server in {self.home} did not end within {timeout_s:g} s")
        return True

    def _make_home(self) -> None:
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = Path(self.socket).parent
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StartFailed(f"data directory {self.home}: {error.strerror}") from None
        if folder != self.home and folder.stat().st_uid != os.getuid():
            # It stands where everybody may write: somebody else's server must not pass for ours.
            raise StartFailed(f"{folder} belongs to another user")

    def _open(self, name: str) -> int:
        try:
            return os.open(self.home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartFailed(f"data directory {self.home}: {error.strerror}") from None

    def _held(self, name: str) -> bool:
        descriptor = self._open(name)
        try:
            return not _lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    def _keeper_pid(self) -> int | None:
        if not self._held("keeper.lock"):
            return None
        text = (self.home / "keeper.lock").read_text()
        return int(text) if text else None

    def _start_keeper(self) -> None:
        config = {
            "home": str(self.home),
            "socket": self.socket,
            "linger_s": self._settings.linger_s,
            "log": str(self.home / "keeper.log"),
            "command": self._command(),
        }
        subprocess.run(  # noqa: S603
            [sys.executable, "-I", keeper.__file__, json.dumps(config)],
            stdin=subprocess.DEVNULL,
            check=True,
        )
        # The lock is what tells that the keeper lives; it may need a moment to take it.
        _wait(lambda: self._held("keeper.lock"), time.monotonic() + 1)

    def _command(self) -> list[str]:
        options = {
            "port": str(self._settings.port),
            "bind": "127.0.0.1",
            "unixsocket": self.socket,
            "unixsocketperm": "700",
            "dir": str(self.home),
            "appendonly": "yes",
            "appendfsync": self._settings.appendfsync,
            "save": "",
            "maxmemory": self._settings.maxmemory,
            "maxmemory-policy": "noeviction",
            "logfile": "valkey.log",
        }
        return [str(valkey_binary()), *(part for o, v in options.items() for part in (f"--{o}", v))]

    def _diagnosis(self, what: str) -> str:
        log = self.home / "valkey.log"
        tail = log.read_text(errors="replace")[-_LOG_TAIL:].strip() if log.is_file() else ""
        last = tail.rpartition("\n")[2]
        return f"the embedded server in {self.home}: {what}" + (
            f" (its log: {last})" if last else ""
        )


def _socket_path(home: Path) -> str:
    """In the data directory, or, where that path is too long for a socket, in a short place."""
    path = str(home / "valkey.sock")
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return str(Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}" / f"{digest}.sock")


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _ask(path: str, line: bytes) -> bytes:
    """Send one inline command; empty if nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(path)
            connection.sendall(line)
            return connection.recv(64)
    except OSError:
        return b""


def _answers(path: str) -> bool:
    return _ask(path, b"PING\r\n").startswith(b"+PONG")
