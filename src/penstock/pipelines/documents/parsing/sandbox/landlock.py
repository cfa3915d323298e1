"""Landlock: the files that a child can open, and no signals or sockets beyond it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["restrict_files"]

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on all processors
_VERSION: Final = 1  # a flag that asks for it
_BENEATH: Final = 1

_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_FILES_SINCE: Final = (*(1,) * 13, 2, 3, 5)
_NETWORK_SINCE: Final = (4, 4)
_SCOPES_SINCE: Final = (6, 6)
"""The version of Landlock that introduced each right."""
_NETWORK_FROM, _SCOPES_FROM = 4, 6

_OF_PROGRAMS: Final = ("bin", "lib*", "share", "libexec")


def restrict_files(libc: ctypes.CDLL, program: str | None) -> str:
    """No file can be opened, nor anything else that Landlock knows; why not, "" if it succeeded.

    With a `program` it and what belongs to it can be read and run.
    """
    version = libc.syscall(_CREATE, None, 0, _VERSION)
    if version < 1:
        return f"Landlock: {os.strerror(ctypes.get_errno())}"
    handled = [_rights(_FILES_SINCE, version)]
    if version >= _NETWORK_FROM:
        handled.append(_rights(_NETWORK_SINCE, version))
    if version >= _SCOPES_FROM:
        handled.append(_rights(_SCOPES_SINCE, version))
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    rules = libc.syscall(_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return f"Landlock: {os.strerror(ctypes.get_errno())}"
    try:
        for path, rights in _needed(program) if program else ():
            _allow(libc, rules, path, rights)
        if libc.syscall(_RESTRICT, rules, 0) != 0:
            return f"Landlock: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(rules)
    return ""


def _rights(since: tuple[int, ...], version: int) -> int:
    return sum(1 << right for right, first in enumerate(since) if first <= version)


def _needed(program: str) -> Iterable[tuple[str, int]]:
    yield "/dev/null", _READ | _WRITE
    yield "/dev/urandom", _READ
    yield "/etc/ld.so.cache", _READ
    # Not the whole of a prefix: applications are in /usr/src and /app, with their settings.
    for prefix in {"/", "/usr", "/usr/local", str(Path(program).resolve().parent.parent)}:
        for pattern in _OF_PROGRAMS:
            for path in Path(prefix).glob(pattern):
                yield str(path), _EXECUTE | _READ | _LIST


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        libc.syscall(_ADD, rules, _BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
