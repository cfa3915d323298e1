"""What an actor writes down while a fault test runs: one JSON line per event.

Each actor (a producer, a worker, the one that kills) writes a file of its own, never through the
system under test. Times are seconds; the monotonic ones can be compared between the processes of
one machine.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Literal, Self, TypeAlias, TypedDict, Unpack

import msgspec

__all__ = [
    "Event",
    "Facts",
    "HistoryBroken",
    "Op",
    "Phase",
    "Place",
    "Recorder",
    "in_order",
    "no_collection",
    "payload_hash",
    "read_history",
]

Op: TypeAlias = Literal[
    "send",  # invoke, then ok | fail (rejected: not stored) | unknown
    "start",  # a handler begins
    "finish",  # it ends: ok | fail | cancelled (handed back; the attempt is not charged)
    "ack",  # a run is settled: invoke, then accepted | refused (stale) | fail | unknown
    "retry",  # it shall run again: phases as for ack
    "dead",  # it is dead-lettered: phases as for ack
    "uncharge",  # the attempt of a run is taken back, so its number may come again: no phases
    "replay",  # a dead letter becomes a message again, under an id of its own
    "grant",  # a lease is given, with its fence: invoke, then ok
    "claim",  # a job is taken in hand, with a fence of this claim alone: ok, many to one invoke
    "lose",  # a lease, a process or the server is lost; see Event.victim
    "purge",  # an operator removes messages; without `msg` all that were sent before
    "final",  # where a message is found when all is quiet; see Event.place
]
Phase: TypeAlias = Literal[
    "", "invoke", "ok", "fail", "unknown", "accepted", "refused", "cancelled"
]
Place: TypeAlias = Literal["", "log", "stream", "pending", "retry", "delayed", "dlq"]


class HistoryBroken(ValueError):
    """A history cannot be read, or contradicts itself, so it proves nothing."""


class Facts(TypedDict, total=False):
    """What an event may tell, by the names of `Event`."""

    call: int
    key: str
    msg: str
    idem: str
    attempt: int
    fence: int
    partition: int
    group: str
    payload_hash: str
    place: Place
    victim: str
    delay_s: float
    detail: str


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line of a history.

    A message is known by `partition` and `msg`, and by its `payload_hash` where the id is not known
    (a send of unknown outcome) or is not the one in the stream (a delayed send). Payloads should
    therefore differ.
    """

    seq: int
    """Counts the lines of one recorder."""
    actor: str
    """Who writes. A process started anew is another actor."""
    pid: int
    t_mono: float
    t_wall: float
    op: Op
    phase: Phase = ""
    call: int | None = None
    """`seq` of the invoke that this line ends; what the invoke told needs no repeating."""
    key: str = ""
    msg: str = ""
    idem: str = ""
    attempt: int = 0
    fence: int | None = None
    """Epoch of the lease, without it the one that was granted to the actor last; or number of the
    claim among those of its actor."""
    partition: int | None = None
    group: str = ""
    payload_hash: str = ""
    place: Place = ""
    """Of a final read: `log` is the entry itself, all others are seen from `group`, or from every
    group if it is empty: `stream` is still to be delivered, `pending` delivered and not settled."""
    victim: str = ""
    """Of a loss: the actor that was killed or stopped, or, with a partition, that lost the lease;
    with `msg` it lost this one claim. A partition alone is lost by whoever has it; neither means
    the server."""
    delay_s: float = 0.0
    """Of a send: handled no earlier than this after its invoke."""
    detail: str = ""
    """For people; of a dead letter found in the end, the reason that it states."""


def payload_hash(payload: bytes) -> str:
    """Sixteen hexadecimal digits that stand for a payload."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


class Recorder:
    """Writes the events of one actor in one process to a file of its own in `folder`.

        with Recorder(folder, "worker-1") as recorder:
            call = recorder.write("send", "invoke", key="k", payload_hash=payload_hash(b"…"))
            recorder.write("send", "ok", call=call, partition=0, msg="1-0")

    Each line is handed to the kernel before `write` returns, so a `kill -9` loses none. Threads may
    share a recorder; a forked child opens its own.
    """

    def __init__(self, folder: Path, actor: str) -> None:
        self.actor = actor
        self._pid = os.getpid()
        self._numbers = itertools.count()
        self._encode = msgspec.json.Encoder().encode
        self.path = folder / f"{actor}.{self._pid}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, op: Op, phase: Phase = "", **facts: Unpack[Facts]) -> int:
        """Write an event and return its number, which the end of a call names as `call`."""
        number = next(self._numbers)
        event = Event(
            seq=number,
            actor=self.actor,
            pid=self._pid,
            t_mono=time.monotonic(),
            t_wall=time.time(),
            op=op,
            phase=phase,
            **facts,
        )
        line = self._encode(event) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(f"the history {self.path} could not be written in full")
        return number

    @contextmanager
    def losing(self) -> Generator[None, None, None]:
        """Note that the server loses something, at a moment within the block."""
        self.write("lose")
        try:
            yield
        finally:
            self.write("lose")

    def close(self) -> None:
        """Close the file. May come twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


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
    return sorted(events, key=attrgetter("t_mono"))


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
