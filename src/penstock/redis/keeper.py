"""Keeps one embedded server running for as long as somebody uses it. A program of its own.

Started by `embedded.py` as `python -I keeper.py CONFIG`, one per data directory; it returns as soon
as it is the keeper and goes on in the background. It uses the standard library only, so that it
starts in milliseconds and stays small. Who is alive is told by locks on files, which the kernel
releases with their process however that ends; what the files hold decides nothing:

    keeper.lock  held by the keeper; holds its pid, for people
    server.lock  held by the keeper and, through an inherited descriptor, by the server itself: free
                 means that nothing writes to the data any more
    users.lock   shared by every process that uses the server; free means that nobody does

Every second it syncs what the server has appended to its file. Valkey's own `appendfsync everysec`
is not used: while a sync is under way it holds back, for up to two seconds, writes that it has
already confirmed, and a server killed meanwhile loses them. With `appendfsync no` every write is
with the kernel before it is confirmed, so only a crash of the machine costs anything: the last
second.

A server that dies is started again. One that was told to end (SHUTDOWN, SIGTERM) ends its keeper as
well. Without users the server is shut down after `linger_s`, unless the file `pinned` says that it
was started to stay.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ANOTHER_IS_FASTER = 3
"""Exit code of a keeper that finds another one at work."""
BEGINNING = "keeper begins"
"""First line of each keeper in the log."""
GIVING_UP = "keeper gives up"
"""Last line of a keeper whose server does not stay."""

TICK_S = 0.25
_SYNC_S = 1.0
_PR_SET_PDEATHSIG = 1
_OTHERS_LOOK_S = 1.0
_SETTLED_S = 2.0
_NO_SOCKET_S = 2.0
# A server that ends by itself right after its start would do so again; one that is killed may not.
_MOST_QUICK_ENDS = 3
_MOST_QUICK_KILLS = 6
_SHUTDOWN_S = 60.0
_LARGEST_LOG = 1024 * 1024


class Keeper:
    """One server and its watch."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.home = Path(config["home"])
        self.socket = Path(config["socket"])
        self.log = Path(config["log"])
        self.command: list[str] = config["command"]
        self.preload: str = config.get("preload", "")
        self.linger_s = float(config["linger_s"])
        self.syncs = bool(config["syncs"])
        self.synced: dict[Path, int] = {}
        self.sync_at = 0.0
        self.stopping = False
        self.server_lock = self._open("server.lock")
        self.users_lock = self._open("users.lock")
        self.keeper_lock = self._open("keeper.lock")
        self.wake_up, self.woken = os.pipe()
        self.orphan: socket.socket | None = None

    def take_over(self) -> bool:
        """Take the keeper's lock. Who only looks whether it is held has it for a moment, too."""
        deadline = time.monotonic() + _OTHERS_LOOK_S
        while not try_lock(self.keeper_lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return False
            time.sleep(TICK_S / 100)
        # A server that is still there has lost its keeper and is about to end. Nobody else may
        # take it for ours: only the connection that tells it to end can reach it from now on.
        with suppress(OSError):
            self.orphan = _connect(self.socket)
        self.socket.unlink(missing_ok=True)
        return True

    def detach(self) -> None:
        """Go on in a child that has left the terminal; the locks go with it.

        When the starter sees this process end, there is a keeper: it need not wait for one.
        """
        if self.log.is_file() and self.log.stat().st_size > _LARGEST_LOG:
            self.log.replace(self.log.with_suffix(".log.old"))
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if os.fork():
            os._exit(0)
        os.setsid()
        os.umask(0o077)
        os.chdir(self.home)  # the starter's folder may be on a disk that somebody wants to unmount
        for target in (1, 2):
            os.dup2(output, target)
        os.close(output)

    def run(self) -> int:
        _note(f"{BEGINNING} {os.getpid()}")
        os.ftruncate(self.keeper_lock, 0)
        os.pwrite(self.keeper_lock, str(os.getpid()).encode(), 0)
        self._listen()
        if not self._inherit_data():
            _note(f"an earlier server still holds the data\n{GIVING_UP}")
            return 1
        code = self._keep()
        if self._still_ours():
            self.socket.unlink(missing_ok=True)
        return code

    def _keep(self) -> int:
        quick_deaths = 0
        while not self.stopping:
            began = time.monotonic()
            # If it does not stay, perhaps that is because of what was loaded before it.
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

    def _open(self, name: str) -> int:
        return os.open(self.home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _listen(self) -> None:
        """Let signals, the server's end among them, cut a rest short."""
        os.set_blocking(self.woken, False)
        signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_news)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        # Whoever started us may have blocked signals; the server would inherit that from us.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _on_news(self, *_: object) -> None:
        """Being woken is all."""

    def _on_stop(self, *_: object) -> None:
        self.stopping = True

    def _rest(self, seconds: float) -> None:
        ready, _, _ = select.select([self.wake_up], [], [], seconds)
        if ready:
            os.read(self.wake_up, 4096)

    def _inherit_data(self) -> bool:
        """Wait for a server whose keeper was killed to leave; it is told to."""
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
        with suppress(OSError), _connect(self.socket) as server:
            server.sendall(f"{command}\r\n".encode())
            server.recv(64)

    def _start(self, preload: str) -> subprocess.Popen[bytes]:
        keeper, environ = os.getpid(), dict(os.environ)
        if preload:
            environ["LD_PRELOAD"] = f"{environ.get('LD_PRELOAD', '')} {preload}".strip()
        return subprocess.Popen(  # noqa: S603
            self.command,
            stdin=subprocess.DEVNULL,
            env=environ,
            pass_fds=(self.server_lock,),
            # Before exec, and in a program with one thread: nothing to go wrong.
            preexec_fn=(lambda: die_with(keeper)) if sys.platform == "linux" else None,
        )

    def _watch(self, server: subprocess.Popen[bytes]) -> None:
        """Return when the server ended, or `stopping` is set: asked to, or unused for long enough.

        In the last case the users' lock is held, so that whoever comes now waits for the shutdown
        and starts anew.
        """
        unused_since: float | None = None
        listened_at = time.monotonic()
        while not self.stopping and server.poll() is None:
            self._rest(TICK_S)
            self._sync()
            now = time.monotonic()
            if not self._still_ours():
                _note("the data directory was taken away")
                server.kill()  # told to end it would remove the socket, perhaps of a successor
                self.stopping = True
                return
            if self.socket.exists():
                listened_at = now
            elif now - listened_at > _NO_SOCKET_S:
                _note("somebody removed the socket")
                server.terminate()  # nobody can reach it any more; who needs it starts it again
            if (self.home / "pinned").exists() or not try_lock(self.users_lock, fcntl.LOCK_EX):
                unused_since = None
                continue
            unused_since = unused_since or now
            if now - unused_since >= self.linger_s:
                self.stopping = True
            else:
                fcntl.flock(self.users_lock, fcntl.LOCK_UN)

    def _sync(self) -> None:
        """Bring what was appended to the disk, once a second. A slow disk only makes us late.

        With a broken one the server takes over: it refuses writes while its own syncs fail.
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

    def _still_ours(self) -> bool:
        """Whether the lock we hold is the one that others look at."""
        try:
            seen = (self.home / "keeper.lock").stat()
        except OSError:
            return False
        return os.path.samestat(seen, os.fstat(self.keeper_lock))

    def _shut_down(self, server: subprocess.Popen[bytes]) -> None:
        if server.poll() is None:
            server.terminate()  # the server writes out what it has and leaves
            try:
                server.wait(_SHUTDOWN_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def append_logs(home: Path) -> list[Path]:
    """The files to which the server of a data directory appends what it is told."""
    return list((home / "appendonlydir").glob("*.incr.aof"))


def sync_data(home: Path) -> None:
    """Bring all that the server has confirmed by now to the disk, or raise OSError."""
    for log in append_logs(home):
        # One that has gone was rewritten, and the server has synced what took its place.
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


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(1)
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _note(text: str) -> None:
    with suppress(OSError):  # a full disk ends no keeper
        print(text, flush=True)


def try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock on an open file, if it is free."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def die_with(keeper: int) -> None:
    """Let the kernel end this process with its parent, the keeper, however that one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != keeper:
        os._exit(1)  # it was killed before the kernel knew


def main() -> int:
    try:
        keeper = Keeper(json.loads(sys.argv[1]))
        if not keeper.take_over():
            return ANOTHER_IS_FASTER
        keeper.detach()
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        return 1
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main())
