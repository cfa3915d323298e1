"""Events of a feed, and where a feed stands, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import DecodeError
from penstock.redis.wire import Reply

__all__ = [
    "Decode",
    "FeedEvent",
    "FeedSnapshot",
    "event_of",
    "is_count",
    "snapshot_of",
    "to_begin_with",
]

Decode = Callable[[bytes], Any]
_MOST_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEvent:
    """One event of a feed. Readers in one process share it: leave `data` as it is."""

    number: int
    """1 for the first one, then without gaps. Resume with `feed.read(after=number)`."""
    type: str
    data: Any
    """As it was published; what is not JSON stays bytes."""
    ms: int
    """When it was published, in ms after 1970 by the server's clock; 0 for a snapshot."""
    is_snapshot: bool = False
    """Whether it stands for all events up to `number`, and is not one of them."""
    final: bool = False
    """Whether nothing comes after it."""
    missed: int = 0
    """Events that this snapshot stands for because some of them are not kept any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSnapshot:
    """Where a feed stands."""

    number: int
    """Number of the latest event; 0 if there has been none."""
    state: Any = None
    """The state that was last published, if any."""
    state_number: int = 0
    """Number of the event that the state came with."""
    final_number: int = 0
    """Number of the final event; 0 if there was none yet."""
    first: int = 0
    """Number of the earliest event that is kept; 0 if none is."""
    last: FeedEvent | None = None
    """The latest event, if it is kept."""

    @property
    def final(self) -> bool:
        """Whether the feed has had its final event."""
        return self.final_number > 0


def event_of(entry: Sequence[Reply], decode: Decode) -> FeedEvent:
    """Read an entry of the stream."""
    entry_id, fields = entry
    found: dict[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
    ms = found.get(b"ms", b"0")
    return FeedEvent(
        number=int(entry_id.partition(b"-")[0]),
        type=found.get(b"type", b"").decode(errors="replace"),
        data=_decoded(found.get(b"data", b"null"), decode),
        ms=int(ms) if is_count(ms) else 0,
        final=found.get(b"final") == b"1",
    )


def snapshot_of(reply: Sequence[Reply], decode: Decode) -> FeedSnapshot:
    """Read what the script `look_at_feed` returns."""
    number, first, final, state, state_number, last = reply
    return FeedSnapshot(
        number=number,
        state=None if state is None else _decoded(state, decode),
        state_number=state_number if state is not None else 0,
        final_number=final,
        first=first,
        last=event_of(last, decode) if last else None,
    )


def to_begin_with(
    look: FeedSnapshot, after: int | None, upcoming: int | None = None
) -> FeedEvent | None:
    """Return the event that stands for what a reader does not get one by one.

    It is for a reader that has had the events up to `after`, of which the next one is not kept any
    more, or that has had none of them and does not want them (None). `upcoming` is the next event
    that is kept, if it is not the first of all. None if no event was ever
    published.
    """
    if look.number == 0:
        return None
    if after is not None and after > look.number:
        after = None  # a server lost its latest events, in a failover: the reader starts again
    if after is None and not look.state_number:
        last = look.last
        return FeedEvent(
            number=look.number,
            type=last.type if last else "snapshot",
            data=last.data if last else None,
            ms=last.ms if last else 0,
            is_snapshot=True,
            final=look.final,
        )
    upcoming = upcoming or look.first or look.number + 1
    known = look.state_number if after is None else after
    number = max(upcoming - 1, look.state_number)
    return FeedEvent(
        number=number,
        type="snapshot",
        data=look.state,
        ms=0,
        is_snapshot=True,
        final=0 < look.final_number <= number,
        missed=max(0, number - known),
    )


def is_count(text: bytes) -> bool:
    """Whether text is a number of the server's size: Python refuses to read thousands of digits."""
    return text.isdigit() and len(text) <= _MOST_DIGITS


def _decoded(data: bytes, decode: Decode) -> Any:
    try:
        return decode(data)
    except DecodeError:
        return data  # an entry of another program must not end every reader
