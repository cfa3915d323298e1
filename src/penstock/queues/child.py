"""The program of a child process that runs functions for its parent; see `isolation`.

Parent and child are two processes of one user, joined by a socket pair that nobody else can reach.
Only there do arguments, results and exceptions travel as pickles; nothing pickled is ever stored.

Each message is a header (kind, peak memory, length) and a body. The parent sends one `Setup`, and
for each call an `Order` and the arguments. The child answers READY once, and to each order BEGUN,
when the function is loaded, then DONE or FAILED, with any number of REPORTs in between. The end of
the line asks the child to end.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import inspect
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Never

__all__ = ["BEGUN", "DONE", "FAILED", "HEADER", "READY", "REPORT", "Failure", "Order", "Setup"]
__all__ += ["context", "end_with_parent", "frame", "main", "max_rss_kb", "report"]

HEADER: Final = struct.Struct(">cQQ")
"""Kind, the child's peak memory in KiB (0: unknown), length of the body in bytes."""

SETUP, ORDER, ARGUMENTS = b"s", b"o", b"a"
READY, BEGUN, REPORT, DONE, FAILED = b"r", b"b", b"p", b"d", b"f"

_CHUNK = 1 << 20
_RESERVE = 4 << 20
_PR_SET_PDEATHSIG = 1
_ENDED_BY_PARENT = 128 + signal.SIGTERM

_context: object = None
_server: _Server | None = None


class Setup(NamedTuple):
    """What a child has to know before its first order."""

    argv: list[str]
    memory_mb: int | None


class Order(NamedTuple):
    """A function to call. `main` says where the parent's main module is, if the call needs it."""

    module: str
    qualname: str
    main: dict[str, str] | None
    context: object


class Failure(NamedTuple):
    """An exception on its way to the parent; `pickled` is None if it cannot be pickled."""

    pickled: bytes | None
    text: str
    trace: str


def context() -> object:
    """What the parent gave with the call that runs now; None if nothing, or in no child."""
    return _context


def report(told: object) -> bool:
    """Send something to the parent while its call runs, from any thread; False in no such call."""
    if _server is None or _context is None:
        return False
    _server.send(REPORT, pickle.dumps(told))
    return True


def frame(kind: bytes, body: bytes = b"", peak_kb: int = 0) -> bytes:
    """One message as it goes over the line."""
    return HEADER.pack(kind, peak_kb, len(body)) + body


def max_rss_kb(usage: resource.struct_rusage) -> int:
    """The peak of resident memory in KiB, whose unit is not the same everywhere."""
    return usage.ru_maxrss // 1024 if sys.platform == "darwin" else usage.ru_maxrss


def main(descriptor: int, parent: int) -> None:
    """Serve `parent` over the socket `descriptor` until it hangs up."""
    line = socket.socket(fileno=descriptor)
    line.set_inheritable(False)  # what a function starts must not keep the line open
    _take_signals(line)
    end_with_parent(parent, line)
    with suppress(RuntimeError, AttributeError, ValueError, OSError):  # no usable stderr
        faulthandler.enable()  # a crash says where, and still ends the process by its signal
    global _server  # noqa: PLW0603  a child serves one parent
    _server = _Server(line)
    with suppress(EOFError, ConnectionError):
        _server.serve()


def end_with_parent(parent: int, line: socket.socket, *, by_kernel: bool = True) -> None:
    """Let this process be killed when its parent has died, whatever it does then.

    Linux does so itself; elsewhere a thread watches the line, which works as long as no function
    keeps all threads of Python from running.
    """
    if by_kernel and sys.platform == "linux":
        watched = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0
    else:
        watched = False
    if os.getppid() != parent:
        os._exit(1)  # it died before anybody watched
    if not watched:
        threading.Thread(target=_watch, args=(parent, line), daemon=True).start()


def _watch(parent: int, line: socket.socket) -> None:
    poll = select.poll()
    poll.register(line, 0)  # only for the end
    poll.poll()
    # A parent that closes the line first ended us or waits for our end: then it has the last word.
    while os.getppid() == parent:
        select.select([], [], [], 0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def _take_signals(line: socket.socket) -> None:
    """Let the parent alone decide when this process ends.

    Ctrl-C and a service manager's SIGTERM may reach every process of a worker, but the worker wants
    its jobs to finish. So SIGTERM counts only after the parent has hung up, which it does before
    it sends one. Then it ends the function as `sys.exit` would: its `finally` blocks run.
    """

    def on_terminate(_signal: int, _frame: FrameType | None) -> None:
        if _hung_up(line):
            sys.exit(_ENDED_BY_PARENT)

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        """Nothing. Programs that a function starts would inherit an ignored signal, but not us."""

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_terminate)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent's threads may have blocked some


def _hung_up(line: socket.socket) -> bool:
    try:
        return not line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Server:
    """Takes orders, one at a time, in the main thread: there signals and all libraries work."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._sending = threading.Lock()
        self._has_main = False
        # Held until memory runs out. Once it is used the parent orders nothing more.
        self._reserve: bytearray | None = bytearray(_RESERVE)

    def serve(self) -> Never:
        setup: Setup = pickle.loads(self._receive())  # noqa: S301  from our parent
        sys.argv = setup.argv
        _limit_memory(setup.memory_mb)
        # Includes the parent's own peak, which Linux hands down to whom it starts.
        inherited_kb = max_rss_kb(resource.getrusage(resource.RUSAGE_SELF))
        self.send(READY, pickle.dumps(inherited_kb))
        while True:
            order: Order = pickle.loads(self._receive())  # noqa: S301  as above
            kind, body = self._carry_out(order, self._receive())
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, ValueError, OSError):  # none, closed, broken
                    stream.flush()  # what was printed is seen now, and survives a later crash
            self.send(kind, body)

    def _carry_out(self, order: Order, arguments: bytes) -> tuple[bytes, bytes]:
        global _context  # noqa: PLW0603  a child does one thing at a time
        _context = order.context
        try:
            function = self._find(order)
            args, kwargs = pickle.loads(arguments)  # noqa: S301  as above
            if _hung_up(self._line):
                sys.exit(_ENDED_BY_PARENT)  # the signal came when it could not yet be understood
            self.send(BEGUN)
            return DONE, _pickled_result(_call(function, args, kwargs))
        except SystemExit:
            raise  # the function may end its process, and the parent will say so
        except BaseException as error:  # noqa: BLE001  the parent is told
            if isinstance(error, MemoryError):
                self._reserve = None  # else there may be none left to tell of it
            return FAILED, pickle.dumps(_failure(error))
        finally:
            _context = None

    def _find(self, order: Order) -> Callable[..., Any]:
        if order.main is not None and not self._has_main:
            from multiprocessing import spawn  # noqa: PLC0415  most calls need none of it

            spawn.prepare(order.main)
            self._has_main = True
        found: Any = importlib.import_module(order.module)
        for name in order.qualname.split("."):
            found = getattr(found, name)
        return getattr(found, "function", found)  # a task stands for its function

    def _receive(self) -> bytes:
        _, _, length = HEADER.unpack(self._exactly(HEADER.size))
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            chunk = self._line.recv(min(length - len(data), _CHUNK))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        with self._sending:
            self._line.sendall(frame(kind, body, _peak_kb()))


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outcome = function(*args, **kwargs)
    if not inspect.iscoroutine(outcome):
        return outcome
    with asyncio.Runner() as runner:
        return runner.run(outcome)


def _pickled_result(result: object) -> bytes:
    try:
        return pickle.dumps(result)
    except MemoryError:
        raise
    except Exception as error:
        raise RuntimeError(f"a result of type {type(result).__name__} cannot be pickled") from error


def _failure(error: BaseException) -> Failure:
    text = "".join(traceback.format_exception_only(error)).strip()
    shown = traceback.format_exception(type(error), error, _users_part(error.__traceback__))
    try:
        pickled = pickle.dumps(error)
    except Exception:  # noqa: BLE001  whatever its own methods raise
        pickled = None
    return Failure(pickled, text, "".join(shown))


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that led to the function."""
    ours = (__file__, str(Path(asyncio.__file__).parent))
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(ours):
        part = part.tb_next
    return part or trace


def _limit_memory(memory_mb: int | None) -> None:
    if memory_mb is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_mb << 20
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _peak_kb() -> int:
    with suppress(OSError, ValueError), Path("/proc/self/status").open("rb") as status:
        for entry in status:
            if entry.startswith(b"VmHWM:"):
                return int(entry.split()[1])
    return 0
