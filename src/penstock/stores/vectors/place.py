"""Where the house of the vectors is, whether it lives, and how to get one that does.

    house.lock     held by the house for as long as it lives; holds its process id
    start.lock     held by who starts a house, so that others need not try as well
    takeover.lock  held by who ends a house that stands still
    house.sock     where it listens
    house.log      what it has to say

Everything here waits on files and processes: call it from a thread when a loop is running.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.errors import StoreAway, StoreFull
from penstock.redis.keeper import try_lock
from penstock.redis.socket_place import make_home, socket_path
from penstock.settings import VectorSettings
from penstock.stores.vectors.requests import Answer, FrameRefused, Frames, Ping, framed

__all__ = ["ANOTHER_IS_FASTER", "HousePlace"]

ANOTHER_IS_FASTER = 3
"""Exit code of a house that finds another one at work."""

_POLL_S = 0.01
# How long to leave the start to another process that is at it; it may have been frozen.
_COURTESY_S = 3.0
_LONGEST_PAUSE_S = 1.0
_LONGEST_PID = 10
# The house outlives who starts it: of that one's environment it gets only what processes need.
_KEPT_VARIABLES = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
_KEPT_PREFIXES = ("LC_", "LD_", "DYLD_", "RUST_")
_PROGRAM = """\
import json, sys
config = json.loads(sys.argv[1])
sys.path[:] = config["path"]
from penstock.stores.vectors.house import main
sys.exit(main(config))
"""


class HousePlace:
    """The house of one directory, as its users see it."""

    def __init__(self, home: Path, settings: VectorSettings) -> None:
        self.home = home
        self.socket = socket_path(home, "house.sock")
        self._settings = settings
        # Both a look and an end must fit into the time that a start may take.
        self._patience_s = min(settings.answer_s, settings.start_timeout_s / 2)
        self._wanted = True

    def give_up(self) -> None:
        """End the waits of other threads."""
        self._wanted = False

    def reach(self) -> None:
        """Return when a house answers; start one, and end one that stands still, if need be.

        StoreAway if that takes longer than `vectors.start_timeout_s`.
        """
        deadline = time.monotonic() + self._settings.start_timeout_s
        silent_since = time.monotonic()
        pause_s = _POLL_S
        try:
            make_home(self.home, self.socket)
            while not self.answers(self._patience_s):
                now = time.monotonic()
                if not self._wanted or now > deadline:
                    raise StoreAway(self._why_it_is_late())
                if not self._held("house.lock"):
                    self._start(deadline)
                    silent_since = time.monotonic()
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)  # if it does not stay
                elif now - silent_since >= self._patience_s:
                    self.end_frozen()
                    silent_since = time.monotonic()
                time.sleep(pause_s)
        except OSError as error:
            raise self._refusal(error) from None

    def answers(self, patience_s: float) -> bool:
        """Whether a house answers to a PING on a connection of its own."""
        deadline = time.monotonic() + patience_s
        frames = Frames()
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(patience_s)
                connection.connect(self.socket)
                connection.sendall(framed(Ping(0)))
                while (left_s := deadline - time.monotonic()) > 0:
                    connection.settimeout(left_s)
                    data = connection.recv(4096)
                    if not data:
                        return False
                    for frame in frames.feed(data):
                        return not msgspec.msgpack.decode(frame, type=Answer).error
        except (OSError, FrameRefused, msgspec.MsgspecError):
            return False
        return False

    def end_frozen(self) -> None:
        """Kill a house that answers no PING, unless somebody else is at it or it answers again.

        The fence is the kernel's: with the process its locks go, that of the house and those of the
        engine's logs, and not before. So no successor can begin while it could still write.
        """
        judge = self._open("takeover.lock")
        try:
            if not try_lock(judge, fcntl.LOCK_EX) or self.answers(self._patience_s / 2):
                return
            if (pid := self._holder()) is not None:
                _kill(pid, self._holder)
            deadline = time.monotonic() + _COURTESY_S
            while self._held("house.lock") and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            os.close(judge)

    def pid(self) -> int | None:
        """The process id of the house, if one lives."""
        return self._holder()

    def _start(self, deadline: float) -> None:
        starter = self._open("start.lock")
        try:
            courtesy = time.monotonic() + _COURTESY_S
            while not try_lock(starter, fcntl.LOCK_EX):
                if time.monotonic() > courtesy or self._held("house.lock"):
                    break
                time.sleep(_POLL_S)
            if not self._held("house.lock"):
                self._start_house(max(1.0, deadline - time.monotonic()))
        finally:
            os.close(starter)

    def _start_house(self, timeout_s: float) -> None:
        config = {
            "home": str(self.home),
            "socket": self.socket,
            "linger_s": self._settings.linger_s,
            "path": [str(Path(entry).absolute()) for entry in sys.path if entry],
        }
        environ = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
        }
        try:
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environ,
                cwd="/",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StoreAway(f"the engine of the vectors in {self.home} does not start") from None
        if done.returncode not in {0, ANOTHER_IS_FASTER}:
            why = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise StoreAway(f"vectors in {self.home}: {why or f'code {done.returncode}'}")

    def _holder(self) -> int | None:
        """Who holds house.lock. None if nobody does, or nobody can tell."""
        if not self._held("house.lock"):
            return None
        text = (self.home / "house.lock").read_bytes()[:_LONGEST_PID]
        return (
            int(text) if text.isdigit() and _has_open(int(text), self.home / "house.lock") else None
        )

    def _held(self, name: str) -> bool:
        try:
            descriptor = os.open(self.home / name, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            return not try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        return os.open(self.home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _why_it_is_late(self) -> str:
        what = f"the engine of the vectors in {self.home} did not answer in time"
        if pid := self._holder():
            return f"{what}: is it frozen? It is process {pid}"
        return f"{what}; {self.home / 'house.log'} may tell why"

    def _refusal(self, error: OSError) -> StoreAway | StoreFull:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StoreFull(f"no room for vectors in {self.home}")
        return StoreAway(f"vectors in {self.home}: {error.strerror or error}")


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has this file open: a stale process id may be another's by now."""
    if not Path("/proc/self/fd").is_dir():
        return True  # macOS: the id was written under the lock, which somebody still holds
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
        # Now the id cannot pass to another process any more: if it is the holder's, it stays so.
        if holder() == pid:
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(process)
