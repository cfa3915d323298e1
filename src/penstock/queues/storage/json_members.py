"""Members of a JSON object, found and replaced in its text: every other byte stays as it is.

Other programs' jobs hold what no decoder gives back unchanged (`1.10`, duplicate names) or accepts
at all (`1e999`, bytes that are not UTF-8), so they are never decoded and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

__all__ = ["JsonMember", "find_member", "is_only_member", "replace_value", "without_member"]

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_next_outer = re.compile(_STRING + rb"|[{}\[\],:]", re.DOTALL).search
_next_inner = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL).search
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")


class JsonMember(NamedTuple):
    """Position of a member: from its name's opening quote to the end of its value."""

    start: int
    value: int
    """Where the value begins."""
    end: int


def find_member(body: bytes, name: str) -> JsonMember | None:
    """Find a member of an object; the last one of that name, which is the one decoders take."""
    found = None
    for key, member in _members(body):
        if _is_named(key, name):
            found = member
    return found


def is_only_member(body: bytes, member: JsonMember) -> bool:
    """Whether the object has no other members."""
    return not body[: member.start].strip()[1:] and not body[member.end :].strip()[:-1]


def replace_value(body: bytes, member: JsonMember, value: bytes) -> bytes:
    """Return the object with another value of a member."""
    return body[: member.value] + value + body[member.end :]


def without_member(body: bytes, member: JsonMember) -> bytes:
    """Return the object without a member and the comma beside it."""
    head, tail = body[: member.start], body[member.end :]
    before = head.rstrip()
    if before.endswith(b","):
        return before[:-1] + tail
    after = tail.lstrip()
    return head + (after[1:] if after.startswith(b",") else tail)


def _members(body: bytes) -> Iterator[tuple[bytes, JsonMember]]:
    """Names as they are written, and their members. The text is known to be one JSON object."""
    place = body.index(b"{") + 1
    depth, key, start, value = 1, b"", 0, 0
    while (token := (_next_outer if depth == 1 else _next_inner)(body, place)) is not None:
        text, place = token[0], token.end()
        if text in _OPENING:
            depth += 1
        elif text in _CLOSING and depth > 1:
            depth -= 1
        elif depth > 1:
            continue
        elif text == b":":
            value = place
        elif text in {b",", b"}"}:
            if key:
                begin, end = _trimmed(body, value, token.start())
                yield key, JsonMember(start, begin, end)
            key = b""
        elif not key:
            key, start = text, token.start()


def _trimmed(body: bytes, begin: int, end: int) -> tuple[int, int]:
    """Leave out the blanks around a value."""
    text = body[begin:end]
    return begin + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())


def _is_named(key: bytes, name: str) -> bool:
    if b"\\" not in key:
        return key[1:-1] == name.encode()
    try:
        return msgspec.json.decode(key, type=str) == name
    except (msgspec.MsgspecError, ValueError):
        return False
