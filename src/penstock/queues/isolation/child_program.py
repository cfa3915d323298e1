"""The program of a child process that runs functions for its parent.

Parent and child are two processes of one user, joined by a socket pair that no other process can
reach. Arguments, results and exceptions are pickled for this way alone; no pickle is ever stored.

Each message is a frame: kind, peak memory, body. The parent sends one `ChildSetup`, and for each
call a `FunctionCall` and the arguments. The child sends READY once, and for each call BEGUN when
the function is loaded, then DONE or FAILED, with any number of REPORTs in between. When the parent
closes the connection, the child ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import inspect
import pickle
import resource
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

from penstock.processes.frames import frame, receive_frame
from penstock.processes.in_child import end_with_parent, has_hung_up, limit, max_rss_kb

__all__ = ["BEGUN", "DONE", "FAILED", "HEADER", "READY", "REPORT"]
__all__ += ["ChildFailure", "ChildSetup", "FunctionCall", "context", "main", "message", "report"]

HEADER: Final = struct.Struct(">cQ")
"""Kind, the child's peak memory in KiB (0: unknown)."""

SETUP, CALL, ARGUMENTS = b"s", b"c", b"a"
READY, BEGUN, REPORT, DONE, FAILED = b"r", b"b", b"p", b"d", b"f"

_RESERVE = 4 << 20
_ENDED_BY_PARENT = 128 + signal.SIGTERM

_context: object = None
_server: _Server | None = None


class ChildSetup(NamedTuple):
    """What a child has to know before its first call."""

    argv: list[str]
    memory_mb: int | None


class FunctionCall(NamedTuple):
    """A function to call. `main` says where the parent's main module is, if the call needs it."""

    module: str
    qualname: str
    main: dict[str, str] | None
    context: object


class ChildFailure(NamedTuple):
    """An exception on its way to the parent; `pickled` is None if it cannot be pickled."""

    pickled: bytes | None
    text: str
    trace: str


def context() -> object:
    """What the parent gave with the call that runs now; None if nothing, or in no child."""
    return _context


def report(content: object) -> bool:
    """Send something to the parent while its call runs, from any thread; False in no such call."""
    if _server is None or _context is None:
        return False
    _server.send(REPORT, pickle.dumps(content))
    return True


def message(kind: bytes, body: bytes = b"", peak_kb: int = 0) -> bytes:
    """One message as it is sent."""
    return frame(HEADER.pack(kind, peak_kb), body)


def main(descriptor: int, parent: int) -> None:
    """Serve `parent` over the socket `descriptor` until it hangs up."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)  # what a function starts must not keep it open
    _take_signals(connection)
    end_with_parent(parent, connection)
    with suppress(RuntimeError, AttributeError, ValueError, OSError):  # no usable stderr
        faulthandler.enable()  # a crash says where, and still ends the process by its signal
    global _server  # noqa: PLW0603  a child serves one parent
    _server = _Server(connection)
    with suppress(EOFError, ConnectionError):
        _server.serve()


def _take_signals(connection: socket.socket) -> None:
    """Let the parent alone decide when this process ends.

    Ctrl-C and a service manager's SIGTERM may reach every process of a worker, but the worker wants
    its jobs to finish. So SIGTERM counts only after the parent has hung up, which it does before
    it sends one. Then it ends the function as `sys.exit` would: its `finally` blocks run.
    """

    def on_terminate(_signal: int, _frame: FrameType | None) -> None:
        if has_hung_up(connection):
            sys.exit(_ENDED_BY_PARENT)

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        """Nothing. Programs that a function starts would inherit an ignored signal, but not us."""

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_terminate)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent's threads may have blocked some


class _Server:
    """Runs calls, one at a time, in the main thread: there signals and all libraries work."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._has_main = False
        # Freed when memory runs out. Once it is used the parent sends no further call.
        self._reserve: bytearray | None = bytearray(_RESERVE)

    def serve(self) -> Never:
        setup: ChildSetup = pickle.loads(self._receive())  # noqa: S301  from our parent
        sys.argv = setup.argv
        memory_mb = setup.memory_mb
        if memory_mb is not None and not limit(resource.RLIMIT_AS, memory_mb << 20, hard=False):
            sys.exit(f"the system does not accept a memory limit of {memory_mb} MiB")
        # Includes the parent's own peak, which Linux hands down to whom it starts.
        inherited_kb = max_rss_kb(resource.getrusage(resource.RUSAGE_SELF))
        self.send(READY, pickle.dumps(inherited_kb))
        while True:
            call: FunctionCall = pickle.loads(self._receive())  # noqa: S301  as above
            kind, body = self._carry_out(call, self._receive())
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, ValueError, OSError):  # none, closed, broken
                    stream.flush()  # what was printed is seen now, and survives a later crash
            self.send(kind, body)

    def _carry_out(self, call: FunctionCall, arguments: memoryview) -> tuple[bytes, bytes]:
        global _context  # noqa: PLW0603  a child does one thing at a time
        _context = call.context
        try:
            function = self._find(call)
            args, kwargs = pickle.loads(arguments)  # noqa: S301  as above
            if has_hung_up(self._connection):
                sys.exit(_ENDED_BY_PARENT)  # the signal came when it could not yet be understood
            self.send(BEGUN)
            return DONE, _pickled_result(_call(function, args, kwargs))
        except SystemExit:
            raise  # the function may end its process, and the parent reports it
        except BaseException as error:  # noqa: BLE001  the parent raises it
            if isinstance(error, MemoryError):
                self._reserve = None  # else there may be none left to report it
            return FAILED, pickle.dumps(_failure(error))
        finally:
            _context = None

    def _find(self, call: FunctionCall) -> Callable[..., Any]:
        if call.main is not None and not self._has_main:
            from multiprocessing import spawn  # noqa: PLC0415  most calls need none of it

            spawn.prepare(call.main)
            self._has_main = True
        target: Any = importlib.import_module(call.module)
        for name in call.qualname.split("."):
            target = getattr(target, name)
        return getattr(target, "function", target)  # a task stands for its function

    def _receive(self) -> memoryview:
        return memoryview(receive_frame(self._connection))[HEADER.size :]

    def send(self, kind: bytes, body: bytes = b"") -> None:
        with self._sending:
            self._connection.sendall(message(kind, body, _peak_kb()))


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


def _failure(error: BaseException) -> ChildFailure:
    text = "".join(traceback.format_exception_only(error)).strip()
    shown = traceback.format_exception(type(error), error, _users_part(error.__traceback__))
    try:
        pickled = pickle.dumps(error)
    except Exception:  # noqa: BLE001  whatever its own methods raise
        pickled = None
    return ChildFailure(pickled, text, "".join(shown))


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that led to the function."""
    ours = (__file__, str(Path(asyncio.__file__).parent))
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(ours):
        part = part.tb_next
    return part or trace


def _peak_kb() -> int:
    with suppress(OSError, ValueError), Path("/proc/self/status").open("rb") as status:
        for entry in status:
            if entry.startswith(b"VmHWM:"):
                return int(entry.split()[1])
    return 0
