"""The program of a child process that reads documents for its parent.

A malicious file may take it over. So it has no secrets, opens nothing by name, reaches no network,
and ends when a limit is passed or its parent closes the connection.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Never

import msgspec

from penstock.pipelines.documents.parsing.sandbox import fences
from penstock.pipelines.documents.parsing.sandbox import protocol as wire
from penstock.processes.frames import frame, receive_frame, receive_frame_and_file
from penstock.processes.in_child import max_rss_kb

__all__ = ["main"]

_RESERVE: Final = 4 << 20
_PAGE_KB: Final = resource.getpagesize() // 1024

_CarryOut = Callable[[wire.PartRequest, int], wire.Read | wire.Refused]


def main(descriptor: int, parent: int) -> None:
    """Serve `parent` over the socket `descriptor` until it hangs up."""
    # Only the parent ends it, by SIGKILL or by hanging up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    with suppress(EOFError, ConnectionError):
        _Server(connection, parent).serve()


class _Server:
    def __init__(self, connection: socket.socket, parent: int) -> None:
        self._connection, self._parent = connection, parent
        self._statm = _open_statm()
        # Freed when memory runs out, so that the reply can be sent.
        self._reserve: bytearray | None = bytearray(_RESERVE)

    def serve(self) -> Never:
        body = receive_frame(self._connection)
        setup = msgspec.msgpack.decode(body, type=wire.ParserSetup)
        gc.disable()  # imports make objects that stay
        try:
            # Before the fences: they keep files from being opened.
            from penstock.pipelines.documents.parsing.preloading import preload  # noqa: PLC0415
            from penstock.pipelines.documents.parsing.reading import carry_out  # noqa: PLC0415

            preload()
        except Exception as error:  # noqa: BLE001  its output is discarded
            problem = f"{type(error).__name__}: {str(error)[:300]}"
            self._connection.sendall(_framed(wire.Ready(0, 0, {}, problem)))
            raise EOFError from None
        gc.freeze()
        gc.enable()
        missing = fences.raise_all(setup, self._parent, self._connection)
        ready = wire.Ready(self._resident_kb(), _peak_kb(), dict(missing))
        self._connection.sendall(_framed(ready))

        requests = msgspec.msgpack.Decoder(wire.PartRequest)
        while True:
            body, file = receive_frame_and_file(self._connection)
            if file is None:
                raise EOFError
            request = requests.decode(body)
            fences.allow_cpu(setup.cpu_s)
            try:
                self._connection.sendall(self._reply(carry_out, request, file, setup))
            except MemoryError:
                self._reserve = None
                reason = "the document needs more memory than a parser may have"
                refused = wire.Refused("memory", "ERR_OUT_OF_MEMORY", reason)
                self._connection.sendall(_framed(refused))

    def _reply(
        self, carry_out: _CarryOut, request: wire.PartRequest, file: int, setup: wire.ParserSetup
    ) -> bytes:
        try:
            reply = carry_out(request, file)
        finally:
            os.close(file)  # before the reply: the parent may reuse the file then
        if isinstance(reply, wire.Read):
            reply = msgspec.structs.replace(reply, resident_kb=self._resident_kb())
        try:
            framed = _framed(reply)
        except UnicodeEncodeError:  # lone surrogates, which cannot be stored either
            reason = "the text of the document is not valid Unicode"
            return _framed(wire.Refused("parse", "ERR_PARSE_FAILED", reason))
        if len(framed) > wire.largest_body(request.largest_text, setup.memory_bytes):
            reason = "the chunks of the document are larger than its text may be"
            return _framed(wire.Refused("parse", "ERR_TOO_MUCH_TEXT", reason))
        return framed

    def _resident_kb(self) -> int:
        if self._statm is None:
            return 0
        return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE_KB


def _framed(reply: wire.ParserReply) -> bytes:
    return frame(msgspec.msgpack.encode(reply))


def _peak_kb() -> int:
    return max_rss_kb(resource.getrusage(resource.RUSAGE_SELF))


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
