"""For child processes: ending with the parent, resource limits, peak memory."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import threading

__all__ = ["end_with_parent", "has_hung_up", "limit", "max_rss_kb", "signal_at_parents_end"]

_PR_SET_PDEATHSIG = 1


def signal_at_parents_end(parent: int, number: int) -> bool:
    """Have the kernel signal this process when its parent ends; False if not supported."""
    watched = False
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415  not needed in parents

        watched = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number) == 0
    if os.getppid() != parent:
        os._exit(1)  # it died before the watch began
    return watched


def end_with_parent(parent: int, connection: socket.socket, *, by_kernel: bool = True) -> None:
    """Have this process killed when its parent has died, whatever it is doing.

    By the kernel on Linux; elsewhere by a thread that watches the connection, which needs Python's
    threads to run.
    """
    if not (by_kernel and signal_at_parents_end(parent, signal.SIGKILL)):
        threading.Thread(target=_watch, args=(parent, connection), daemon=True).start()


def _watch(parent: int, connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, 0)  # only for the end
    poll.poll()
    # A living parent that has closed the connection waits for our end, or will kill us.
    while os.getppid() == parent:
        select.select([], [], [], 0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other side has closed the connection and all it sent was read."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def max_rss_kb(usage: resource.struct_rusage) -> int:
    """Peak resident memory in KiB: `ru_maxrss` is in bytes on macOS."""
    return usage.ru_maxrss // 1024 if sys.platform == "darwin" else usage.ru_maxrss


def limit(which: int, most: int, *, hard: bool = True) -> bool:
    """Lower a resource limit, for good with `hard`; whether the system accepted it."""
    _, present = resource.getrlimit(which)
    if present != resource.RLIM_INFINITY:
        most = min(most, present)
    try:
        resource.setrlimit(which, (most, most if hard else present))
    except (OSError, ValueError):
        return False
    return True
