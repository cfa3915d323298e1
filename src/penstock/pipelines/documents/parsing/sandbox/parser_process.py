"""The parent's view of one child that reads documents."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from penstock.pipelines.documents.parsing.sandbox import protocol as wire
from penstock.processes.child import Child, Ending, program_of
from penstock.processes.frames import FrameBuffer, FrameRefused, frame

__all__ = ["InvalidReply", "ParserEnded", "ParserProcess"]

_DYING_S = 1.0
_STOOD_STILL_S = 1.0
_KEPT_ENVIRON = ("PATH", "LANG")
_PROGRAM = program_of("penstock.pipelines.documents.parsing.sandbox.child_program")

_encode = msgspec.msgpack.Encoder().encode
_replies: msgspec.msgpack.Decoder[wire.ParserReply] = msgspec.msgpack.Decoder(wire.ParserReply)


class ParserEnded(Exception):
    """The child has ended without a reply."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class InvalidReply(Exception):
    """The child has sent what our program never sends, and was killed."""


class ParserProcess(Child):
    """A child that reads one part of a document at a time.

    Its environment has no secrets, and its only descriptors are the connection and the file that it
    reads. It has nothing to clean up, so it is always ended by SIGKILL to its group.
    """

    def __init__(self, setup: wire.ParserSetup, largest_body: int) -> None:
        super().__init__(_PROGRAM, kept_environ=_KEPT_ENVIRON)
        self.ocr = setup.ocr
        self.owner: str | None = None
        """Whose documents it reads; None before the first one."""
        self.has_read_others = False
        """It has read another document before the present one."""
        self._document: object = None
        self.parts = self.resident_kb = self.first_resident_kb = 0
        self.missing_fences: Mapping[str, str] = {}
        """By fence, why it does not stand; known when it is ready."""
        self.dying = False
        """It has hung up, or it was killed."""
        self._setup = frame(_encode(setup))
        self._frames = FrameBuffer(largest_body)
        self._reply: asyncio.Future[wire.ParserReply] | None = None
        self._kill_later: asyncio.TimerHandle | None = None

    async def ready(self, within_s: float) -> wire.Ready:
        """Wait until it accepts requests; once, before the first one."""
        reply = await self._ask(lambda: self.connection.send(self._setup), within_s)
        if not isinstance(reply, wire.Ready):
            raise self._invalid("a reply before the first request")
        self.resident_kb = self.first_resident_kb = reply.resident_kb
        self.inherited_kb = reply.peak_kb
        self.missing_fences = reply.missing
        return reply

    def assign(self, owner: str, document: object) -> None:
        """Have it read a part of this document next."""
        self.owner = owner
        if self._document not in (None, document):
            self.has_read_others = True
        self._document = document

    async def read(
        self, request: wire.PartRequest, file: int, within_s: float
    ) -> wire.Read | wire.Refused:
        """Read a part.

        After any exception, TimeoutError and a cancellation among them, the child is dead or dying.
        """
        self.parts += 1
        data = frame(_encode(request))
        reply = await self._ask(
            lambda: socket.send_fds(self.connection, (data,), (file,)), within_s
        )
        if isinstance(reply, wire.Ready):
            raise self._invalid("ready when it already was")
        if isinstance(reply, wire.Read):
            self.resident_kb = reply.resident_kb
        return reply

    def kill(self) -> None:
        self.dying = True
        super().kill()

    def on_data(self, data: bytes) -> None:
        try:
            bodies = self._frames.feed(data)
        except FrameRefused as error:
            self._fail(self._invalid(str(error)))
            return
        if self._reply is None or len(bodies) > 1 or (bodies and self._frames.pending):
            self._fail(self._invalid("more than a reply"))
        elif bodies:
            self._on_reply(bodies[0])

    def on_hang_up(self) -> None:
        # Its end will show the reason. Without a connection it is useless, so it must end soon.
        self.dying = True
        self._kill_later = self._loop.call_later(_DYING_S, self._end_silent)

    def on_end(self) -> None:
        self.dying = True
        if self.ocr:  # the others can start nothing
            self.signal_group(signal.SIGKILL)  # what it has started
        if self._kill_later is not None:
            self._kill_later.cancel()
        self._fail(ParserEnded(self.ended.result()))

    async def _ask(self, send: Callable[[], int], within_s: float) -> wire.ParserReply:
        if self.ended.done():
            raise ParserEnded(self.ended.result())
        self._reply = reply = self._loop.create_future()
        # A timer costs a third of asyncio.timeout, at thousands of parts a second.
        self._expire_in(within_s)
        try:
            with suppress(ConnectionError):  # it is dying, and its end will follow
                send()
            return await reply
        except BlockingIOError:
            raise self._invalid("it answers requests that it has not read") from None
        except BaseException:
            self.kill()
            raise
        finally:
            self._timer.cancel()
            self._reply = None

    def _expire_in(self, within_s: float) -> None:
        due = self._loop.time() + within_s
        self._timer = self._loop.call_later(within_s, self._expire, due, within_s)

    def _expire(self, due: float, within_s: float) -> None:
        if self._loop.time() - due > _STOOD_STILL_S:
            # This process was stopped, and the child may have waited for it to read the reply.
            self._expire_in(within_s)
        else:
            self._fail(TimeoutError())

    def _on_reply(self, body: bytes) -> None:
        try:
            reply = _replies.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(self._invalid(str(error)[:200]))
        else:
            if self._reply is not None and not self._reply.done():
                self._reply.set_result(reply)

    def _end_silent(self) -> None:
        self._fail(self._invalid("it closed the connection and did not end"))

    def _invalid(self, what: str) -> InvalidReply:
        self.kill()
        return InvalidReply(what)

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
