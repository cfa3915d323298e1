"""Keeps one embedded server running for as long as somebody uses it. A program of its own.

Started by `embedded.py` as `python -I keeper.py CONFIG`, detached, one per data directory. It uses
the standard library only, so that it starts in milliseconds and stays small. Who is alive is told
by locks on files, which the kernel releases with their process however that ends:

    keeper.lock  held by the keeper; holds its pid
    server.lock  held by the keeper and, through an inherited descriptor, by the server itself: free
                 means that nothing writes to the data any more
    users.lock   shared by every process that uses the server; free means that nobody does

A server that dies is started again. Without users the server is shut down after `linger_s`, unless
the file `pinned` says that it was started to stay.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TICK_S = 0.25
_PR_SET_PDEATHSIG = 1
_OTHERS_LOOK_S = 1.0
_SETTLED_S = 2.0
_MOST_QUICK_DEATHS = 5
_SHUTDOWN_S = 60.0


class Keeper:
    """One server and its watch."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.home = Path(config["home"])
        self.socket = str(config["socket"])
        self.command: list[str] = config["command"]
        self.linger_s = float(config["linger_s"])
        self.stopping = False
        self.server_lock = self._open("server.lock")
        self.users_lock = self._open("users.lock")
        self.keeper_lock = self._open("keeper.lock")

    def run(self) -> int:
        if not self._take_over():
            return 0  # another keeper was faster
        os.ftruncate(self.keeper_lock, 0)
        os.pwrite(self.keeper_lock, str(os.getpid()).encode(), 0)
        if not self._inherit_data():
            print("an earlier server still holds the data", flush=True)
            return 1
        signal.signal(signal.SIGTERM, self._on_stop)
        quick_deaths = 0
        while not self.stopping:
            started = time.monotonic()
            server = self._start()
            self._watch(server)
            if self.stopping:
                self._shut_down(server)
                break
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _SETTLED_S else 0
            print(f"the server ended with code {server.returncode}", flush=True)
            if quick_deaths == _MOST_QUICK_DEATHS:
                return 1
            time.sleep(TICK_S * quick_deaths)
        Path(self.socket).unlink(missing_ok=True)
        return 0

    def _take_over(self) -> bool:
        """Take the keeper's lock. Who only looks whether it is held has it for a moment, too."""
        deadline = time.monotonic() + _OTHERS_LOOK_S
        while not _lock(self.keeper_lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return False
            time.sleep(TICK_S / 100)
        return True

    def _on_stop(self, *_: object) -> None:
        self.stopping = True

    def _open(self, name: str) -> int:
        return os.open(self.home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _inherit_data(self) -> bool:
        """Wait for a server whose keeper was killed to leave; it is told to."""
        deadline = time.monotonic() + _SHUTDOWN_S
        while not _lock(self.server_lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return False
            with suppress(OSError), socket.socket(socket.AF_UNIX) as orphan:
                orphan.settimeout(1)
                orphan.connect(self.socket)
                orphan.sendall(b"SHUTDOWN\r\n")
            time.sleep(TICK_S / 10)
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603
            self.command,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            pass_fds=(self.server_lock,),
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # one thread only
        )

    def _watch(self, server: subprocess.Popen[bytes]) -> None:
        """Return when the server ended, or `stopping` is set: asked to, or unused for long enough.

        The users' lock is then held, so that whoever comes now waits for the shutdown and starts
        anew.
        """
        unused_since: float | None = None
        while not self.stopping and server.poll() is None:
            time.sleep(TICK_S)
            if (self.home / "pinned").exists() or not _lock(self.users_lock, fcntl.LOCK_EX):
                unused_since = None
                continue
            now = time.monotonic()
            unused_since = unused_since or now
            if now - unused_since >= self.linger_s:
                self.stopping = True
            else:
                fcntl.flock(self.users_lock, fcntl.LOCK_UN)

    def _shut_down(self, server: subprocess.Popen[bytes]) -> None:
        if server.poll() is None:
            server.terminate()  # the server writes out what it has and leaves
            try:
                server.wait(_SHUTDOWN_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _detach(log: str) -> None:
    """Leave the terminal and the starter behind."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    _detach(settings["log"])
    sys.exit(Keeper(settings).run())
