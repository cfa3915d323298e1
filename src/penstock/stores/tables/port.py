"""What tables can do, whichever database has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Row", "Tables", "Transaction", "Value"]

T = TypeVar("T")
Value = str | int | float | bytes | None
Row = tuple[Any, ...]


class Transaction(Protocol):
    """A transaction that is open. SQL that both databases know, with `?` for values."""

    def execute(self, sql: str, *values: Value) -> list[Row]:
        """Run a statement; the rows that it selects or returns, if any."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement once for each row of values."""
        ...


class Tables(Protocol):
    """One database. Made by `open_tables`.

    Work is a plain function, run in a thread: it may be run again after a conflict with another
    transaction, so it must do nothing but its statements. What it raises undoes it and reaches the
    caller. StoreAway or StoreFull for what the database cannot do now.
    """

    async def open(self) -> None:
        """Connect, and make what is missing. May come twice."""
        ...

    async def close(self) -> None: ...

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that may change things; it is on the disk when this returns."""
        ...

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work that only looks, on one state of the tables; waits for no writer."""
        ...
