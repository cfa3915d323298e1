"""Errors of commands that the server did not confirm."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from penstock.errors.base import PenstockError

__all__ = [
    "AuthenticationFailed",
    "ClusterDown",
    "CommandRefused",
    "DurabilityMissed",
    "DurabilityUnavailable",
    "HostNotAllowed",
    "OutOfMemory",
    "Outcome",
    "OutcomeUnknown",
    "PermissionRefused",
    "PoolExhausted",
    "ReadOnlyReplica",
    "Redirected",
    "Rejected",
    "ScriptFailed",
    "ScriptMissing",
    "ServerBusy",
    "ServerError",
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


class ScriptFailed(OutcomeUnknown):
    """An error was raised inside a script: what it had written before stays written."""

    transient = False


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
    """This server is a replica, or lost its primary; the connection is replaced."""

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


class HostNotAllowed(Rejected):
    """A cluster or a sentinel names a host that `cluster.hosts` does not allow: not connected."""


class ScriptMissing(Rejected):
    """The server does not know the script's digest (any more)."""

    transient = True


class DurabilityUnavailable(Rejected):
    """This server cannot promise the durability that was asked for; nothing was stored."""


class CommandRefused(Rejected):
    """The command is wrong here: wrong type, keys in several slots, bad arguments."""
