"""The parent's view of one child that reads documents: the line to it, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import spawn

import msgspec

from penstock.pipelines.documents.parsing import wire
from penstock.queues.child import max_rss_kb
from penstock.queues.child_process import Ending, open_pidfd

__all__ = ["Ended", "Garbage", "ParserProcess"]

_CHUNK = 1 << 18
_LOOK_S = 0.02
_DYING_S = 1.0

# The parent's sys.path comes first of all: Penstock itself may have been found through it.
_START = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from penstock.pipelines.documents.parsing.child import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
_KEPT_ENVIRONMENT = ("PATH", "LANG")

_answers: msgspec.msgpack.Decoder[wire.Answer] = msgspec.msgpack.Decoder(wire.Answer)


class Ended(Exception):
    """The child has ended instead of answering."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class Garbage(Exception):
    """The child has said what none of ours would say; it has been killed."""


class ParserProcess:
    """One child. It lives by callbacks of the event loop: no tasks, no threads.

    Its environment has no secrets, and it holds no descriptor but its end of the line and the file
    that it reads. Every end is a SIGKILL to its group: it has nothing to tidy up.
    """

    def __init__(self, setup: wire.Setup, largest_body: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._largest_body = largest_body
        self.ocr = setup.ocr
        self.parts = self.resident_kb = self.first_resident_kb = self._inherited_kb = 0
        self.dying = False
        """It has hung up, or it was killed."""
        self.ended: asyncio.Future[Ending] = self._loop.create_future()
        self._answer: asyncio.Future[wire.Answer] | None = None
        self._received = bytearray()
        self._next_look: asyncio.TimerHandle | None = None
        self._last_moment: asyncio.TimerHandle | None = None
        self._process, self._line = _start()
        self.pid = self._process.pid
        self._pidfd = open_pidfd(self.pid)
        if self._pidfd is None:
            self._look_later()
        else:
            self._loop.add_reader(self._pidfd, self._look)
        self._loop.add_reader(self._line, self._on_readable)
        self._setup = wire.frame(setup)

    async def ready(self, within_s: float) -> wire.Ready:
        """Wait until it can take orders; once, before the first one."""
        answer = await self._ask(lambda: self._line.send(self._setup), within_s)
        if not isinstance(answer, wire.Ready):
            raise self._is_garbage("an answer before the first question")
        self.resident_kb = self.first_resident_kb = answer.resident_kb
        self._inherited_kb = answer.peak_kb
        return answer

    async def read(self, order: bytes, file: int, within_s: float) -> wire.Read | wire.Refused:
        """Have a part read.

        After any exception, TimeoutError and a cancellation among them, the child is dead or dying.
        """
        self.parts += 1
        answer = await self._ask(lambda: socket.send_fds(self._line, (order,), (file,)), within_s)
        if isinstance(answer, wire.Ready):
            raise self._is_garbage("ready when it already was")
        if isinstance(answer, wire.Read):
            self.resident_kb = answer.resident_kb
        return answer

    def kill(self) -> None:
        """End it and what it has started."""
        self.dying = True
        if not self.ended.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):  # the group is made a moment after the process
                os.kill(self.pid, signal.SIGKILL)  # ours until it is waited for, and only we do

    async def _ask(self, send: Callable[[], int], within_s: float) -> wire.Answer:
        if self.ended.done():
            raise Ended(self.ended.result())
        self._answer = answer = self._loop.create_future()
        # A timer instead of asyncio.timeout: it costs a third, at thousands of parts a second.
        timer = self._loop.call_later(within_s, self._is_late)
        try:
            with suppress(ConnectionError):  # it is dying, and its end will be told
                send()
            return await answer
        except BaseException:
            self.kill()
            raise
        finally:
            timer.cancel()
            self._answer = None

    def _is_late(self) -> None:
        self._fail(TimeoutError())

    def _is_garbage(self, what: str) -> Garbage:
        self.kill()
        return Garbage(what)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _on_readable(self) -> None:
        if self._read() == 0:
            self._loop.remove_reader(self._line)
            # Its end will tell more. If none comes by itself, it is of no use without a line.
            self.dying = True
            self._last_moment = self._loop.call_later(_DYING_S, self.kill)

    def _read(self) -> int | None:
        """Take what has come: its size, 0 at the end of the line, None if there is nothing."""
        try:
            data = self._line.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        received = self._received
        received += data
        if len(received) < wire.HEADER.size:
            return len(data)
        length = wire.HEADER.unpack_from(received)[0]
        end = wire.HEADER.size + length
        if self._answer is None or length > self._largest_body or len(received) > end:
            self._fail(self._is_garbage("more than an answer"))
            return 0
        if len(received) == end:
            self._received = bytearray()
            self._on_answer(memoryview(received)[wire.HEADER.size :])
        return len(data)

    def _on_answer(self, body: memoryview) -> None:
        try:
            answer = _answers.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(self._is_garbage(str(error)[:200]))
        else:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(answer)

    def _look(self) -> None:
        """See whether it has ended."""
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            self._on_end(Ending(None, None, None))
            return
        if not pid:
            self._look_later()
            return
        code = os.waitstatus_to_exitcode(status)
        peak_kb = max_rss_kb(usage) if max_rss_kb(usage) > self._inherited_kb else None
        self._on_end(Ending(-code if code < 0 else None, code if code >= 0 else None, peak_kb))

    def _look_later(self) -> None:
        if self._pidfd is None:
            self._next_look = self._loop.call_later(_LOOK_S, self._look)

    def _on_end(self, ending: Ending) -> None:
        while self._read():
            """What it said before it died still counts."""
        if self.ocr:  # the others can start nothing
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what it has left behind
        self._process.returncode = 0  # Popen need not wait for it
        for timer in (self._next_look, self._last_moment):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._line)
        self._line.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self.ended.set_result(ending)
        self._fail(Ended(ending))


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    # As multiprocessing would start it: the same interpreter with the same flags.
    like_this = spawn.get_command_line()
    interpreter = like_this[: like_this.index("-c")]
    environ = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    with theirs:
        line = theirs.fileno()
        arguments = (str(line), str(os.getpid()), *sys.path)
        try:
            process = subprocess.Popen(  # noqa: S603  ourselves
                (*interpreter, "-c", _START, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environ,
                pass_fds=(line,),
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours
