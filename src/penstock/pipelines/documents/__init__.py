"""Documents for retrieval: read, split, embedded, indexed, with a status anyone can trust.

from penstock.pipelines.documents import Documents
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.pipelines.documents.service import Documents

__all__ = ["Documents"]


def __getattr__(name: str) -> Any:
    """Import it when it is used: the processes that read files need next to nothing of it."""
    if name == "Documents":
        return import_module("penstock.pipelines.documents.service").Documents
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
