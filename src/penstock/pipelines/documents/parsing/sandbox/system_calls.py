"""Seccomp: the system calls that a child needs for reading documents, and no other."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["restrict_calls"]

# Name, number on x86_64, number on aarch64; "-" where there is no such call.
_PARSING: Final = """
    read 0 63, readv 19 65, pread64 17 67, preadv 295 69, preadv2 327 286, close 3 57
    munmap 11 215, brk 12 214, mremap 25 216, madvise 28 233
    rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132
    getpid 39 172, gettid 186 178, futex 202 98, sched_yield 24 124, restart_syscall 219 128
    clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101
    gettimeofday 96 169, getrandom 318 278, getrusage 98 165, exit 60 93, exit_group 231 94
"""
_CHECKED: Final = """
    mmap 9 222, mprotect 10 226, prlimit64 302 261, tgkill 234 131, clone 56 220, clone3 435 435
    sendto 44 206, recvfrom 45 207, recvmsg 47 212, fcntl 72 25
"""
_RECOGNITION: Final = """
    write 1 64, writev 20 66, pipe 22 -, pipe2 293 59, dup 32 23, dup2 33 -, dup3 292 24
    fstat 5 80, lseek 8 62, open 2 -, openat 257 56, close_range 436 436
    stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48
    faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents64 217 61, statfs 137 43
    fstatfs 138 44, getcwd 79 17, chdir 80 49, umask 95 166, fadvise64 221 223
    copy_file_range 326 285, fork 57 -, vfork 58 -, execve 59 221, wait4 61 260, waitid 247 95
    poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, arch_prctl 158 -
    set_tid_address 218 96, set_robust_list 273 99, rseq 334 293, membarrier 324 283
    sched_getaffinity 204 123, getcpu 309 168, uname 63 160, sysinfo 99 179, times 100 153
    time 201 -, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177
    getppid 110 173, getpgrp 111 -, getpgid 121 155, getgroups 115 158
"""
"""What `tesseract` does: it opens files as far as Landlock allows, and writes to a pipe."""

_ARCHITECTURES: Final = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_FOREIGN_CALLS: Final = 0x4000_0000  # of x32, under which everything has a second number

_PROT_EXEC: Final = 4
_NAMESPACES: Final = 0x7E02_0000
_AS_SIBLING: Final = 0x8000
_RLIMIT_CPU: Final = 0
_ALL: Final = 0xFFFF_FFFF

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOWED, _REFUSED, _UNKNOWN = 0x7FFF_0000, 0x0005_0000 | 1, 0x0005_0000 | 38  # EPERM, ENOSYS
_PR_SET_SECCOMP, _FILTER = 22, 2

_Step = tuple[int, int, int, int]
"""Code, steps to skip if true, if false, operand."""


class _Check(NamedTuple):
    """An argument has to have this value within the mask; the kernel reads its lower half only."""

    argument: int
    value: int
    mask: int = _ALL


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def restrict_calls(libc: ctypes.CDLL, line: int, *, ocr: bool) -> str:
    """Refuse with EPERM all calls but those on the list, for good; why not, "" if it succeeded.

    `line` is the connection to the parent, the only descriptor that can be sent to. With `ocr`
    programs can be started, which inherit the list. Needs a single thread, and no new privileges.
    """
    known = _ARCHITECTURES.get(os.uname().machine)
    if known is None or sys.maxsize < _FOREIGN_CALLS << 1:
        return f"its calls are not known on {os.uname().machine}"
    column, architecture = known
    code = b"".join(
        struct.pack("=HBBI", *step) for step in _steps(column, architecture, line, ocr=ocr)
    )
    program = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return ""


def _steps(column: int, architecture: int, line: int, *, ocr: bool) -> Iterator[_Step]:
    # Calls of another architecture have other numbers, so they are refused as a whole.
    yield _LOAD, 0, 0, _ARCHITECTURE_AT
    yield _EQUAL, 1, 0, architecture
    yield _RETURN, 0, 0, _REFUSED
    yield _LOAD, 0, 0, _NUMBER_AT
    checked = _numbers(_CHECKED, column)
    yield from _one(checked["clone3"], (), _UNKNOWN)  # the C library then calls clone
    for name, checks in _checks(line, ocr=ocr):
        yield from _one(checked[name], checks, _ALLOWED)
    for number in _numbers(_PARSING + (_RECOGNITION if ocr else ""), column).values():
        yield from _one(number, (), _ALLOWED)
    yield _RETURN, 0, 0, _REFUSED


def _numbers(table: str, column: int) -> dict[str, int]:
    calls = [entry.split() for entry in table.replace("\n", ",").split(",") if entry.strip()]
    return {name: int(numbers[column]) for name, *numbers in calls if numbers[column] != "-"}


def _checks(line: int, *, ocr: bool) -> Iterator[tuple[str, tuple[_Check, ...]]]:
    # Without flags: out-of-band data of unix sockets has had exploitable bugs (CVE-2025-38236).
    yield "sendto", (_Check(0, line), _Check(3, 0))
    yield "recvfrom", (_Check(0, line), _Check(3, 0))
    yield "recvmsg", (_Check(0, line), _Check(2, 0))
    yield "tgkill", (_Check(0, os.getpid()),)  # abort() signals its own process
    if ocr:
        yield "mmap", ()
        yield "mprotect", ()
        yield "clone", (_Check(0, 0, _NAMESPACES | _AS_SIBLING),)
        # F_DUPFD to F_GETFL only: others have signals sent to the parent, or take leases of a file.
        yield "fcntl", (_Check(1, 0, ~3 & _ALL),)
        yield "prlimit64", (_Check(0, 0),)
    else:
        yield "mmap", (_Check(2, 0, _PROT_EXEC),)
        yield "mprotect", (_Check(2, 0, _PROT_EXEC),)
        yield "prlimit64", (_Check(0, 0), _Check(1, _RLIMIT_CPU))


def _one(number: int, checks: tuple[_Check, ...], verdict: int) -> Iterator[_Step]:
    """The verdict on one call, EPERM if a check fails; the others go on behind it."""
    refuse = int(bool(checks))
    yield _EQUAL, 0, 3 * len(checks) + 1 + refuse, number
    for left, check in zip(reversed(range(len(checks))), checks, strict=True):
        yield _LOAD, 0, 0, _FIRST_ARGUMENT_AT + 8 * check.argument
        yield _AND, 0, 0, check.mask
        yield _EQUAL, 0, 3 * left + 1, check.value
    yield _RETURN, 0, 0, verdict
    if refuse:
        yield _RETURN, 0, 0, _REFUSED
