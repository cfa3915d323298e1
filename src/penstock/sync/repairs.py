"""Repairs for code that does not await: see `penstock.sync`."""

from __future__ import annotations

from penstock.inspector import repairs as asynchronous
from penstock.sync.portal import Blocking
from penstock.sync.sibling import Application, Sibling

__all__ = ["Repairs"]


class Repairs(Sibling[asynchronous.Repairs]):
    """`inspector.Repairs`, blocking: `Penstock.repairs`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app, lambda app: app.repairs)

    entries = Blocking(asynchronous.Repairs.entries)
    remove_entry = Blocking(asynchronous.Repairs.remove_entry)
    keys = Blocking(asynchronous.Repairs.keys)
    rename_key = Blocking(asynchronous.Repairs.rename_key)
    delete_key = Blocking(asynchronous.Repairs.delete_key)
    rename_namespace = Blocking(asynchronous.Repairs.rename_namespace)
