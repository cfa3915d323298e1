"""Everything Penstock raises on purpose.

PenstockError
├── ConfigError               what was configured cannot be used; nothing was sent
│   ├── SettingError          a setting has a wrong name or value
│   └── AddressError          a server address cannot be read
├── InvalidName               a topic, queue, group … name is not allowed
├── CodecError
│   ├── EncodeError           a value cannot be stored
│   └── DecodeError           a stored value cannot be read; its bytes are kept for the dead letters
│       └── InflationRefused  it would unpack to more than is allowed
├── EmbeddedError             the embedded server
│   ├── BinaryMissing         no server binary for this platform
│   └── StartFailed           it did not become ready in time
├── TopicError                a topic, a group or a message is not as the caller thinks
│   ├── TopicMissing          there is no such topic (any more)
│   ├── TopicMismatch         the topic has another number of partitions
│   ├── GroupMissing          there is no such group
│   ├── LeaseLost             a partition has passed to another consumer; nothing was written
│   └── InvalidMessage        a key, header, time or position that no message can have
├── QueueError                a queue or a job is not as the caller thinks
│   ├── QueueFull             there is no room, and the policy takes no more; nothing was stored
│   ├── QueueMismatch         the queue is used from its other end
│   ├── JobMissing            there is no such job, or it has no record
│   ├── JobFailed             the job whose result was asked for ended without one
│   ├── ClaimLost             a job has passed to another worker; nothing was written
│   └── InvalidJob            an argument, option or time that no job can have
├── SendBatchFailed           not every message of a batch is confirmed; `outcomes` has them all
├── NotOpen                   used before it was opened, after it was closed, or in a forked child
└── ServerError               a command did not end confirmed; `outcome` says how it did end
    ├── OutcomeUnknown        sent, but no answer came: it may have happened
    │   └── DurabilityMissed  it happened, but is not known to be as safe as was asked for
    └── Rejected              it did not happen
        ├── Unreachable       no connection could be made
        │   └── TlsFailed     … because the two sides do not trust each other
        ├── PoolExhausted     every connection of the role is in use
        ├── AuthenticationFailed   wrong or missing user or password
        ├── PermissionRefused      the server's access list does not allow it
        ├── OutOfMemory            the server is at `maxmemory`
        ├── ReadOnlyReplica        this server may not be written to
        ├── StillLoading           the server is reading its data from disk
        ├── StorageFailing         the server cannot persist, so it accepts no writes
        ├── TooFewReplicas         fewer replicas than the server demands for a write
        ├── ClusterDown            the cluster has no owner for the slot now
        ├── ServerBusy             a script or a function blocks the server
        ├── Redirected             the slot moved more often than we follow
        ├── ScriptMissing          the server forgot a script (it is loaded again by itself)
        ├── DurabilityUnavailable  this server cannot promise what was asked for
        └── CommandRefused         the command itself is wrong here (WRONGTYPE, CROSSSLOT, ERR …)

A call that returns is *confirmed*. `Rejected` means nothing was stored; `OutcomeUnknown` means that
repeating is safe only under the same idempotency key.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

__all__ = [
    "AddressError",
    "AuthenticationFailed",
    "BinaryMissing",
    "ClaimLost",
    "ClusterDown",
    "CodecError",
    "CommandRefused",
    "ConfigError",
    "DecodeError",
    "DurabilityMissed",
    "DurabilityUnavailable",
    "EmbeddedError",
    "EncodeError",
    "GroupMissing",
    "InflationRefused",
    "InvalidJob",
    "InvalidMessage",
    "InvalidName",
    "JobFailed",
    "JobMissing",
    "LeaseLost",
    "NotOpen",
    "OutOfMemory",
    "Outcome",
    "OutcomeUnknown",
    "PenstockError",
    "PermissionRefused",
    "PoolExhausted",
    "QueueError",
    "QueueFull",
    "QueueMismatch",
    "ReadOnlyReplica",
    "Redirected",
    "Rejected",
    "ScriptMissing",
    "SendBatchFailed",
    "ServerBusy",
    "ServerError",
    "SettingError",
    "StartFailed",
    "StillLoading",
    "StorageFailing",
    "TlsFailed",
    "TooFewReplicas",
    "TopicError",
    "TopicMismatch",
    "TopicMissing",
    "Unreachable",
]


class Outcome(StrEnum):
    """How a call that changes something ended. Returning normally is CONFIRMED."""

    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class PenstockError(Exception):
    """Anything Penstock raises on purpose."""


class ConfigError(PenstockError):
    """What was configured cannot be used; nothing was sent."""


class SettingError(ConfigError):
    """A setting has an unknown name or a value outside its range."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(name, value, expected)
        self.name, self.value, self.expected = name, value, expected

    def __str__(self) -> str:
        return f"setting {self.name} = {self.value!r}: expected {self.expected}"


class AddressError(ConfigError):
    """A server address cannot be read. The message never repeats a password."""


class InvalidName(PenstockError, ValueError):
    """A name that comes from a user is not allowed."""

    def __init__(self, kind: str, name: object, reason: str) -> None:
        super().__init__(kind, name, reason)
        self.kind, self.name, self.reason = kind, name, reason

    def __str__(self) -> str:
        shown = repr(self.name)
        if len(shown) > _SHOWN_NAME:
            shown = f"{shown[:_SHOWN_NAME]}… ({len(shown)} characters)"
        return f"{self.kind} name {shown}: {self.reason}"


_SHOWN_NAME = 60


class CodecError(PenstockError, ValueError):
    """A value could not be turned into bytes, or bytes into a value."""


class EncodeError(CodecError):
    """A value cannot be stored; nothing was sent."""


class DecodeError(CodecError):
    """Stored bytes cannot be read. `raw` keeps them, so that a dead letter can carry them."""

    def __init__(self, reason: str, raw: bytes = b"") -> None:
        super().__init__(reason, raw)
        self.reason, self.raw = reason, raw

    def __str__(self) -> str:
        return self.reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r}, {len(self.raw)} bytes)"


class InflationRefused(DecodeError):
    """Compressed bytes would unpack to more than is allowed."""


class EmbeddedError(PenstockError):
    """The embedded server cannot be used."""


class BinaryMissing(EmbeddedError):
    """There is no server binary for this platform."""


class StartFailed(EmbeddedError):
    """The embedded server did not become ready in the time given."""


class TopicError(PenstockError):
    """A topic, a group or a message is not as the caller thinks. Nothing was written."""


class TopicMissing(TopicError):
    """There is no such topic (any more)."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"there is no topic {self.topic!r}"


class TopicMismatch(TopicError):
    """The topic has another number of partitions than the caller says."""

    def __init__(self, topic: str, found: int, wanted: int) -> None:
        super().__init__(topic, found, wanted)
        self.topic, self.found, self.wanted = topic, found, wanted

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has {self.found} partitions, not {self.wanted}; "
            "leave the number out, or grow the topic"
        )


class GroupMissing(TopicError):
    """The topic has no such group."""

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(topic, group)
        self.topic, self.group = topic, group

    def __str__(self) -> str:
        return f"topic {self.topic!r} has no group {self.group!r}"


class LeaseLost(TopicError):
    """A partition has passed to another consumer; what the caller wanted was not written."""

    def __init__(self, topic: str, group: str, partition: int, epoch: int) -> None:
        super().__init__(topic, group, partition, epoch)
        self.topic, self.group, self.partition, self.epoch = topic, group, partition, epoch

    def __str__(self) -> str:
        return (
            f"partition {self.partition} of topic {self.topic!r} has passed to another consumer of "
            f"group {self.group!r}: epoch {self.epoch} is over"
        )


class InvalidMessage(TopicError):
    """A key, header, time or position that no message can have."""


class QueueError(PenstockError):
    """A queue or a job is not as the caller thinks."""


class QueueFull(QueueError):
    """There is no room, and the queue's policy takes no more; nothing was stored."""

    def __init__(self, queue: str, length: int, max_size: int, max_bytes: int = 0) -> None:
        super().__init__(queue, length, max_size, max_bytes)
        self.queue, self.length = queue, length
        self.max_size, self.max_bytes = max_size, max_bytes

    def __str__(self) -> str:
        jobs = str(self.max_size) if self.max_size else ""
        size = f"{self.max_bytes} bytes of them" if self.max_bytes else ""
        most = " or ".join(filter(None, (jobs, size)))
        return f"queue {self.queue!r} is full: {self.length} jobs wait, {most} may"


class QueueMismatch(QueueError):
    """Jobs are pushed to the other end of the queue than the caller says."""

    def __init__(self, queue: str, side: str, wanted: str) -> None:
        super().__init__(queue, side, wanted)
        self.queue, self.side, self.wanted = queue, side, wanted

    def __str__(self) -> str:
        return (
            f"jobs of queue {self.queue!r} are pushed to its {self.side}, not to its {self.wanted}"
        )


class JobMissing(QueueError):
    """There is no such job, or none that has a record."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} has no record of job {self.job_id!r}: they are kept for tasks "
            "and queues with status=True and jobs with an idempotency_key, for a time"
        )


class JobFailed(QueueError):
    """The job whose result was asked for ended without one: failed, cancelled or expired."""

    def __init__(self, queue: str, job_id: str, status: str, error: str) -> None:
        super().__init__(queue, job_id, status, error)
        self.queue, self.job_id, self.status, self.error = queue, job_id, status, error

    def __str__(self) -> str:
        why = f": {self.error}" if self.error else ""
        return f"job {self.job_id!r} in queue {self.queue!r} is {self.status}{why}"


class ClaimLost(QueueError):
    """A job has passed to another worker; what the caller said of it was not written."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r} in queue {self.queue!r} has passed to another worker"


class InvalidJob(QueueError, ValueError):
    """An argument, an option or a time that no job can have; nothing was stored."""


class SendBatchFailed(PenstockError):
    """Not every message of a batch is confirmed.

    `outcomes` tells of each, in their order: its id if it was stored, else why not (`Rejected`), or
    why that is not known (`OutcomeUnknown`).
    """

    def __init__(self, outcomes: list[str | PenstockError]) -> None:
        super().__init__(outcomes)
        self.outcomes = outcomes

    def __str__(self) -> str:
        failed = [outcome for outcome in self.outcomes if not isinstance(outcome, str)]
        first = f"; the first of the others: {failed[0]}" if failed else ""
        stored = len(self.outcomes) - len(failed)
        return f"{stored} of {len(self.outcomes)} messages are confirmed{first}"


class NotOpen(PenstockError):
    """Used before it was opened, after it was closed, or in a forked child."""


class ServerError(PenstockError):
    """A command did not end confirmed."""

    outcome: ClassVar[Outcome]
    transient: ClassVar[bool] = False
    """Whether the same call may succeed later without anyone changing anything in it."""


class OutcomeUnknown(ServerError):
    """Sent, but no answer came: the server may have done it."""

    outcome = Outcome.UNKNOWN
    transient = True


class DurabilityMissed(OutcomeUnknown):
    """It was stored, but is not known to be as safe as was asked for."""


class Rejected(ServerError):
    """The call did nothing."""

    outcome = Outcome.REJECTED


class Unreachable(Rejected):
    """No connection could be made."""

    transient = True


class TlsFailed(Unreachable):
    """The server's certificate, ours, or the protocol did not fit."""

    transient = False


class PoolExhausted(Rejected):
    """Every connection of the role stayed in use for as long as we may wait."""

    transient = True


class AuthenticationFailed(Rejected):
    """Wrong or missing user or password."""


class PermissionRefused(Rejected):
    """The server's access list does not allow it."""


class OutOfMemory(Rejected):
    """The server is at `maxmemory` and refuses to store more."""

    transient = True


class ReadOnlyReplica(Rejected):
    """This server is a replica, or lost its primary; the connection is dropped and found anew."""

    transient = True


class StillLoading(Rejected):
    """The server is reading its data from disk."""

    transient = True


class StorageFailing(Rejected):
    """The server cannot persist (disk full, read-only folder), so it accepts no writes."""

    transient = True


class TooFewReplicas(Rejected):
    """Fewer replicas are in step than the server demands for a write."""

    transient = True


class ClusterDown(Rejected):
    """The cluster has no owner for the slot now."""

    transient = True


class ServerBusy(Rejected):
    """A script or a function blocks the server."""

    transient = True


class Redirected(Rejected):
    """The slot lives on another node (MOVED, ASK) or is being moved (TRYAGAIN)."""

    transient = True


class ScriptMissing(Rejected):
    """The server does not know the script's digest (any more)."""

    transient = True


class DurabilityUnavailable(Rejected):
    """This server cannot promise the durability that was asked for; nothing was stored."""


class CommandRefused(Rejected):
    """The command is wrong here: wrong type, keys in several slots, bad arguments."""
