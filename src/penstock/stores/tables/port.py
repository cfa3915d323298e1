"""What every store of tables can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Row", "Tables", "Transaction", "Value"]

T = TypeVar("T")
Value = str | int | float | bytes | None
Row = tuple[Any, ...]


class Transaction(Protocol):
    """An open transaction. SQL that both databases accept, with `?` for values."""

    def execute(self, sql: str, *values: Value) -> list[Row]:
        """Run a statement; the rows that it returns, if any."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement once for each row of values."""
        ...


class Tables(Protocol):
    """One database. Made by `open_tables`.

    Work is a plain function, run in a thread. It may be run again after a conflict with another
    transaction, so it must have no effects but its statements. An exception rolls it back and is
    raised to the caller. StoreAway or StoreFull for what the database cannot do now.
    """

    async def open(self) -> None:
        """Connect, and make what is missing. May be called twice."""
        ...

    async def close(self) -> None: ...

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that may write; it is durable when this returns."""
        ...

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work that only reads, on one snapshot; waits for no writer."""
        ...
