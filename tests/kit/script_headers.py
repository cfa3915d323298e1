"""What the header of a Lua script declares, and a check of prepared calls against it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from penstock.redis.prepared_call import Prepared
from penstock.redis.script import Script

__all__ = ["Declared", "check_prepared_calls", "declared"]

_HEADER = re.compile(r"\A(?:--.*\n)+")


class Declared(NamedTuple):
    keys: int
    arguments: int
    has_tail: bool
    """Whether any number of arguments may follow the named ones."""


@cache
def declared(script: Script) -> Declared:
    found = _HEADER.match(script.plain_text)
    header = found[0] if found else ""
    return Declared(
        len(re.findall(r"^-- KEYS\[\d+\]", header, re.MULTILINE)),
        len(re.findall(r"^-- ARGV\[\d+\]", header, re.MULTILINE)),
        re.search(r"^-- ARGV\[\d+\.\.\]", header, re.MULTILINE) is not None,
    )


def check_prepared_calls() -> None:
    """Hold every prepared call of the process against the header of its script.

    Its last arguments are known only when it is sent, so no test of the typed calls sees them.
    """
    packed = Prepared.packed

    def checked(call: Prepared, tail: Sequence[bytes] = ()) -> bytes:
        header, count = declared(call._script), len(call._arguments) + len(tail)
        is_right = count >= header.arguments if header.has_tail else count == header.arguments
        assert len(call._keys) == header.keys, f"{call._script.name}: {len(call._keys)} keys"
        assert is_right, f"{call._script.name}: {count} arguments for {header}"
        return packed(call, tail)

    Prepared.packed = checked
