"""Finding and starting the daemon of a directory of vectors, and ending one that is frozen.

    house.lock     held by the daemon while it lives; contains its process id
    start.lock     held by a process that starts a daemon
    takeover.lock  held by a process that ends a frozen daemon
    house.sock     its socket
    house.log      its log

Every call blocks: use a thread when a loop is running.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.errors import StoreAway, StoreFull
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
from penstock.processes.frames import FrameRefused
from penstock.processes.home import NotOurs, make_home, socket_path
from penstock.processes.peer import connect_own
from penstock.settings import VectorSettings
from penstock.stores.vectors.requests import Ping, VectorReply, frame_buffer, framed

__all__ = ["DaemonProcess"]

_POLL_S = 0.01
# How long to leave the start to another process, which may have been frozen.
_COURTESY_S = 3.0
_LONGEST_PAUSE_S = 1.0
_PROGRAM = program_of("penstock.stores.vectors.daemon")


class DaemonProcess:
    """The daemon of one directory, seen from a client."""

    def __init__(self, home: Path, settings: VectorSettings) -> None:
        self.home, self._lock = home, home / "house.lock"
        self._settings = settings
        # A PING and a kill must both fit into the time that a start may take.
        self._patience_s = min(settings.answer_s, settings.start_timeout_s / 2)
        self._wanted = True

    @property
    def socket(self) -> str:
        return socket_path(self.home, "house.sock")

    def give_up(self) -> None:
        """End the waits of other threads."""
        self._wanted = False

    def reach(self) -> None:
        """Return when a daemon answers; start one, and end a frozen one, if need be.

        StoreAway if that takes longer than `vectors.start_timeout_s`, or if another user controls
        the directory or the socket.
        """
        deadline = Deadline(self._settings.start_timeout_s, lambda: self._wanted)
        silent_since = time.monotonic()
        pause_s = _POLL_S
        try:
            make_home(self.home.parent)
            make_home(self.home, self.socket, data="collections")
            while not self.answers(self._patience_s):
                if deadline.over:
                    raise StoreAway(self._why_it_is_late())
                if not is_held(self._lock):
                    self._start(deadline)
                    silent_since = time.monotonic()
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)  # if it does not stay
                elif time.monotonic() - silent_since >= self._patience_s:
                    self.end_frozen()
                    silent_since = time.monotonic()
                time.sleep(pause_s)
        except OSError as error:
            raise self._refusal(error) from None

    def answers(self, patience_s: float) -> bool:
        """Whether a daemon answers a PING on a connection of its own.

        NotOurs if another user has the socket or its folder.
        """
        deadline = time.monotonic() + patience_s
        frames = frame_buffer()
        try:
            with connect_own(self.socket, timeout_s=patience_s) as connection:
                connection.sendall(framed(Ping(0)))
                while (left_s := deadline - time.monotonic()) > 0:
                    connection.settimeout(left_s)
                    data = connection.recv(4096)
                    if not data:
                        return False
                    for frame in frames.feed(data):
                        return not msgspec.msgpack.decode(frame, type=VectorReply).error
        except NotOurs:
            raise
        except (OSError, FrameRefused, msgspec.MsgspecError):
            return False
        return False

    def end_frozen(self) -> None:
        """Kill a daemon that does not answer PING, unless another process does so.

        The kernel is the fence: the locks of the daemon and of the engine's logs are released with
        the process. So no successor can begin while it could still write.
        """
        takeover = open_lock(self.home / "takeover.lock")
        try:
            if not try_lock(takeover, fcntl.LOCK_EX) or self.answers(self._patience_s / 2):
                return
            if (pid := self.pid()) is not None:
                _kill(pid, self.pid)
            Deadline(_COURTESY_S).until(lambda: not is_held(self._lock))
        finally:
            os.close(takeover)

    def pid(self) -> int | None:
        """The daemon's process; None if there is none, or the id in the file is stale."""
        pid = holder_pid(self._lock)
        return pid if pid is not None and _has_open(pid, self._lock) else None

    def _start(self, deadline: Deadline) -> None:
        starter = open_lock(self.home / "start.lock")
        try:
            Deadline(_COURTESY_S).until(
                lambda: try_lock(starter, fcntl.LOCK_EX) or is_held(self._lock)
            )
            if not is_held(self._lock):
                self._start_daemon(max(1.0, deadline.left_s))
        finally:
            os.close(starter)

    def _start_daemon(self, timeout_s: float) -> None:
        config = {
            "home": str(self.home),
            "socket": self.socket,
            "linger_s": self._settings.linger_s,
        }
        try:
            start_daemon(_PROGRAM, config, timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            raise StoreAway(f"the engine of the vectors in {self.home} does not start") from None
        except DaemonRefused as error:
            raise StoreAway(f"vectors in {self.home}: {error}") from None

    def _why_it_is_late(self) -> str:
        what = f"the engine of the vectors in {self.home} did not answer in time"
        if pid := self.pid():
            return f"{what}: is it frozen? It is process {pid}"
        return f"{what}; {self.home / 'house.log'} may show why"

    def _refusal(self, error: OSError) -> StoreAway | StoreFull:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StoreFull(f"no room for vectors in {self.home}")
        return StoreAway(f"vectors in {self.home}: {error.strerror or error}")


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has this file open: a stale process id may be another's by now."""
    if not Path("/proc/self/fd").is_dir():
        return True  # macOS: the id was written under the lock, which is still held
    try:
        wanted = path.stat()
        files = list(Path(f"/proc/{pid}/fd").iterdir())
        return any(os.path.samestat(file.stat(), wanted) for file in files if file.exists())
    except OSError:
        return False


def _kill(pid: int, holder: Callable[[], int | None]) -> None:
    if sys.platform != "linux":
        os.kill(pid, signal.SIGKILL)
        return
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # From here on the id cannot pass to another process.
        if holder() == pid:
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(process)
