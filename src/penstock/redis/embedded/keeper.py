"""The daemon that keeps one embedded server running while it is used.

Started by `server.py`, one per data directory. It imports little, so that it starts in milliseconds
and stays small. Locks on files decide which process is alive (see `penstock.processes.daemon`):

    keeper.lock  held by the keeper; contains its pid
    server.lock  held by the keeper and, through an inherited descriptor, by the server: free means
                 that nothing writes to the data any more
    users.lock   shared by every process that uses the server; free means that none does

Every second it syncs the server's append-only file. Valkey's own `appendfsync everysec` is not
used: during a sync it holds back, for up to two seconds, writes that it has already confirmed, and
a server killed meanwhile loses them. With `appendfsync no` every write is with the kernel before it
is confirmed, so only a crash of the machine loses anything: the last second.

A server that dies is started again. After a regular end (SHUTDOWN, SIGTERM) the keeper ends, too.
Without users the server is shut down after `linger_s`, unless the file `pinned` exists.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from penstock.processes.daemon import Daemon, open_lock, run_daemon, try_lock
from penstock.processes.home import note_socket
from penstock.processes.in_child import signal_at_parents_end
from penstock.redis.embedded.connection import connect
from penstock.redis.embedded.password import password_of

if sys.platform == "linux":
    # Children need it before they start the server, also when Python was removed meanwhile.
    import ctypes  # noqa: F401  # pyright: ignore[reportUnusedImport]

SOCKET = "valkey.sock"
LOG = "valkey.log"
BEGINNING = "keeper begins"
"""First line of each keeper in the log."""
GIVING_UP = "keeper gives up"
"""Last line of a keeper whose server does not stay."""

TICK_S = 0.25
_SYNC_S = 1.0
_SETTLED_S = 2.0
_NO_SOCKET_S = 2.0
# A server that exits right after its start would do so again; one that is killed may not.
_MOST_QUICK_ENDS = 3
_MOST_QUICK_KILLS = 6
_SHUTDOWN_S = 60.0


class Keeper(Daemon):
    """Starts, watches and syncs one server."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(Path(config["home"]), "keeper.lock", LOG)
        self.socket = Path(config["socket"])
        self.command: list[str] = config["command"]
        self.preload: str = config.get("preload", "")
        self.has_password = bool(config.get("password"))
        self.linger_s = float(config["linger_s"])
        self.syncs = bool(config["syncs"])
        self.synced: dict[Path, int] = {}
        self.sync_at = 0.0
        self.stopping = False
        self.server_lock = open_lock(self.home / "server.lock")
        self.users_lock = open_lock(self.home / "users.lock")
        self.wake_up, self.woken = os.pipe()
        self.orphan: socket.socket | None = None

    def on_lock_taken(self) -> None:
        note_socket(self.home, SOCKET, str(self.socket))
        # A server that still runs has lost its keeper and is about to end. No user may take it for
        # ours: from now on only the connection that shuts it down can reach it.
        with suppress(OSError):
            self.orphan = self._connect()
        self.socket.unlink(missing_ok=True)

    def run(self) -> int:
        _note(f"{BEGINNING} {os.getpid()}")
        self._listen()
        if not self._inherit_data():
            _note(f"an earlier server still holds the data\n{GIVING_UP}")
            return 1
        code = self._keep()
        if self.still_ours():
            self.socket.unlink(missing_ok=True)
        return code

    def _keep(self) -> int:
        quick_deaths = 0
        while not self.stopping:
            began = time.monotonic()
            # If it does not stay, the preloaded allocator may be the cause.
            server = self._start(self.preload if not quick_deaths else "")
            self._watch(server)
            if self.stopping:
                self._shut_down(server)
            if server.returncode == 0:
                break
            _note(f"the server ended with code {server.returncode}")
            quick_deaths = quick_deaths + 1 if time.monotonic() - began < _SETTLED_S else 0
            if quick_deaths >= (_MOST_QUICK_ENDS if server.returncode > 0 else _MOST_QUICK_KILLS):
                _note(GIVING_UP)
                return 1
            self._rest(TICK_S * quick_deaths)
        return 0

    def _listen(self) -> None:
        """Have signals, the server's end among them, interrupt `_rest`."""
        os.set_blocking(self.woken, False)
        signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_news)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        # The starter may have blocked signals, which the server would inherit.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _on_news(self, *_: object) -> None:
        """Only wakes `_rest` up."""

    def _on_stop(self, *_: object) -> None:
        self.stopping = True

    def _rest(self, seconds: float) -> None:
        ready, _, _ = select.select([self.wake_up], [], [], seconds)
        if ready:
            os.read(self.wake_up, 4096)

    def _inherit_data(self) -> bool:
        """Shut down a server whose keeper was killed, and wait for its end."""
        deadline = time.monotonic() + _SHUTDOWN_S
        while not try_lock(self.server_lock, fcntl.LOCK_EX):
            if self.stopping or time.monotonic() > deadline:
                return False
            if self.orphan is not None:
                with suppress(OSError):
                    self.orphan.sendall(b"SHUTDOWN\r\n")
            self._rest(TICK_S / 10)
        self.orphan = None
        return True

    def _tell_server(self, command: str) -> None:
        with suppress(OSError), self._connect() as server:
            server.sendall(f"{command}\r\n".encode())
            server.recv(64)

    def _connect(self) -> socket.socket:
        return connect(self.home, str(self.socket), timeout_s=1)

    def _start(self, preload: str) -> subprocess.Popen[bytes]:
        keeper, environ, linux = os.getpid(), dict(os.environ), sys.platform == "linux"
        if preload:
            environ["LD_PRELOAD"] = f"{environ.get('LD_PRELOAD', '')} {preload}".strip()
        program, *options = self.command
        server = subprocess.Popen(  # noqa: S603
            # The password is read from the standard input: arguments are visible to all users.
            [program, "-", *options] if self.has_password else self.command,
            stdin=subprocess.PIPE if self.has_password else subprocess.DEVNULL,
            env=environ,
            pass_fds=(self.server_lock,),
            # Safe before exec: this program has one thread.
            preexec_fn=partial(signal_at_parents_end, keeper, signal.SIGTERM) if linux else None,
        )
        if server.stdin is not None:
            with suppress(BrokenPipeError), server.stdin:
                server.stdin.write(f"requirepass {password_of(self.home)}\n".encode())
        return server

    def _watch(self, server: subprocess.Popen[bytes]) -> None:
        """Return when the server has ended, or `stopping` is set: by a signal, or when unused.

        When unused the users' lock is held, so that a new user waits for the shutdown and starts
        the server again.
        """
        unused_since: float | None = None
        listened_at = time.monotonic()
        while not self.stopping and server.poll() is None:
            self._rest(TICK_S)
            self._sync()
            now = time.monotonic()
            if not self.still_ours():
                _note("the data directory was removed")
                server.kill()  # a regular shutdown would remove the socket, perhaps a successor's
                self.stopping = True
                return
            if os.path.lexists(self.socket):
                listened_at = now
            elif now - listened_at > _NO_SOCKET_S:
                _note("the socket was removed")
                server.terminate()  # no user can reach it; the next one starts it again
            if os.path.lexists(self.home / "pinned") or not try_lock(
                self.users_lock, fcntl.LOCK_EX
            ):
                unused_since = None
                continue
            unused_since = unused_since or now
            if now - unused_since >= self.linger_s:
                self.stopping = True
            else:
                fcntl.flock(self.users_lock, fcntl.LOCK_UN)

    def _sync(self) -> None:
        """Sync the append-only file, once a second. A slow disk only delays it.

        With a broken disk the server takes over: it refuses writes while its own syncs fail.
        """
        if not self.syncs or time.monotonic() < self.sync_at:
            return
        try:
            for log in append_logs(self.home):
                size = log.stat().st_size
                if self.synced.get(log) != size:
                    _sync_file(log)
                    self.synced[log] = size
        except FileNotFoundError:
            return  # the server has just replaced it
        except OSError as error:
            _note(f"the data could not be synced: {error.strerror}")
            self._tell_server("CONFIG SET appendfsync everysec")
            self.syncs = False
        self.sync_at = time.monotonic() + _SYNC_S

    def _shut_down(self, server: subprocess.Popen[bytes]) -> None:
        if server.poll() is None:
            server.terminate()  # the server writes everything out and ends
            try:
                server.wait(_SHUTDOWN_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def append_logs(home: Path) -> list[Path]:
    """The append-only files of a data directory's server."""
    return list((home / "appendonlydir").glob("*.incr.aof"))


def sync_data(home: Path) -> None:
    """Sync all writes that the server has confirmed so far, or raise OSError."""
    for log in append_logs(home):
        # A missing one was rewritten, and the server has synced its replacement.
        with suppress(FileNotFoundError):
            _sync_file(log)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if sys.platform == "linux":
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _note(text: str) -> None:
    with suppress(OSError):  # a full disk
        print(text, flush=True)


def main(config: dict[str, Any]) -> int:
    return run_daemon(Keeper, config)
