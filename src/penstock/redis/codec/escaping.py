r"""Any bytes as printable text, and back: names that other programs chose may not be UTF-8.

    b"caf\xc3\xa9"      café
    b"\xff\n"           \xff\x0a
    b"C:\\data"         C:\\data

Bytes that are not UTF-8 and characters that cannot be printed are `\xHH`, a backslash is doubled.
Different bytes give different texts, so a text can be copied from a terminal into a command.
"""

from __future__ import annotations

import re

__all__ = ["escaped", "unescaped"]

_PART = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(\\))|[^\\]+")


def escaped(data: bytes) -> str:
    """Return bytes as printable text; `unescaped` gives them back."""
    text = data.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    return text if text.isprintable() else "".join(map(_shown, text))


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a text; ValueError for a backslash that is not doubled or before `xHH`.

    Everything else stands for itself, as does what a shell passes on that is not UTF-8.
    """
    parts: list[bytes] = []
    end = 0
    while end < len(text):
        found = _PART.match(text, end)
        if found is None:
            raise ValueError(rf"{text[:60]!r}: expected \xHH or \\ where a backslash is")
        end = found.end()
        digits, backslash = found.groups()
        if digits:
            parts.append(bytes.fromhex(digits))
        else:
            parts.append(b"\\" if backslash else found[0].encode(errors="surrogateescape"))
    return b"".join(parts)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
