"""Restrictions of a child that reads documents: limits, and on Linux no network, files or programs.

Each is applied if the system supports it. They overlap on purpose: containers often refuse
namespaces, old kernels have no Landlock, and our seccomp filter knows two processors only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import penstock
from penstock.pipelines.documents.parsing.sandbox.protocol import ParserSetup
from penstock.processes.in_child import limit

__all__ = ["allow_cpu", "raise_all"]

_HEADROOM: Final = 64 << 20
"""Least memory for a document, beyond what the libraries take."""

_FILES: Final = 64
_PROCESSES: Final = 4_096  # counted per user, not per child

_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same everywhere
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_RIGHTS_SINCE: Final = (*(1,) * 13, 2, 3, 5)
"""The version of Landlock that introduced each right."""


def raise_all(setup: ParserSetup) -> tuple[str, ...]:
    """Apply every restriction; the names of those in force. Needs a single thread."""
    held: list[str] = []
    memory = max(setup.memory_bytes, _address_space() + _HEADROOM)  # before it cannot be read
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if _leave_network(libc):
            held.append("network")
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            if _restrict_files(libc, ocr=setup.ocr):
                held.append("files")
            if _restrict_calls(libc, ocr=setup.ocr):
                held.append("calls")
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_NOFILE, _FILES)
    if hasattr(resource, "RLIMIT_NPROC"):
        limit(resource.RLIMIT_NPROC, _PROCESSES if setup.ocr else 0)
    if limit(resource.RLIMIT_AS, memory):
        held.append("memory")
    return tuple(held)


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


def _leave_network(libc: ctypes.CDLL) -> bool:
    """Move into a network namespace without interfaces, as the same user."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def _restrict_files(libc: ctypes.CDLL, *, ocr: bool) -> bool:
    """Landlock: only the libraries can be opened, and only for reading."""
    version = libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    handled = sum(1 << right for right, since in enumerate(_RIGHTS_SINCE) if since <= version)
    rules = libc.syscall(_LANDLOCK_CREATE, struct.pack("=Q", handled), 8, 0)
    if rules < 0:
        return False
    try:
        for path, rights in _readable(ocr=ocr):
            _allow(libc, rules, path, rights)
        return libc.syscall(_LANDLOCK_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _readable(*, ocr: bool) -> Iterable[tuple[str, int]]:
    ours = {sys.prefix, sys.base_prefix, str(Path(penstock.__file__).parent)}
    ours |= {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    for path in ours:
        yield path, _READ | _LIST
    yield "/dev/urandom", _READ
    if ocr:
        yield "/dev/null", _READ | _WRITE
        yield "/etc/ld.so.cache", _READ
        program = shutil.which("tesseract")
        own = [str(Path(program).resolve().parent.parent)] if program else []
        for path in ("/usr", "/bin", "/lib", "/lib64", *own):
            yield path, _EXECUTE | _READ | _LIST


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        libc.syscall(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


# Calls of x86_64 and aarch64 by which a process reaches beyond itself: sockets, other processes,
# namespaces and mounts, the kernel's own interpreters and rings, keys.
_BEYOND: Final = {
    "x86_64": (
        0xC000_003E,
        (
            *(41, 42, 43, 49, 50, 53, 288),  # socket connect accept bind listen socketpair accept4
            *(62, 101, 129, 200, 297, 310, 311, 424, 434, 438),  # kill ptrace … process_vm pidfd
            *(155, 161, 165, 166, 272, 304, 308, 428, 429, 430, 442),  # roots, mounts, setns …
            *(248, 249, 250, 298, 321, 323, 425, 426, 427),  # keys perf bpf userfaultfd io_uring
        ),
        (56, 57, 58, 59, 322, 435),  # clone fork vfork execve execveat clone3
        234,
    ),
    "aarch64": (
        0xC000_00B7,
        (
            *(198, 199, 200, 201, 202, 203, 242),
            *(117, 129, 130, 138, 240, 270, 271, 424, 434, 438),
            *(39, 40, 41, 51, 97, 265, 268, 428, 429, 430, 442),
            *(217, 218, 219, 241, 280, 282, 425, 426, 427),
        ),
        (220, 221, 281, 435),
        131,
    ),
}
_FOREIGN_CALLS: Final = 0x4000_0000  # of x32, under which everything has a second number

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOWED, _REFUSED = 0x7FFF_0000, 0x0005_0000 | 1  # with EPERM


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _restrict_calls(libc: ctypes.CDLL, *, ocr: bool) -> bool:
    """Seccomp: refuse calls that reach beyond this process, and without OCR new processes."""
    known = _BEYOND.get(platform.machine())
    if known is None or sys.maxsize < _FOREIGN_CALLS << 1:
        return False
    architecture, beyond, processes, tgkill = known
    refused = beyond if ocr else beyond + processes
    # Each step: code, steps to skip if true, if false, operand. At the end "refuse", then "allow".
    left = len(refused) + 3
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 0, left + 2, architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, left, 0, _FOREIGN_CALLS),
    ]
    for number in refused:
        left -= 1
        steps.append((_EQUAL, left, 0, number))
    steps += [
        (_EQUAL, 0, 3, tgkill),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 1, 0, os.getpid()),  # abort() signals its own process
        (_RETURN, 0, 0, _REFUSED),
        (_RETURN, 0, 0, _ALLOWED),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    return libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0
