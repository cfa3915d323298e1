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
├── NotOpen                   used before it was opened, after it was closed, or in a forked child
└── ServerError               a command did not end confirmed; `outcome` says how it did end
    ├── OutcomeUnknown        sent, but no answer came: it may have happened
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
    "ClusterDown",
    "CodecError",
    "CommandRefused",
    "ConfigError",
    "DecodeError",
    "EmbeddedError",
    "EncodeError",
    "InflationRefused",
    "InvalidName",
    "NotOpen",
    "OutOfMemory",
    "Outcome",
    "OutcomeUnknown",
    "PenstockError",
    "PermissionRefused",
    "PoolExhausted",
    "ReadOnlyReplica",
    "Redirected",
    "Rejected",
    "ScriptMissing",
    "ServerBusy",
    "ServerError",
    "SettingError",
    "StartFailed",
    "StillLoading",
    "StorageFailing",
    "TlsFailed",
    "TooFewReplicas",
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


class CommandRefused(Rejected):
    """The command is wrong here: wrong type, keys in several slots, bad arguments."""
