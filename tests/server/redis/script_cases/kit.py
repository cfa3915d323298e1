"""What a case of the table of scripts consists of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.redis.client import Client
from penstock.redis.wire import Argument

__all__ = ["Case", "Engine"]


@dataclass(frozen=True)
class Case:
    """One call of a script, made in the state that its engine populates.

    `removes` are names of keys that this script deletes or overwrites whatever is in them, with the
    reason in a comment: a key of another type is no obstacle there.
    """

    call: Callable[[Client], Awaitable[Any]]
    removes: Sequence[Callable[[Client], str]] = ()


@dataclass(frozen=True)
class Engine:
    """A populated state and the calls that are made in it."""

    populate: Callable[[Client, int], Sequence[tuple[Argument, ...]]]
    """The commands that make the state, given the server's ms. What must not be lost has a name in
    capitals and a number, as in `JOB-7`."""
    cases: dict[str, Sequence[Case]]
    """By the name of the script."""
    begin: Callable[[Client], Awaitable[Any]] | None = None
    """Calls that complete the state, where it is not stored as one would write it by hand."""
