"""The parent's view of one child process: the line to it, and its end."""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import spawn
from typing import NamedTuple

from penstock.queues import child as wire

__all__ = ["Answer", "Child", "Ending", "all_gone", "open_pidfd"]

LOAD_S = 120.0
"""How long a child may take to start and to import the function's module."""

_CHUNK = 1 << 20

# Where the kernel does not tell of a child's end, we look: seldom, and often when it is due.
_LOOK_S = 0.5
_LOOK_OFTEN_S = 0.01

# The parent's sys.path comes first of all: Penstock itself may have been found through it.
_START = (
    "import sys; sys.path[:] = sys.argv[3:]; from penstock.queues.child import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)


class Answer(NamedTuple):
    """What a child said of a call."""

    kind: bytes
    body: bytes


class Ending(NamedTuple):
    """How a process ended; see `ChildDied`."""

    signal: int | None
    exit_code: int | None
    max_rss_kb: int | None


class Child:
    """One child process. It lives by callbacks of the event loop: no tasks, no threads.

    We wait for it ourselves and not through asyncio: that would need a thread on Python 3.11, and
    lose what the process used.
    """

    def __init__(self, *, memory_mb: int | None, grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.calls = 0
        self.at_work = self.began = self.leaving = False
        self.ended: asyncio.Future[Ending] = self._loop.create_future()
        self._grace_s = grace_s
        self._begun = asyncio.Event()
        self._answer: asyncio.Future[Answer | None] = self._loop.create_future()
        self._on_report: Callable[[object], None] | None = None
        self._received = bytearray()
        self._to_send = memoryview(b"")
        self._inherited_kb = self._peak_kb = 0
        self._escalation: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._process, self._line = _start()
        self.pid = self._process.pid
        self._pidfd = open_pidfd(self.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._look)
        self._loop.add_reader(self._line, self._on_readable)
        self._look_in(_LOOK_S)
        self._send(wire.frame(wire.SETUP, pickle.dumps(wire.Setup(sys.argv, memory_mb))))

    async def call(
        self,
        request: bytes,
        timeout_s: float | None,
        on_report: Callable[[object], None] | None = None,
    ) -> Answer | Ending:
        """Send an order. `began` tells whether its function was reached.

        Where this raises, TimeoutError or for a cancellation, the process has ended.
        """
        self.calls += 1
        self.at_work, self.began, self._on_report = True, False, on_report
        self._begun = asyncio.Event()
        self._answer = self._loop.create_future()
        late = f"the function was not loaded within {LOAD_S:g} s"
        try:
            if not self.ended.done():
                self._send(request)
                async with asyncio.timeout(LOAD_S):
                    await self._begun.wait()
                late = f"the call took longer than {timeout_s} s"
                async with asyncio.timeout(timeout_s):
                    if (answer := await self._answer) is not None:
                        return answer
        except TimeoutError:
            await self._cut_short()
            raise TimeoutError(f"{late}, so its process was ended") from None
        except asyncio.CancelledError:
            await self._cut_short()
            raise
        return self.ended.result()

    def leave(self) -> None:
        """Let it end by itself, if that does not take too long."""
        if not self.leaving and not self.ended.done():
            self._hang_up()
            self._unless_ended(self.terminate)

    def terminate(self) -> None:
        """End it, with time for its last words."""
        if not self.ended.done():
            self._hang_up()  # first: a child heeds the signal only then
            self._signal(signal.SIGTERM)
            self._unless_ended(self.kill)

    def kill(self) -> None:
        if not self.ended.done():
            self._signal(signal.SIGKILL)

    async def _cut_short(self) -> None:
        self.terminate()
        await all_gone([self])

    def _signal(self, number: int) -> None:
        # The whole group: what it has started is of no use without it. EPERM is what macOS says of
        # a group of the dead.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _unless_ended(self, step: Callable[[], None]) -> None:
        if self._escalation is not None:
            self._escalation.cancel()
        self._escalation = self._loop.call_later(self._grace_s, step)
        self._look_in(_LOOK_OFTEN_S)

    def _hang_up(self) -> None:
        self.leaving = True
        self._stop_sending()
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def _send(self, data: bytes) -> None:
        self._to_send = memoryview(bytes(self._to_send) + data)
        self._loop.add_writer(self._line, self._on_writable)

    def _on_writable(self) -> None:
        try:
            sent = self._line.send(self._to_send[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # it is dying, which we notice otherwise
            self._stop_sending()
            return
        self._to_send = self._to_send[sent:]
        if not self._to_send:
            self._stop_sending()

    def _stop_sending(self) -> None:
        self._to_send = memoryview(b"")
        self._loop.remove_writer(self._line)

    def _on_readable(self) -> None:
        if self._read() == 0:
            # It is dying, or a function has closed what it should not: no answer can come.
            self._loop.remove_reader(self._line)
            if self._escalation is None:
                self._unless_ended(self.terminate)

    def _read(self) -> int | None:
        """Take what has come: its size, 0 at the end of the line, None if there is nothing."""
        try:
            data = self._line.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        self._received += data
        while len(self._received) >= wire.HEADER.size:
            kind, peak_kb, length = wire.HEADER.unpack_from(self._received)
            end = wire.HEADER.size + length
            if len(self._received) < end:
                break
            body = bytes(self._received[wire.HEADER.size : end])
            del self._received[:end]
            self._peak_kb = max(self._peak_kb, peak_kb)
            self._on_message(kind, body)
        return len(data)

    def _on_message(self, kind: bytes, body: bytes) -> None:
        if kind == wire.READY:
            self._inherited_kb = pickle.loads(body)  # noqa: S301  from our own child
            return
        self._begun.set()
        if kind == wire.BEGUN:
            self.began = True
        elif kind == wire.REPORT:
            if self._on_report is not None:
                self._on_report(pickle.loads(body))  # noqa: S301  as above
        elif not self._answer.done():
            self.at_work = False
            self._answer.set_result(Answer(kind, body))

    def _look(self) -> None:
        """See whether it has ended."""
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            self._on_end(None, None)
            return
        if pid:
            self._on_end(os.waitstatus_to_exitcode(status), usage)
        else:
            self._look_in(_LOOK_S if self._escalation is None else _LOOK_OFTEN_S)

    def _look_in(self, delay_s: float) -> None:
        if self._pidfd is None:
            if self._next_look is not None:
                self._next_look.cancel()
            self._next_look = self._loop.call_later(delay_s, self._look)

    def _on_end(self, code: int | None, usage: resource.struct_rusage | None) -> None:
        while self._read():
            """What it said before it died still counts."""
        if self.at_work:
            self._signal(signal.SIGKILL)  # what it has started, and left behind
        self._process.returncode = 0 if code is None else code  # Popen need not wait for it
        self._let_go()
        self._begun.set()
        if not self._answer.done():
            self._answer.set_result(None)

        peak_kb = self._peak_kb
        if usage is not None and wire.max_rss_kb(usage) > self._inherited_kb:
            peak_kb = wire.max_rss_kb(usage)
        by_signal = code is not None and code < 0
        self.ended.set_result(
            Ending(
                signal=-code if code is not None and by_signal else None,
                exit_code=None if by_signal else code,
                max_rss_kb=peak_kb or None,
            )
        )

    def _let_go(self) -> None:
        for timer in (self._escalation, self._next_look):
            if timer is not None:
                timer.cancel()
        self._stop_sending()
        self._loop.remove_reader(self._line)
        self._line.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)


async def all_gone(children: Sequence[Child]) -> None:
    """Return when all have ended. A cancellation makes that quicker, and counts afterwards."""
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


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    # As multiprocessing would start it: the same interpreter with the same flags.
    like_this = spawn.get_command_line()
    interpreter = like_this[: like_this.index("-c")]
    with theirs:
        line = theirs.fileno()
        arguments = (str(line), str(os.getpid()), *sys.path)
        try:
            process = subprocess.Popen(  # noqa: S603  ourselves
                (*interpreter, "-c", _START, *arguments),
                stdin=subprocess.DEVNULL,
                pass_fds=(line,),
                start_new_session=True,  # Ctrl-C is for the parent; and a group, to end as a whole
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def open_pidfd(pid: int) -> int | None:
    """What the kernel makes readable when a process ends; None where it has no such thing."""
    if sys.platform == "linux":
        with suppress(OSError):  # an old kernel, or a sandbox
            return os.pidfd_open(pid)
    return None
