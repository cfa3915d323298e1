"""Restrictions of a child that reads documents: limits, and on Linux no network, files or programs.

Each is applied if the system supports it. They overlap on purpose: containers often refuse
namespaces, old kernels have no Landlock, and our list of calls knows two processors only.
"""

from __future__ import annotations

import ctypes
import resource
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.pipelines.documents.parsing.sandbox.landlock import restrict_files
from penstock.pipelines.documents.parsing.sandbox.privileges import leave
from penstock.pipelines.documents.parsing.sandbox.protocol import (
    FENCES,
    LONGEST_REASON,
    ParserSetup,
)
from penstock.pipelines.documents.parsing.sandbox.system_calls import restrict_calls
from penstock.processes.in_child import end_with_parent, limit

__all__ = ["allow_cpu", "raise_all"]

_HEADROOM: Final = 64 << 20
"""Least memory for a document, beyond what the libraries take."""

_FILES: Final = 64
_OWN_PROCESSES: Final = 16
_PROCESSES: Final = 4_096
"""As the kernel counts per user: most of a user who has other processes."""


def raise_all(setup: ParserSetup, parent: int, connection: socket.socket) -> Mapping[str, str]:
    """Apply every fence, and end with the parent; the missing ones, with the reasons.

    Needs a single thread, and everything that is to be imported.
    """
    missing = dict.fromkeys(FENCES, f"{sys.platform} has none")
    memory = max(setup.memory_bytes, _address_space() + _HEADROOM)  # before it cannot be read
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_NOFILE, _FILES)
    processes = _PROCESSES
    missing["memory"] = "" if limit(resource.RLIMIT_AS, memory) else "the limit was not accepted"
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        program = shutil.which("tesseract") if setup.ocr else None
        left = leave(libc, program)
        missing["network"], missing["privileges"] = left.network, left.privileges
        processes = _OWN_PROCESSES if left.counted_alone else _PROCESSES
        missing["files"] = restrict_files(libc, program)
    if hasattr(resource, "RLIMIT_NPROC"):
        limit(resource.RLIMIT_NPROC, processes if setup.ocr else 0)
    end_with_parent(parent, connection)  # a change of privileges resets it
    if sys.platform == "linux":
        missing["calls"] = restrict_calls(libc, connection.fileno(), ocr=setup.ocr)
        if not missing["calls"]:
            missing["network"] = ""  # without a namespace too: no socket can be made
    return {fence: reason[:LONGEST_REASON] for fence, reason in missing.items() if reason}


def allow_cpu(seconds: int) -> None:
    """Allow this much more processor time; beyond it the process is ended by SIGXCPU."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    if not limit(resource.RLIMIT_CPU, soft, hard=False):
        sys.exit("the system does not accept a limit of processor time")


def _address_space() -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0
