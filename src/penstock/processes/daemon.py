"""Daemons: processes that outlive their starter, one for each data directory.

Locks on files decide which process is alive: the kernel releases them however their process ends,
so nothing that a killed process leaves behind can block the next one. Their content (a process id)
is for people.

`start_daemon` returns when the daemon has its lock and has detached. The daemon's program is a
module with `main(config)`, which calls `run_daemon`. A daemon should start in milliseconds and stay
small, so this module imports little, of the standard library alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.processes.home import check_folder, open_own

__all__ = ["Daemon", "DaemonRefused", "Deadline", "command_of", "holder_pid", "is_held"]
__all__ += ["open_lock", "program_of", "run_daemon", "start_daemon", "try_lock"]

ANOTHER_IS_FASTER = 3
"""Exit code of a daemon that finds another one at work."""

_POLL_S = 0.01
# Testing a lock takes it for a moment, on a busy machine for longer; what still holds it after this
# long is a daemon.
_OTHERS_TEST_S = 1.0
_LARGEST_LOG = 1024 * 1024
_LONGEST_PID = 10
# A daemon outlives its starter, so it gets only what it needs of the environment: no secrets.
_KEPT_VARIABLES = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
_KEPT_PREFIXES = ("LC_", "LD_", "DYLD_", "MALLOC_", "RUST_")


# ---- locks


def open_lock(path: Path) -> int:
    """Open a lock file, for this user alone, or raise OSError."""
    return open_own(path, os.O_RDWR | os.O_CREAT)


def try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock on an open file, if it is free."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path, kind: int = fcntl.LOCK_SH) -> bool:
    """Whether a process holds a lock. Testing takes it for a moment, shared by default."""
    try:
        descriptor = open_own(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not try_lock(descriptor, kind)
    finally:
        os.close(descriptor)


def holder_pid(path: Path) -> int | None:
    """The process id in a held lock; it may be older than the holder."""
    if not is_held(path):
        return None
    descriptor = open_own(path, os.O_RDONLY)
    try:
        text = os.read(descriptor, _LONGEST_PID)
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() else None


class Deadline:
    """How long to wait, and whether the result is still wanted."""

    def __init__(self, within_s: float, wanted: Callable[[], bool] = lambda: True) -> None:
        self._at, self._wanted = time.monotonic() + within_s, wanted

    @property
    def wanted(self) -> bool:
        return self._wanted()

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._at or not self._wanted()

    @property
    def left_s(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def within(self, within_s: float) -> Deadline:
        """A deadline that begins now, with the same condition."""
        return Deadline(within_s, self._wanted)

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition; False if the deadline came first."""
        while not condition():
            if self.over:
                return False
            time.sleep(_POLL_S)
        return True


# ---- starting


def program_of(module: str) -> str:
    """Python code for `-c` that calls the module's `main(config)`, with the starter's sys.path."""
    return (
        "import json, sys\n"
        "config = json.loads(sys.argv[1])\n"
        'sys.path[:] = config["path"]\n'
        f"from {module} import main\n"
        "sys.exit(main(config))\n"
    )


def command_of(program: str, config: Mapping[str, Any]) -> list[str]:
    """The command that runs `program`, see `program_of`, in isolated mode.

    The present folder is not on its path: it may have been deleted, and a daemon serves others.
    """
    path = [os.path.abspath(entry) for entry in sys.path if entry]  # noqa: PTH100
    return [sys.executable, "-I", "-c", program, json.dumps({**config, "path": path})]


class DaemonRefused(Exception):
    """A daemon could not start; the text is the last line of its output."""


def start_daemon(
    program: str,
    config: Mapping[str, Any],
    *,
    timeout_s: float,
) -> bool:
    """Start a daemon, which holds its lock when this returns; False if another was faster.

    It gets neither our working directory nor secrets of our environment; `config` is an argument,
    which all users of the machine can see. DaemonRefused if it ends with an error; OSError and
    subprocess.TimeoutExpired as `run` does.
    """
    done = subprocess.run(  # noqa: S603
        command_of(program, config),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={
            name: value
            for name, value in os.environ.items()
            if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
        },
        cwd="/",
        timeout=timeout_s,
        check=False,
    )
    if done.returncode not in {0, ANOTHER_IS_FASTER}:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise DaemonRefused(reason or f"code {done.returncode}")
    return done.returncode == 0


# ---- in the daemon


class Daemon(ABC):
    """The owner of a data directory, for as long as it holds its lock."""

    def __init__(self, home: Path, lock: str, log: str) -> None:
        self.home, self.log = home, home / log
        self.lock_path = home.absolute() / lock
        self.lock = open_lock(home / lock)

    @abstractmethod
    def on_lock_taken(self) -> None:
        """Prepare what must be ready when the starter returns, such as the socket."""

    @abstractmethod
    def run(self) -> int:
        """Work, detached, until the end; the exit code."""

    def take_over(self) -> bool:
        """Take the lock; False if another has it."""
        if not Deadline(_OTHERS_TEST_S).until(lambda: try_lock(self.lock, fcntl.LOCK_EX)):
            return False
        os.ftruncate(self.lock, 0)
        self.on_lock_taken()
        return True

    def detach(self) -> None:
        """Continue in a forked child with a session of its own, with the locks and sockets."""
        if self.log.is_file() and self.log.stat().st_size > _LARGEST_LOG:
            self.log.replace(self.log.with_suffix(".log.old"))
        output = open_own(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if os.fork():
            os._exit(0)
        os.pwrite(self.lock, str(os.getpid()).encode(), 0)
        os.setsid()
        os.umask(0o077)
        for target in (1, 2):
            os.dup2(output, target)
        os.close(output)

    def still_ours(self) -> bool:
        """Whether our lock is still the file that others test."""
        try:
            present = self.lock_path.lstat()
        except OSError:
            return False
        return os.path.samestat(present, os.fstat(self.lock))


def run_daemon(make: Callable[[dict[str, Any]], Daemon], config: Mapping[str, Any]) -> int:
    """Run a daemon in this process, detached from its starter; the exit code.

    Its `home` is the working directory: the path may lead elsewhere in the next moment, if another
    user can rename a folder above it.
    """
    try:
        os.chdir(config["home"])
        check_folder(Path(), config["home"])
        daemon = make({**config, "home": ""})
        if not daemon.take_over():
            return ANOTHER_IS_FASTER
        daemon.detach()
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        print(what, file=sys.stderr)  # noqa: T201  the starter reads it
        return 1
    return daemon.run()
