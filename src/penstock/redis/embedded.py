"""The server that runs when no address is given: one real Valkey for each data directory.

The first process that needs it starts a keeper (see `keeper.py`), which starts the server; later
ones attach. All of it hangs on file locks that the kernel releases with their process, so nothing
that a killed process leaves behind can wedge the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import EmbeddedError, StartFailed
from penstock.redis import keeper
from penstock.redis.address import Endpoint
from penstock.redis.allocator import allocator_of, find_jemalloc
from penstock.redis.binary import valkey_binary
from penstock.redis.socket_place import make_home, socket_path
from penstock.settings import EmbeddedSettings

__all__ = ["Embedded", "EmbeddedStatus"]

_POLL_S = 0.01
# Longer than any healthy server takes for a PING; a frozen one costs this much for each look.
_ANSWER_S = 0.5
# How long to leave the start to another process that is at it. The keeper's lock alone decides who
# keeps the server, so a starter that was frozen costs the others this much and no more.
_COURTESY_S = 3.0
# Who only looks has a lock for microseconds, on a busy machine for as long as others have the
# processor; who still has it after this long is a user.
_LOOKING_S = 1.0
_LONGEST_PID = 10
_FULL_DISK = 256 * 1024
_LOADING = b"-LOADING"
_PID = re.compile(rb"\nprocess_id:(\d+)\r")


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """What is known of the server of one data directory."""

    running: bool
    home: str
    socket: str
    keeper_pid: int | None
    in_use: bool
    pinned: bool
    allocator: str = ""
    """The memory allocator that the server uses, `jemalloc` or `libc`; empty if not known."""


class Embedded:
    """One process's hold on the embedded server of a data directory.

    Everything here waits on files and processes: call it from a thread when a loop is running. Any
    thread may call anything. A forked child holds on, too, until it ends.
    """

    def __init__(self, home: Path, settings: EmbeddedSettings) -> None:
        self.home = home
        self.socket = socket_path(home, "valkey.sock")
        self._settings = settings
        # The descriptors by which we count as a user. No lock guards them (a fork could leave it
        # held for ever): appending and popping cannot be interrupted.
        self._holds: list[int] = []
        self._detachments = 0

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(path=self.socket)

    def attach(self) -> None:
        """Count as a user, and start the server unless it runs. May come twice."""
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
        if not patience.wanted():
            self.detach()  # whoever wanted it has given up meanwhile

    def detach(self) -> None:
        """Stop counting as a user. The server stays until the last one has gone.

        A wait of another thread for the server ends as well.
        """
        self._detachments += 1
        while self._holds:
            os.close(self._holds.pop())

    def ensure_running(self) -> None:
        """Return when the server answers; start it if nobody else is doing that already."""
        self._ensure_running(self._patience())

    def status(self) -> EmbeddedStatus:
        """Look without starting or changing anything."""
        is_running = bool(_reply(self.socket))
        pid = _server_pid(self.socket) if is_running else None
        return EmbeddedStatus(
            running=is_running,
            home=str(self.home),
            socket=self.socket,
            keeper_pid=self._keeper_pid(),
            in_use=self._held("users.lock", fcntl.LOCK_EX),
            pinned=(self.home / "pinned").exists(),
            allocator="" if pid is None else allocator_of(pid),
        )

    def pin(self) -> None:
        """Let the server stay without users, until `stop`."""
        os.close(self._open("pinned"))

    def stop(self, *, force: bool = False, timeout_s: float = 30.0) -> bool:
        """Shut the server down and wait for its end; False if it did not run.

        While others use it, `EmbeddedError`; with `force` it is stopped under them, and whoever of
        them needs it again starts it again. `TimeoutError` if it does not end.
        """
        if not self.home.is_dir():
            return False
        users = self._open("users.lock")
        try:
            # Held until the end, so that whoever wants to attach waits for it.
            looking = _Patience(time.monotonic() + _LOOKING_S)
            if not force and not looking.until(lambda: keeper.try_lock(users, fcntl.LOCK_EX)):
                raise EmbeddedError(f"the embedded server in {self.home} is in use")
            (self.home / "pinned").unlink(missing_ok=True)
            if not self._held("server.lock"):
                return False
            ending = _Patience(time.monotonic() + timeout_s)
            if not ending.until(lambda: self._ends(force=force)):
                raise TimeoutError(
                    f"the embedded server in {self.home} did not end within {timeout_s:g} s; its "
                    f"keeper is process {self._keeper_pid()}"
                )
        finally:
            os.close(users)
        return True

    def _wait_for_users_lock(self, hold: int, patience: _Patience) -> None:
        if not patience.until(lambda: keeper.try_lock(hold, fcntl.LOCK_SH)):
            raise StartFailed(f"the embedded server in {self.home} is still shutting down")

    def _ensure_running(self, patience: _Patience) -> None:
        if self._ready():
            return
        starter = self._open("start.lock")
        try:
            courtesy = replace(patience, deadline=time.monotonic() + _COURTESY_S)
            courtesy.until(lambda: keeper.try_lock(starter, fcntl.LOCK_EX) or self._ready())
            self._start(patience)
        finally:
            os.close(starter)

    def _start(self, patience: _Patience) -> None:
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
        """Whether the server answers and has a keeper. A refusal is an answer, unless it loads."""
        reply = _reply(self.socket)
        return bool(reply) and not reply.startswith(_LOADING) and self._held("keeper.lock")

    def _ends(self, *, force: bool) -> bool:
        """Tell the server to end; whether it has ended, and its keeper with it."""
        if _reply(self.socket, b"SHUTDOWN") == b"" and force:
            # Its users may have started another before we look: that one is not to be stopped.
            keeper_ends = _Patience(time.monotonic() + _ANSWER_S)
            keeper_ends.until(lambda: not self._held("server.lock"))
            return True
        return not self._held("server.lock")

    def _patience(self) -> _Patience:
        """Begin to wait: for a start's time at most, and not beyond a `detach`."""
        detachments = self._detachments
        deadline = time.monotonic() + self._settings.start_timeout_s
        return _Patience(deadline, lambda: self._detachments == detachments)

    def _make_home(self) -> None:
        try:
            make_home(self.home, self.socket)
        except OSError as error:
            raise StartFailed(f"data directory {self.home}: {error.strerror}") from None

    def _open(self, name: str) -> int:
        try:
            return os.open(self.home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartFailed(f"data directory {self.home}: {name}: {error.strerror}") from None

    def _held(self, name: str, kind: int = fcntl.LOCK_SH) -> bool:
        """Whether somebody holds a lock. Looking takes it for a moment, shared if that tells."""
        try:
            descriptor = os.open(self.home / name, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StartFailed(f"data directory {self.home}: {name}: {error.strerror}") from None
        try:
            return not keeper.try_lock(descriptor, kind)
        finally:
            os.close(descriptor)

    def _keeper_pid(self) -> int | None:
        """For people only: the file may be older than the keeper."""
        if not self._held("keeper.lock"):
            return None
        text = (self.home / "keeper.lock").read_bytes()[:_LONGEST_PID]
        return int(text) if text.isdigit() else None

    def _start_keeper(self) -> bool:
        """Start a keeper, which holds its lock when this returns; False if another was faster."""
        config = {
            "home": str(self.home),
            "socket": self.socket,
            "linger_s": self._settings.linger_s,
            "syncs": self._settings.appendfsync == "everysec",
            "log": str(self.home / "valkey.log"),
            "command": self._command(),
            "preload": find_jemalloc() if self._settings.jemalloc else "",
        }
        try:
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-I", keeper.__file__, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._settings.start_timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StartFailed(f"the keeper of the embedded server: {error}") from None
        if done.returncode not in {0, keeper.ANOTHER_IS_FASTER}:
            why = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise StartFailed(f"data directory {self.home}: {why or done.returncode}")
        return done.returncode == 0

    def _command(self) -> list[str]:
        options = {
            "port": str(self._settings.port),
            "bind": "127.0.0.1",
            "unixsocket": self.socket,
            "unixsocketperm": "700",
            "dir": str(self.home),
            "appendonly": "yes",
            # The keeper syncs every second, and says why it is not the server.
            "appendfsync": "always" if self._settings.appendfsync == "always" else "no",
            "save": "",
            "maxmemory": self._settings.maxmemory,
            "maxmemory-policy": "noeviction",
        }
        return [str(valkey_binary()), *(part for o, v in options.items() for part in (f"--{o}", v))]

    def _why_it_is_late(self) -> str:
        what = f"the embedded server in {self.home} did not answer in time"
        if (_reply(self.socket) or b"").startswith(_LOADING):
            return f"{what}: it is still reading its data (setting embedded.start_timeout_s)"
        if pid := self._keeper_pid():
            return f"{what}: is it frozen? Its keeper is process {pid}"
        return f"{what}: its keeper does not stay"

    def _why_it_gave_up(self) -> str | None:
        """Words for a keeper whose server does not stay; None if the keeper was killed instead."""
        what = f"the embedded server in {self.home} ended right after its start"
        if shutil.disk_usage(self.home).free < _FULL_DISK:
            return f"{what}: the disk is full"
        log = self.home / "valkey.log"
        text = log.read_text(errors="replace") if log.is_file() else ""
        text = text.rpartition(keeper.BEGINNING)[2]
        if keeper.GIVING_UP not in text:
            return None
        lines = text.partition(keeper.GIVING_UP)[0].strip().splitlines()
        # The server marks with # what it wants to be seen.
        marked = [line.partition(" # ")[2] for line in lines if " # " in line]
        return f"{what}: {(marked or lines)[-1]}"


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long to wait, and whether anybody still wants it."""

    deadline: float
    wanted: Callable[[], bool] = lambda: True

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.deadline or not self.wanted()

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition; False if patience was over first."""
        while not condition():
            if self.over:
                return False
            time.sleep(_POLL_S)
        return True


def _server_pid(path: str) -> int | None:
    """The server's process, as it says itself; None if it does not."""
    told = b""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(path)
            connection.sendall(b"INFO server\r\n")
            while not (found := _PID.search(told)):
                if not (more := connection.recv(4096)):
                    return None
                told += more
    except OSError:
        return None
    return int(found[1])


def _reply(path: str, command: bytes = b"PING") -> bytes | None:
    """Return what the server answers, nothing if it hung up, None if it does not answer at all."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(path)
            connection.sendall(command + b"\r\n")
            return connection.recv(256)
    except OSError:
        return None
