"""Read the files of all actors as one history."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

import msgspec

from penstock.testing.history.record import Event, HistoryBroken

__all__ = ["in_order", "no_collection", "read_history"]

_moment = attrgetter("t_mono")


def read_history(folder: Path) -> list[Event]:
    """The events of every `*.jsonl` file in `folder`, in the order of time.

    A last line without its end is left out: it was cut off while it was written.
    """
    decoder = msgspec.json.Decoder(Event)
    events: list[Event] = []
    with no_collection():
        for path in sorted(folder.glob("*.jsonl")):
            whole, _, _ = path.read_bytes().rpartition(b"\n")
            try:
                events += decoder.decode_lines(whole)
            except msgspec.MsgspecError as error:
                raise HistoryBroken(f"{path}: {error}") from error
        return in_order(events)


def in_order(events: Iterable[Event]) -> list[Event]:
    """Sort by time; what an actor wrote in the same moment stays in its order."""
    return sorted(events, key=_moment)


@contextmanager
def no_collection() -> Generator[None]:
    """Hold the cycle collector back: it would walk over a million events again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
