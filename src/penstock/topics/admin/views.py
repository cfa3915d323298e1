"""Views of topics, groups and dead letters."""

from __future__ import annotations

import msgspec

from penstock.delivery.payloads import PayloadView
from penstock.topics.storage.metadata import Options

__all__ = [
    "Adopted",
    "BrowsePage",
    "GroupView",
    "LetterKind",
    "LetterKinds",
    "LetterPage",
    "LetterView",
    "MemberView",
    "MessageView",
    "PartitionLag",
    "PartitionView",
    "PayloadView",
    "PendingPage",
    "PendingView",
    "Replayed",
    "TopicLine",
    "TopicView",
    "Trimmed",
]


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """One message in a partition."""

    partition: int
    id: str
    """As `send` returned it and handlers see it."""
    sent_ms: int
    payload: PayloadView
    key: str | None = None
    headers: dict[str, str] = {}
    target_group: str | None = None
    """Only this group handles it: it was replayed."""
    barrier: int | None = None
    """Not a message: here the topic grew, to this generation."""
    fields: dict[str, str] | None = None
    """Every field, if the entry has no payload."""


class BrowsePage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the order of ids; `cursor` continues after them, None at the end."""

    messages: list[MessageView]
    cursor: str | None = None


# --- topics -------------------------------------------------------------------------------------


class TopicLine(msgspec.Struct, frozen=True, kw_only=True):
    """One topic in a list."""

    name: str
    partitions: int
    """0: it is registered, but not there. It was being made or deleted; do either again."""
    generation: int = 0
    growing_to: int = 0
    created_ms: int | None = None
    updated_ms: int | None = None


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a topic."""

    index: int
    length: int
    bytes: int
    """As the server estimates it, from samples."""
    first_id: str | None = None
    last_id: str | None = None
    """Of the last message ever stored, also if it was dropped since."""
    delayed: int = 0
    lost: int = 0
    """Messages that a hard cap dropped although a group needed them."""
    is_missing: bool = False
    """There is no such stream; the topic is being made or deleted."""


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. Length, bytes, delayed and lost are those of all partitions together."""

    name: str
    partitions: list[PartitionView]
    length: int
    bytes: int
    delayed: int
    lost: int
    groups: list[str]
    generation: int
    growing_to: int
    dead_letters: int
    options: Options
    created_ms: int | None = None
    updated_ms: int | None = None


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """What trimming did."""

    dropped: int = 0
    lost: int = 0
    """Of these, still needed by a group: the hard cap took them."""
    freed: int = 0
    """Large payloads removed."""


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """What moving a plain stream into a topic did."""

    moved: int = 0
    repeated: int = 0
    """Moved by an earlier call that ended before it could take the message away."""
    settled: int = 0
    """Dropped: every group was done with them."""
    groups: list[str] = []


# --- groups -------------------------------------------------------------------------------------


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """How a group stands in one partition."""

    partition: int
    lag: int
    """Messages not yet delivered to it."""
    approximate: bool
    """The lag is a lower or an upper bound: the server does not know it, counting is limited."""
    pending: int
    """Delivered, but not settled."""
    oldest_pending_ms: int | None = None
    """Age of the oldest pending message."""
    last_delivered_id: str | None = None
    settled_id: str | None = None
    """Up to which all is settled, if anything ever was."""
    owner: str | None = None
    lease_ms: int | None = None
    """What remains of the owner's lease."""
    epoch: int = 0
    is_missing: bool = False
    """The group is not known here yet; its next consumer makes it so."""


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of a group."""

    name: str
    silent_ms: int
    alive: bool
    """Whether it beat within `topics.lease_ttl_s`."""
    about: str = ""
    """Its host, process and options, as JSON."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a topic. Lag and pending are those of all partitions together."""

    name: str
    start: str | None
    """Its start position; None if it was registered otherwise, such as by the Java library."""
    partitions: list[PartitionLag]
    members: list[MemberView]
    lag: int
    approximate: bool
    pending: int
    oldest_pending_ms: int | None


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was delivered to a group, but is not settled."""

    partition: int
    id: str
    attempts: int
    idle_ms: int
    """Since it was delivered or begun last."""
    key: str | None = None
    due_in_ms: int | None = None
    """Until the next attempt, if it failed and waits; 0: at once."""
    last_failure: str | None = None
    owner: str | None = None
    is_gone: bool = False
    """The message itself has been dropped from the stream."""


class PendingPage(msgspec.Struct, frozen=True, kw_only=True):
    """Pending messages by partition and id; `cursor` continues after them, None at the end."""

    pending: list[PendingView]
    cursor: str | None = None


# --- dead letters -------------------------------------------------------------------------------


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter. What the Java library does not write is None in its letters."""

    id: str
    buried_ms: int
    topic: str
    partition: int
    message_id: str | None
    payload: PayloadView
    key: str | None
    headers: dict[str, str]
    attempts: int
    failed_at: str | None
    """When its last attempt failed, as ISO 8601."""
    group: str | None = None
    reason: str | None = None
    error_class: str | None = None
    error_message: str | None = None
    stack: str | None = None
    fingerprint: str | None = None
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None
    fields: dict[str, str] | None = None
    """Every field of an entry that had no payload."""


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Letters in the order of ids. `cursor` continues after them, None at the end.

    A page may be short, even empty, before the end: a search reads a limited number at a time.
    """

    letters: list[LetterView]
    cursor: str | None = None


class LetterKind(msgspec.Struct, frozen=True, kw_only=True):
    """Letters of one cause."""

    fingerprint: str | None
    count: int
    first_ms: int
    last_ms: int
    groups: list[str]
    sample: LetterView
    """The newest of them."""


class LetterKinds(msgspec.Struct, frozen=True, kw_only=True):
    """Letters by cause, the most frequent first."""

    kinds: list[LetterKind]
    examined: int
    complete: bool
    """False: there are older letters than those that were read."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay did, or would do."""

    matched: int = 0
    replayed: int = 0
    repeated: int = 0
    """Sent by an earlier replay that ended before it could take the letter away."""
    missing: int = 0
    """Asked for by id, but not there (any more)."""
    skipped: dict[str, str] = {}
    """Letters that cannot be sent, with the reason; they stay."""
