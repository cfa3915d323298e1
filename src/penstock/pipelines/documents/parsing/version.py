"""Which parsers these are."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

__all__ = ["parser_version"]

_OURS: Final = "2"
"""Raise it when the same libraries come to read, refuse or split some file differently."""

_LIBRARIES: Final = (
    *("pypdfium2", "lxml", "markdown-it-py", "semantic-text-splitter"),
    "charset-normalizer",
)


@cache
def parser_version() -> str:
    """Changes whenever a file that was refused may now be read, or be split in another way.

    From metadata alone: no library is loaded for it.
    """
    return "-".join((_OURS, *(_version_of(library) for library in _LIBRARIES)))


def _version_of(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
