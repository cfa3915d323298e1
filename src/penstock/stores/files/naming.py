"""Names of files: validation, escaping, and names derived from others.

A name may contain whatever a file system allows: any script, line ends, bytes that are not text
(lone surrogates in Python, which neither JSON nor Redis accepts).
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator

from penstock.errors import FileRefused
from penstock.errors.base import shown

__all__ = ["candidates", "components", "escaped", "fitted", "label", "outside", "suffix_of"]
__all__ += ["unescaped", "with_ending"]

_LONGEST_COMPONENT = 255
_LONGEST_PATH = 4_095
_LONGEST_EXTENSION = 32
_MOST_CANDIDATES = 10_000
_PLAIN_SUFFIX = re.compile(r"[\w.:=@+-]{1,128}", re.ASCII)
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")
_ESCAPE_OR_BACKSLASH = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")


def outside(path: object, reason: str) -> FileRefused:
    return FileRefused(f"path {shown(path)} {reason}", "ERR_PATH_OUTSIDE")


def components(relative: str) -> list[str]:
    """The components of a relative path; FileRefused unless each is a plain name."""
    if "\0" in relative:
        raise outside(relative, "contains a NUL")
    try:
        raw = os.fsencode(relative)
    except UnicodeEncodeError:
        raise outside(relative, "is not a valid file name") from None
    if len(raw) > _LONGEST_PATH:
        raise outside(relative, f"is longer than {_LONGEST_PATH} bytes")
    parts = relative.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise outside(relative, "is not below its folder")
        if len(os.fsencode(part)) > _LONGEST_COMPONENT:
            raise outside(relative, f"has a name of more than {_LONGEST_COMPONENT} bytes")
    return parts


def escaped(relative: str) -> str:
    r"""The path as text that JSON accepts: `\xff` for a byte that is not text.

    `unescaped` reverses it. A path without such bytes or such text is unchanged.
    """
    raw = os.fsencode(relative)
    text = raw.decode("utf-8", "backslashreplace")
    if not _ESCAPE.search(text):
        return text
    # Doubled only here, so that a file named `\xff` is not taken for the byte.
    return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescaped(text: str) -> str:
    """The path of which this is the `escaped` form."""
    if not _ESCAPE.search(text):
        return text

    def original(escape: re.Match[str]) -> str:
        return os.fsdecode(bytes.fromhex(escape[1])) if escape[1] else "\\"

    return _ESCAPE_OR_BACKSLASH.sub(original, text)


def label(relative: str) -> str:
    """The name of a document: `escaped`, with composed accents (NFC)."""
    return unicodedata.normalize("NFC", escaped(relative))


def suffix_of(text: str) -> str:
    """A suffix of names for any text: itself if it is short and plain, otherwise its hash."""
    if _PLAIN_SUFFIX.fullmatch(text):
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def candidates(name: str, suffix: str) -> Iterator[str]:
    """The names a moved file may get, in order of preference."""
    yield name
    yield fitted(name, f"--{suffix}")
    for number in range(2, _MOST_CANDIDATES):
        yield fitted(name, f"--{suffix}-{number}")


def fitted(name: str, ending: str) -> str:
    """The name with `ending` before its extension, truncated if it is too long for a file."""
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.rpartition(".")
    if not stem or len(os.fsencode(extension)) > _LONGEST_EXTENSION:
        stem, dot, extension = last, "", ""
    return folder + slash + _cut(stem, last, ending + dot + extension)


def with_ending(name: str, ending: str) -> str:
    """The name with `ending`, truncated if it is too long for a file, and still unique."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + _cut(last, last, ending)


def _cut(stem: str, whole: str, ending: str) -> str:
    room = _LONGEST_COMPONENT - len(os.fsencode(ending))
    raw = os.fsencode(stem)
    if len(raw) <= room:
        return stem + ending
    # Long names may differ only in what is cut off.
    mark = "~" + hashlib.sha256(os.fsencode(whole)).hexdigest()[:12]
    return raw[: room - len(mark)].decode("utf-8", "ignore") + mark + ending
