"""The program of a child process that reads documents for its parent; see `parsers`.

It is the part that a file may take over. So it has no secrets, opens nothing by name, reaches no
network, and ends when a limit is passed or its parent hangs up.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Never, TypeVar

import msgspec

from penstock.pipelines.documents.parsing import fences, wire
from penstock.queues.child import end_with_parent, max_rss_kb

__all__ = ["main"]

_REQUEST: Final = 1 << 16
_RESERVE: Final = 4 << 20
_PAGE_KB: Final = resource.getpagesize() // 1024

M = TypeVar("M")
_CarryOut = Callable[[wire.Order, int], wire.Read | wire.Refused]


def main(descriptor: int, parent: int) -> None:
    """Serve `parent` over the socket `descriptor` until it hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent alone decides, by SIGKILL or the line
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    line = socket.socket(fileno=descriptor)
    line.set_inheritable(False)
    with suppress(EOFError, ConnectionError):
        _Server(line, parent).serve()


class _Server:
    def __init__(self, line: socket.socket, parent: int) -> None:
        self._line, self._parent = line, parent
        self._statm = _open_statm()
        # Held until memory runs out: then there is some left to say so.
        self._reserve: bytearray | None = bytearray(_RESERVE)

    def serve(self) -> Never:
        setup, _ = self._receive(msgspec.msgpack.Decoder(wire.Setup))
        try:
            # Before the fences: they keep files from being opened.
            from penstock.pipelines.documents.parsing.reading import carry_out  # noqa: PLC0415
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            problem = f"{type(error).__name__}: {str(error)[:300]}"
            self._line.sendall(wire.frame(wire.Ready(0, 0, (), problem)))
            raise EOFError from None
        held = fences.raise_all(setup)
        end_with_parent(self._parent, self._line)  # after them: new rights make it forgotten
        self._line.sendall(wire.frame(wire.Ready(self._resident_kb(), _peak_kb(), held)))

        orders = msgspec.msgpack.Decoder(wire.Order)
        while True:
            order, file = self._receive(orders)
            if file is None:
                raise EOFError
            fences.allow_cpu(setup.cpu_s)
            try:
                self._line.sendall(self._answer(carry_out, order, file))
            except MemoryError:
                self._reserve = None
                reason = "the document needs more memory than a parser may have"
                refused = wire.Refused("memory", "ERR_OUT_OF_MEMORY", reason)
                self._line.sendall(wire.frame(refused))

    def _answer(self, carry_out: _CarryOut, order: wire.Order, file: int) -> bytes:
        try:
            answer = carry_out(order, file)
        finally:
            os.close(file)  # before the answer: whoever has it may think that the file is free
        if isinstance(answer, wire.Read):
            answer = msgspec.structs.replace(answer, resident_kb=self._resident_kb())
        try:
            framed = wire.frame(answer)
        except UnicodeEncodeError:  # halves of characters, which cannot be stored either
            reason = "the text of the document is no valid Unicode"
            return wire.frame(wire.Refused("parse", "ERR_PARSE_FAILED", reason))
        if len(framed) > wire.largest_body(order.largest_text):
            reason = "the chunks of the document are larger than its text may be"
            return wire.frame(wire.Refused("parse", "ERR_TOO_MUCH_TEXT", reason))
        return framed

    def _receive(self, decoder: msgspec.msgpack.Decoder[M]) -> tuple[M, int | None]:
        data, files, _, _ = socket.recv_fds(self._line, _REQUEST, 1)
        received = bytearray(data)
        while received and len(received) < wire.HEADER.size:
            received += self._more()
        if not received:
            raise EOFError
        end = wire.HEADER.size + wire.HEADER.unpack_from(received)[0]
        while len(received) < end:
            received += self._more()
        return decoder.decode(memoryview(received)[wire.HEADER.size :]), next(iter(files), None)

    def _more(self) -> bytes:
        data = self._line.recv(_REQUEST)
        if not data:
            raise EOFError
        return data

    def _resident_kb(self) -> int:
        if self._statm is None:
            return 0
        return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE_KB


def _peak_kb() -> int:
    return max_rss_kb(resource.getrusage(resource.RUSAGE_SELF))


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
