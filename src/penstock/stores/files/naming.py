"""Names of files: which are allowed, how they are shown, and how another is made from one.

A name is a label. It may hold whatever a file system allows: any script, line ends, bytes that are
no text (Python spells those as lone surrogates, which neither JSON nor Redis takes).
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata

from penstock.errors import FileRefused
from penstock.errors.base import shown

__all__ = ["components", "escaped", "fitted", "label", "outside", "unescaped", "with_ending"]

_LONGEST_COMPONENT = 255
_LONGEST_PATH = 4_095
_LONGEST_EXTENSION = 32
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")
_ESCAPE_OR_BACKSLASH = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")


def outside(path: object, reason: str) -> FileRefused:
    return FileRefused(f"path {shown(path)} {reason}", "ERR_PATH_OUTSIDE")


def components(relative: str) -> list[str]:
    """The components of a path below some folder; FileRefused unless each is a plain name."""
    if "\0" in relative:
        raise outside(relative, "has a NUL in it")
    try:
        raw = os.fsencode(relative)
    except UnicodeEncodeError:
        raise outside(relative, "is not a name that a file can have") from None
    if len(raw) > _LONGEST_PATH:
        raise outside(relative, f"is longer than {_LONGEST_PATH} bytes")
    parts = relative.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise outside(relative, "does not lead to a file below its folder")
        if len(os.fsencode(part)) > _LONGEST_COMPONENT:
            raise outside(relative, f"has a name of more than {_LONGEST_COMPONENT} bytes in it")
    return parts


def escaped(relative: str) -> str:
    r"""The same path as text that JSON takes: `\xff` for a byte that is no text.

    `unescaped` leads back. A path that has neither such bytes nor such text stays as it is.
    """
    raw = os.fsencode(relative)
    text = raw.decode("utf-8", "backslashreplace")
    if not _ESCAPE.search(text):
        return text
    # Doubled only here, so that a file called `\xff` is not taken for the byte, and all others keep
    # their names.
    return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescaped(text: str) -> str:
    """The path that `escaped` made this of."""
    if not _ESCAPE.search(text):
        return text

    def original(found: re.Match[str]) -> str:
        return os.fsdecode(bytes.fromhex(found[1])) if found[1] else "\\"

    return _ESCAPE_OR_BACKSLASH.sub(original, text)


def label(relative: str) -> str:
    """The text by which a document is known: `escaped`, with accents composed (NFC)."""
    return unicodedata.normalize("NFC", escaped(relative))


def fitted(name: str, ending: str) -> str:
    """The last component with `ending` before its extension, cut if it got too long for a file."""
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.rpartition(".")
    if not stem or len(os.fsencode(extension)) > _LONGEST_EXTENSION:
        stem, dot, extension = last, "", ""
    return folder + slash + _cut(stem, last, ending + dot + extension)


def with_ending(name: str, ending: str) -> str:
    """The name of a file that lies beside this one; cut if it got too long, and still unique."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + _cut(last, last, ending)


def _cut(stem: str, whole: str, ending: str) -> str:
    room = _LONGEST_COMPONENT - len(os.fsencode(ending))
    raw = os.fsencode(stem)
    if len(raw) <= room:
        return stem + ending
    # Two long names may differ only in what is cut off.
    mark = "~" + hashlib.sha256(os.fsencode(whole)).hexdigest()[:12]
    return raw[: room - len(mark)].decode("utf-8", "ignore") + mark + ending
