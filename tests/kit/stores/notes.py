"""A table of names, to see what tables keep."""

from __future__ import annotations

from collections.abc import Callable

from penstock.stores.tables.port import Tables, Transaction

__all__ = ["add_note", "note_names"]


def add_note(name: str) -> Callable[[Transaction], str]:
    """What `tables.write` runs to add a row."""

    def work(t: Transaction) -> str:
        t.execute("INSERT INTO notes VALUES (?)", name)
        return name

    return work


async def note_names(tables: Tables) -> list[str]:
    rows = await tables.read(lambda t: t.execute("SELECT name FROM notes ORDER BY name"))
    return [row[0] for row in rows]
