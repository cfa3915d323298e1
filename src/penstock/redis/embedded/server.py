"""Attaching to the embedded server of a data directory.

The first process starts a keeper (see `keeper.py`), which starts the server; later ones attach.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import EmbeddedError, StartFailed
from penstock.processes.daemon import (
    DaemonRefused,
    Deadline,
    holder_pid,
    is_held,
    open_lock,
    program_of,
    start_daemon,
    try_lock,
)
from penstock.processes.home import NotOurs, check_home, make_home, open_own, socket_path
from penstock.processes.machine import memory_bytes
from penstock.redis.address import Credentials, Endpoint
from penstock.redis.embedded import keeper
from penstock.redis.embedded.binary import allocator_of, find_jemalloc, valkey_binary
from penstock.redis.embedded.connection import connect
from penstock.redis.embedded.password import FILE, password_of, read_password
from penstock.settings import EmbeddedSettings

__all__ = ["Embedded", "EmbeddedStatus"]

_PROGRAM = program_of("penstock.redis.embedded.keeper")
# Longer than any healthy server takes for a PING; a frozen one costs this much for each check.
_ANSWER_S = 0.5
# How long to leave the start to another process. The keeper's lock alone decides, so a frozen
# starter costs the others no more than this.
_COURTESY_S = 3.0
# Testing a lock takes it for a moment, on a busy machine for longer; what still holds it after this
# long is a user.
_TESTING_S = 1.0
_FULL_DISK = 256 * 1024
_LOADING = b"-LOADING"
_PROCESS = re.compile(rb"\nprocess_id:(\d+)\r[\s\S]*\ntcp_port:(\d+)\r")
_LEAST_MEMORY = 64 * 1024 * 1024
_LONGEST_LOG = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """State of the server of one data directory."""

    running: bool
    home: str
    socket: str
    keeper_pid: int | None
    in_use: bool
    pinned: bool
    allocator: str = ""
    """The server's memory allocator, `jemalloc` or `libc`; empty if not known."""
    port: int = 0
    """Its TCP port on 127.0.0.1; 0 if it has none."""


class Embedded:
    """One process's use of the embedded server of a data directory.

    Thread-safe. Every call blocks: use a thread when a loop is running. A forked child counts as a
    user, too, until it ends.

    Nothing is sent to a server of another user, or in a directory that others may write to:
    `StartFailed` says what to type.
    """

    def __init__(self, home: Path, settings: EmbeddedSettings) -> None:
        self.home = home
        self._settings = settings
        # The descriptors by which we count as a user. Without a lock, which a fork could leave held
        # for ever: append and pop are atomic.
        self._holds: list[int] = []
        self._detachments = 0

    @property
    def socket(self) -> str:
        return socket_path(self.home, keeper.SOCKET)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(path=self.socket, own=True)

    def credentials(self) -> Credentials:
        """What the server wants to know from a user, if it listens on a TCP port."""
        return Credentials(password=self.password())

    def password(self) -> str | None:
        """The password of the server's TCP port, None if it never had one."""
        with self._usable(FILE):
            return read_password(self.home)

    def url(self, port: int) -> str:
        """The address of this TCP port of the server, with the password."""
        password = self.password()
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}"

    def attach(self) -> None:
        """Count as a user, and start the server unless it runs. May be called twice."""
        patience = self._patience()
        if self._holds:
            self._ensure_running(patience)
            return
        self._make_home()
        hold = self._open("users.lock")
        try:
            self._wait_for_users_lock(hold, patience)
            self._ensure_running(patience)
        except BaseException:
            os.close(hold)
            raise
        self._holds.append(hold)
        if not patience.wanted:
            self.detach()  # detached meanwhile by another thread

    def detach(self) -> None:
        """Stop counting as a user. The server stays until the last one has detached.

        Ends the waits of other threads.
        """
        self._detachments += 1
        while self._holds:
            os.close(self._holds.pop())

    def ensure_running(self) -> None:
        """Return when the server answers; start it unless another process does."""
        self._ensure_running(self._patience())

    def status(self) -> EmbeddedStatus:
        """Read the state without starting or changing anything."""
        is_running = bool(self._reply())
        pid, port = self._process() if is_running else (None, 0)
        return EmbeddedStatus(
            running=is_running,
            home=str(self.home),
            socket=self.socket,
            keeper_pid=self._keeper_pid(),
            in_use=self._held("users.lock", fcntl.LOCK_EX),
            pinned=os.path.lexists(self.home / "pinned"),
            allocator="" if pid is None else allocator_of(pid),
            port=port,
        )

    def pin(self) -> None:
        """Keep the server running without users, until `stop`."""
        os.close(self._open("pinned"))

    def stop(self, *, force: bool = False, timeout_s: float = 30.0) -> bool:
        """Shut the server down and wait for its end; False if it did not run.

        `EmbeddedError` while others use it; with `force` it is stopped all the same, and its users
        start it again. `TimeoutError` if it does not end.
        """
        if not self.home.is_dir():
            return False
        with self._usable():
            check_home(self.home)
        users = self._open("users.lock")
        try:
            # Held until the end, so that new users wait for it.
            looking = Deadline(_TESTING_S)
            if not force and not looking.until(lambda: try_lock(users, fcntl.LOCK_EX)):
                raise EmbeddedError(f"the embedded server in {self.home} is in use")
            (self.home / "pinned").unlink(missing_ok=True)
            if not self._held("server.lock"):
                return False
            ending = Deadline(timeout_s)
            if not ending.until(lambda: self._ends(force=force)):
                raise TimeoutError(
                    f"the embedded server in {self.home} did not end within {timeout_s:g} s; its "
                    f"keeper is process {self._keeper_pid()}"
                )
        finally:
            os.close(users)
        return True

    def _wait_for_users_lock(self, hold: int, patience: Deadline) -> None:
        if not patience.until(lambda: try_lock(hold, fcntl.LOCK_SH)):
            raise StartFailed(f"the embedded server in {self.home} is still shutting down")

    def _ensure_running(self, patience: Deadline) -> None:
        if self._ready():
            return
        starter = self._open("start.lock")
        try:
            patience.within(_COURTESY_S).until(
                lambda: try_lock(starter, fcntl.LOCK_EX) or self._ready()
            )
            self._start(patience)
        finally:
            os.close(starter)

    def _start(self, patience: Deadline) -> None:
        ours = False
        while not self._ready():
            if patience.over:
                raise StartFailed(self._why_it_is_late())
            if not self._held("keeper.lock"):
                if ours and (why := self._why_it_gave_up()):
                    raise StartFailed(why)
                ours = self._start_keeper()
            patience.until(lambda: self._ready() or not self._held("keeper.lock"))

    def _ready(self) -> bool:
        """Whether the server has a keeper and answers, with anything but LOADING."""
        reply = self._reply()
        return bool(reply) and not reply.startswith(_LOADING) and self._held("keeper.lock")

    def _ends(self, *, force: bool) -> bool:
        """Send SHUTDOWN; whether the server and its keeper have ended."""
        if self._reply(b"SHUTDOWN") == b"" and force:
            # Its users may start another at once: that one is not to be stopped.
            keeper_ends = Deadline(_ANSWER_S)
            keeper_ends.until(lambda: not self._held("server.lock"))
            return True
        return not self._held("server.lock")

    def _patience(self) -> Deadline:
        """A deadline for a start, which a `detach` ends early."""
        detachments = self._detachments
        return Deadline(self._settings.start_timeout_s, lambda: self._detachments == detachments)

    def _make_home(self) -> None:
        with self._usable():
            make_home(self.home, self.socket, data="appendonlydir")

    def _open(self, name: str) -> int:
        with self._usable(name):
            return open_lock(self.home / name)

    def _held(self, name: str, kind: int = fcntl.LOCK_SH) -> bool:
        with self._usable(name):
            return is_held(self.home / name, kind)

    def _keeper_pid(self) -> int | None:
        with self._usable("keeper.lock"):
            return holder_pid(self.home / "keeper.lock")

    @contextmanager
    def _usable(self, name: str = "") -> Generator[None]:
        """Raise StartFailed where the data directory, or this file in it, cannot be used."""
        try:
            yield
        except OSError as error:
            what = f"{name}: {error.strerror}" if name else error.strerror
            raise StartFailed(f"data directory {self.home}: {what}") from None

    def _start_keeper(self) -> bool:
        """Start a keeper, which holds its lock when this returns; False if another was faster."""
        if has_port := self._settings.port != 0:
            with self._usable(FILE):
                password_of(self.home)
        config = {
            "home": str(self.home),
            "socket": self.socket,
            "password": has_port,
            "linger_s": self._settings.linger_s,
            "syncs": self._settings.appendfsync == "everysec",
            "command": self._command(),
            "preload": find_jemalloc() if self._settings.jemalloc else "",
        }
        try:
            return start_daemon(_PROGRAM, config, timeout_s=self._settings.start_timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StartFailed(f"the keeper of the embedded server: {error}") from None
        except DaemonRefused as error:
            raise StartFailed(f"data directory {self.home}: {error}") from None

    def _command(self) -> list[str]:
        options = {
            "port": str(self._settings.port),
            "bind": "127.0.0.1",
            "unixsocket": self.socket,
            "unixsocketperm": "700",
            "dir": ".",  # its keeper's
            "appendonly": "yes",
            # The keeper syncs every second; its module explains why.
            "appendfsync": "always" if self._settings.appendfsync == "always" else "no",
            "save": "",
            "maxmemory": self._max_memory(),
            "maxmemory-policy": "noeviction",
        }
        return [str(valkey_binary()), *(part for o, v in options.items() for part in (f"--{o}", v))]

    def _max_memory(self) -> str:
        """The setting in the server's words."""
        text = self._settings.maxmemory
        if not text.endswith("%"):
            return text
        return str(max(_LEAST_MEMORY, memory_bytes() * int(text[:-1]) // 100))

    def _why_it_is_late(self) -> str:
        what = f"the embedded server in {self.home} did not answer in time"
        if (self._reply() or b"").startswith(_LOADING):
            return f"{what}: it is still reading its data (setting embedded.start_timeout_s)"
        if pid := self._keeper_pid():
            return f"{what}: is it frozen? Its keeper is process {pid}"
        return f"{what}: its keeper does not stay"

    def _why_it_gave_up(self) -> str | None:
        """Why the server did not stay; None if the keeper was killed instead."""
        what = f"the embedded server in {self.home} ended right after its start"
        if shutil.disk_usage(self.home).free < _FULL_DISK:
            return f"{what}: the disk is full"
        text = self._log().rpartition(keeper.BEGINNING)[2]
        if keeper.GIVING_UP not in text:
            return None
        lines = text.partition(keeper.GIVING_UP)[0].strip().splitlines()
        # The server marks important lines with #.
        marked = [line.partition(" # ")[2] for line in lines if " # " in line]
        return f"{what}: {(marked or lines)[-1]}"

    def _log(self) -> str:
        """The end of the log."""
        try:
            with os.fdopen(open_own(self.home / keeper.LOG, os.O_RDONLY), "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _LONGEST_LOG))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _process(self) -> tuple[int | None, int]:
        """The server's process id and TCP port, from INFO; None if it does not answer."""
        reply = b""
        try:
            with connect(self.home, self.socket, timeout_s=_ANSWER_S) as connection:
                connection.sendall(b"INFO server\r\n")
                while not (found := _PROCESS.search(reply)):
                    if not (more := connection.recv(4096)):
                        return None, 0
                    reply += more
        except OSError:
            return None, 0
        return int(found[1]), int(found[2])

    def _reply(self, command: bytes = b"PING") -> bytes | None:
        """The server's reply, empty if it hung up, None if it does not answer."""
        try:
            with connect(self.home, self.socket, timeout_s=_ANSWER_S) as connection:
                connection.sendall(command + b"\r\n")
                return connection.recv(256)
        except NotOurs:
            with self._usable():
                raise
        except OSError:
            return None
