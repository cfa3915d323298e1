"""Where each message of a topic has to be, told without the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

Id = tuple[int, int]
BEGINNING: Id = (0, 0)


class Place(StrEnum):
    """Where a stored message is for one group: in exactly one of these."""

    UNREAD = "unread"
    PENDING = "pending"
    WAITING = "waiting for a retry"
    SETTLED = "settled"
    DEAD = "dead-lettered"
    PURGED = "purged, or sent again"
    LOST = "trimmed by the hard cap before it was settled"
    OUTSIDE = "not the group's: it starts after it"


IN_THE_STREAM = frozenset({Place.UNREAD, Place.PENDING, Place.WAITING})
"""Places that the server's keys show; the others show in that a message is in none of these."""


@dataclass(slots=True)
class Stored:
    """A message in a partition's stream, or one that was there."""

    id: Id
    fields: list[str]
    body: str = ""
    """Name of the large body, if it has one."""
    trimmed: bool = False


@dataclass(slots=True)
class Delayed:
    """A message that is not yet due."""

    due_ms: int
    fields: list[str]
    body: str = ""


@dataclass(slots=True)
class Share:
    """One group in one partition."""

    epoch: int
    position: Id
    """Id of the last message delivered."""
    owner: str | None = None
    fenced_epoch: int | None = None
    """The epoch whose owner may read; None if nobody's fence stands."""
    attempts: dict[Id, int] = field(default_factory=dict)
    """Attempts counted, by pending message."""
    waiting: dict[Id, int] = field(default_factory=dict)
    """Due time in ms, by message that waits for its next attempt."""
    failed: set[Id] = field(default_factory=set)
    """Pending messages whose failures are on record."""
    ended: dict[Id, Place] = field(default_factory=dict)

    def place(self, id_: Id) -> Place:
        if id_ in self.waiting:
            return Place.WAITING
        if id_ in self.attempts:
            return Place.PENDING
        return self.ended.get(id_, Place.UNREAD)

    def end(self, id_: Id, place: Place) -> None:
        """Let a pending message come to its end."""
        del self.attempts[id_]
        self.waiting.pop(id_, None)
        self.failed.discard(id_)
        self.ended[id_] = place

    def start_over(self, epoch: int, position: Id, messages: dict[Id, Stored]) -> None:
        """Forget what is pending and go on from another position."""
        for id_ in list(self.attempts):
            self.end(id_, Place.LOST if messages[id_].trimmed else Place.OUTSIDE)
        for id_, message in messages.items():
            if id_ <= position:
                self.ended.setdefault(id_, Place.OUTSIDE)
            elif not message.trimmed:
                self.ended.pop(id_, None)
        self.epoch, self.position = epoch, position
        self.owner = self.fenced_epoch = None


@dataclass(slots=True)
class Partition:
    """One partition and its groups."""

    messages: dict[Id, Stored] = field(default_factory=dict)
    """In the order of ids."""
    delayed: dict[str, Delayed] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    remembered: dict[str, str] = field(default_factory=dict)
    """Id that was returned, by idempotency key."""
    lost: int = 0
    freed: set[str] = field(default_factory=set)
    """Names of large bodies that were freed."""

    def stored(self) -> list[Id]:
        return [id_ for id_, message in self.messages.items() if not message.trimmed]

    def unread(self, group: str) -> list[Id]:
        share = self.shares[group]
        return [id_ for id_ in self.stored() if share.place(id_) is Place.UNREAD]

    def needed_from(self) -> Id | None:
        """Lowest id that a group still needs; None without groups."""
        lowest = [
            min(share.attempts, default=(share.position[0], share.position[1] + 1))
            for share in self.shares.values()
        ]
        return min(lowest, default=None)

    def trim(self, max_length: int, hard_length: int) -> tuple[int, int, int]:
        """Drop what retention allows: dropped, of these still needed, bodies freed."""
        needed = self.needed_from()
        stored = self.stored()
        excess = len(stored) - max_length if max_length else 0
        gone = [id_ for id_ in stored[: max(0, excess)] if needed is None or id_ < needed]
        rest = stored[len(gone) :]
        if hard_length and len(rest) > hard_length:
            gone += rest[: len(rest) - hard_length]
        lost = 0 if needed is None else sum(id_ >= needed for id_ in gone)
        for id_ in gone:
            self.messages[id_].trimmed = True
            for share in self.shares.values():
                if share.place(id_) is Place.UNREAD:
                    share.ended[id_] = Place.LOST
        self.lost += lost
        free = {
            message.body
            for id_, message in self.messages.items()
            if message.body and (message.trimmed or (needed is not None and id_ < needed))
        }
        freed = len(free - self.freed)
        self.freed |= free
        return len(gone), lost, freed


LetterKey = tuple[str, int, Id]
"""Group, partition and message."""


@dataclass(slots=True)
class Truth:
    """The whole topic."""

    partitions: list[Partition]
    letters: dict[LetterKey, str] = field(default_factory=dict)
    """Id of the dead letter, in the order of these ids."""
    revived: set[LetterKey] = field(default_factory=set)
    """Messages that may be handled although they have a letter: people set their group back."""
    epochs_seen: dict[tuple[str, int], int] = field(default_factory=dict)
    """Highest epoch that a partition ever had, by group and partition, also in former lives."""


def numbers(id_: str | bytes) -> Id:
    ms, _, sequence = (id_ if isinstance(id_, str) else id_.decode()).partition("-")
    return int(ms), int(sequence or 0)


def spelled(id_: Id) -> str:
    return f"{id_[0]}-{id_[1]}"
