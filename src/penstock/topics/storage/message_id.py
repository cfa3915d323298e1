"""The id of a message: one text, the same wherever and however often the message appears.

    <partition>-<ms>-<sequence>    the partition it was stored in and the stream's own entry id
    d-<32 hex digits>              of a delayed message, which is sent before it has a place

An entry whose id is not its place carries it in the field `messageId`: that of a delayed message,
and that of a dead letter that was sent again.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Final

__all__ = [
    "MESSAGE_ID",
    "delayed_id",
    "id_numbers",
    "identify",
    "is_delayed",
    "place_id",
    "position_in",
]

MESSAGE_ID: Final = b"messageId"

_ONE_ENTRY = re.compile(rb"[0-9]{1,4}-[0-9]{1,20}-[0-9]{1,20}|d-[0-9a-f]{32}")
_DELAYED = b"d-"
_POSITION = re.compile(r"[0-9]{1,4}-([0-9]{1,20}-[0-9]{1,20})")


def place_id(partition: int | str, entry_id: bytes | str) -> str:
    """Return the id of a message that was stored here first."""
    return f"{partition}-{entry_id if isinstance(entry_id, str) else entry_id.decode()}"


def delayed_id() -> str:
    """Make an id that sorts by time: of messages due together, what was sent first goes first."""
    return f"d-{time.time_ns():016x}{uuid.uuid4().hex[:16]}"


def is_delayed(stored: bytes) -> bool:
    """Whether the script `publish` stored a message for later: then this is its id."""
    return stored.startswith(_DELAYED)


def identify(partition: int | str, entry_id: bytes | str, carried: bytes | None) -> str:
    """Return a message's id; `carried` is its field `messageId`. What is no id counts as none."""
    if carried is not None and _ONE_ENTRY.fullmatch(carried):
        return carried.decode()
    return place_id(partition, entry_id)


def position_in(text: str) -> str:
    """Return the entry id within a message's id, any other text as it is."""
    match = _POSITION.fullmatch(text)
    return match[1] if match else text


def id_numbers(id_: bytes | str) -> tuple[int, int]:
    """An entry id as numbers, in the order of the stream."""
    ms, _, sequence = (id_.decode() if isinstance(id_, bytes) else id_).partition("-")
    return int(ms), int(sequence or 0)
