"""The parent's view of its child processes: starting them, the connection, their end, a pool."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import spawn
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.processes.in_child import max_rss_kb

__all__ = ["Child", "Ending", "IdleChildren", "all_gone", "program_of", "signal_name"]

_CHUNK: Final = 1 << 18
_MOST_CHUNKS: Final = 64

# Where the kernel does not report a child's end we poll: rarely, and often when it is due.
_POLL_S: Final = 0.5
_POLL_OFTEN_S: Final = 0.01


class Ending(NamedTuple):
    """How a process ended: by a signal or with an exit code; neither if not known."""

    signal: int | None
    exit_code: int | None
    max_rss_kb: int | None
    """Peak resident memory in KiB, if known."""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def program_of(module: str) -> str:
    """Python code for `-c` that calls the module's `main(descriptor, parent)`.

    It first sets the parent's sys.path, by which Penstock itself may have been found.
    """
    return (
        "import sys; sys.path[:] = sys.argv[3:]; "
        f"from {module} import main; "
        "main(int(sys.argv[1]), int(sys.argv[2]))"
    )


class Child(ABC):
    """One child process, connected by a socket pair and driven by callbacks of the event loop.

    It is not waited for through asyncio, which needs a thread on Python 3.11 and loses the
    resource usage.
    """

    def __init__(self, program: str, *, kept_environ: Sequence[str] | None = None) -> None:
        """Start Python with `program`, see `program_of`; OSError if the system cannot.

        With `kept_environ` it gets these variables only, no output and no working directory.
        """
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ending] = self._loop.create_future()
        self.inherited_kb = 0
        """Its peak memory at its start: on Linux inherited from the parent."""
        self.reported_peak_kb = 0
        self._unsent = memoryview(b"")
        self._ends_soon = False
        self._next_poll: asyncio.TimerHandle | None = None
        self._process, self.connection = _start(program, kept_environ)
        self.pid = self._process.pid
        self._pidfd = _open_pidfd(self.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._check)
        self._loop.add_reader(self.connection, self._on_readable)
        self._poll_later()

    @abstractmethod
    def on_data(self, data: bytes) -> None:
        """Called with received bytes, also with those sent before it died."""

    @abstractmethod
    def on_hang_up(self) -> None:
        """Called when it has closed the connection; it should end."""

    @abstractmethod
    def on_end(self) -> None:
        """Called when it has ended; `ended` has the result."""

    def send(self, data: bytes) -> None:
        """Send as soon as it reads."""
        self._unsent = memoryview(bytes(self._unsent) + data)
        self._loop.add_writer(self.connection, self._on_writable)

    def hang_up(self) -> None:
        """Close our direction of the connection."""
        self._stop_sending()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it and what it has started."""
        if not self.ended.done():
            self.signal_group(signal.SIGKILL)
            with suppress(ProcessLookupError):  # the group is made a moment after the process
                os.kill(self.pid, signal.SIGKILL)  # the id is ours until we wait for it
            self.expect_end()

    def signal_group(self, number: int) -> None:
        """Signal its process group: the process and what it has started."""
        # EPERM is macOS's answer for a group of dead processes.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def expect_end(self) -> None:
        """Poll often from now on: its end is due."""
        self._ends_soon = True
        self._poll_later()

    # ---- the connection

    def _on_writable(self) -> None:
        try:
            sent = self.connection.send(self._unsent[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # it is dying
            self._stop_sending()
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._stop_sending()

    def _stop_sending(self) -> None:
        self._unsent = memoryview(b"")
        self._loop.remove_writer(self.connection)

    def _on_readable(self) -> None:
        if self._read() == 0:
            self._loop.remove_reader(self.connection)
            self.expect_end()
            self.on_hang_up()

    def _read(self) -> int | None:
        """Receive once: the size, 0 at the end of the stream, None if there is nothing."""
        try:
            data = self.connection.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        if data:
            self.on_data(data)
        return len(data)

    # ---- the end

    def _check(self) -> None:
        """Wait for it without blocking."""
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # other code has waited for it
            self._finish(None, None)
            return
        if pid:
            self._finish(os.waitstatus_to_exitcode(status), usage)
        else:
            self._poll_later()

    def _poll_later(self) -> None:
        if self._pidfd is None and not self.ended.done():
            if self._next_poll is not None:
                self._next_poll.cancel()
            delay_s = _POLL_OFTEN_S if self._ends_soon else _POLL_S
            self._next_poll = self._loop.call_later(delay_s, self._check)

    def _finish(self, code: int | None, usage: resource.struct_rusage | None) -> None:
        # Receive what it sent before it died: no more than the socket holds, as a process that it
        # has started may still write.
        for _ in range(_MOST_CHUNKS):
            if not self._read():
                break
        self._process.returncode = 0 if code is None else code  # Popen need not wait for it
        if self._next_poll is not None:
            self._next_poll.cancel()
        self._stop_sending()
        self._loop.remove_reader(self.connection)
        self.connection.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)

        peak_kb = self.reported_peak_kb
        if usage is not None and max_rss_kb(usage) > self.inherited_kb:
            peak_kb = max_rss_kb(usage)
        by_signal = -code if code is not None and code < 0 else None
        self.ended.set_result(Ending(by_signal, None if by_signal else code, peak_kb or None))
        self.on_end()


async def all_gone(children: Iterable[Child]) -> None:
    """Return when all have ended. A cancellation kills them and is raised afterwards."""
    children = tuple(children)
    cancelled: asyncio.CancelledError | None = None
    while living := [child.ended for child in children if not child.ended.done()]:
        try:
            await asyncio.wait(living)
        except asyncio.CancelledError as error:
            cancelled = error
            for child in children:
                child.kill()
    if cancelled is not None:
        raise cancelled


C = TypeVar("C", bound=Child)


class IdleChildren(Generic[C]):
    """The children of a pool: living, idle, and how many may work at once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = asyncio.Semaphore(size)
        """Held for each working child."""
        self.living: set[C] = set()
        self.is_open = False
        self._idle: list[C] = []

    @property
    def pids(self) -> frozenset[int]:
        """The living processes."""
        return frozenset(child.pid for child in self.living)

    def add(self, child: C) -> None:
        """Add a child that was started, until it ends."""
        self.living.add(child)
        child.ended.add_done_callback(lambda _: self._forget(child))

    def take(self, fits: Callable[[C], bool] = lambda _: True, *, oldest: bool = False) -> C | None:
        """The idle child that was used last (others can be swapped out), or the oldest."""
        for child in self._idle if oldest else reversed(self._idle):
            if fits(child):
                self._idle.remove(child)
                return child
        return None

    def put_back(self, child: C) -> None:
        if child in self.living:
            self._idle.append(child)

    def _forget(self, child: C) -> None:
        self.living.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    async def close(self, end: Callable[[C], None]) -> None:
        """Call `end` for all children; returns when they have ended."""
        self.is_open = False
        self._idle.clear()
        children = tuple(self.living)
        for child in children:
            end(child)
        await all_gone(children)


def _start(
    program: str, kept_environ: Sequence[str] | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    sealed = kept_environ is not None
    output = subprocess.DEVNULL if sealed else None
    with theirs:
        descriptor = theirs.fileno()
        arguments = (str(descriptor), str(os.getpid()), *sys.path)
        try:
            process = subprocess.Popen(  # noqa: S603  ourselves
                (*_interpreter(), "-c", program, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={n: os.environ[n] for n in kept_environ if n in os.environ} if sealed else None,
                cwd="/" if sealed else None,
                pass_fds=(descriptor,),
                start_new_session=True,  # without Ctrl-C, and as a group to kill
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def _interpreter() -> Sequence[str]:
    """The same interpreter with the same flags, as multiprocessing starts it."""
    command = spawn.get_command_line()
    return command[: command.index("-c")]


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends; None if not supported."""
    if sys.platform == "linux":
        with suppress(OSError):  # an old kernel, or a sandbox
            return os.pidfd_open(pid)
    return None
