"""What PostgreSQL's errors mean to callers."""

from __future__ import annotations

import psycopg

from penstock.errors import StoreAway, StoreError, StoreFull

__all__ = ["Conflict", "ConnectionLost", "judged", "judged_connect"]


class ConnectionLost(StoreAway):
    """The server hung up before it was told to commit: nothing has happened."""


class Conflict(StoreAway):
    """Another transaction came first; this one was undone and can be run again."""


_CONFLICTS = {"40001", "40P01"}  # serialization failure, deadlock
_FULL = "53100"
# 08 connection, 25P03 idle in transaction, 53 resources, 55P03 lock, 57 operator, 58 system.
_AWAY = ("08", "25P03", "53", "55P03", "57", "58")
_READ_ONLY = "25006"
# Before there is a connection libpq hands on no code. In another language than this, a refusal that
# lasts counts as one that may pass.
_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "no pg_hba.conf entry",
    "permission denied for database",
)


def judged(error: Exception, *, is_lost: bool, is_write: bool) -> StoreError:
    """Say what it means; for whatever a statement raised, also of values that cannot be stored."""
    if not isinstance(error, psycopg.Error):
        return StoreError(f"a value cannot be stored: {error}")
    state, words = error.sqlstate or "", _words(error)
    if is_lost:
        return ConnectionLost(f"PostgreSQL hung up: {words}")
    if state in _CONFLICTS:
        return Conflict(f"PostgreSQL had too many conflicts: {words}")
    if state == _FULL:
        return StoreFull(f"PostgreSQL has no room: {words}")
    # A standby refuses what a reader must not do anyway.
    if state.startswith(_AWAY) or (state == _READ_ONLY and is_write):
        return StoreAway(f"PostgreSQL cannot do it now: {words}")
    return StoreError(f"PostgreSQL: {words}")


def judged_connect(error: psycopg.Error) -> StoreError:
    """Say why there is no connection. libpq's words name host and user, never the password."""
    words = _words(error)
    if any(sign in words for sign in _REFUSALS):
        return StoreError(f"PostgreSQL refuses: {words}")
    return StoreAway(f"PostgreSQL cannot be reached: {words}")


def _words(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
