"""Errors of stores and of the document pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.errors.base import PenstockError

__all__ = [
    "ConfigurationWrong",
    "DocumentError",
    "DocumentRefused",
    "EmbedderFailed",
    "FencesMissing",
    "FileMissing",
    "FileRefused",
    "ParseError",
    "ParserDied",
    "RagMissing",
    "StoreAway",
    "StoreError",
    "StoreFull",
    "StoreMismatch",
    "UnsupportedFile",
]


class StoreError(PenstockError):
    """A store of tables, vectors or files failed."""

    error_code: ClassVar[str] = "ERR_STORE"
    suggestions: tuple[str, ...] = ()


class StoreAway(StoreError):
    """The store does not answer; the request may or may not have been executed. Try again later."""

    error_code = "ERR_STORE_AWAY"
    retry_after: float | None = None
    """Seconds to wait, as the store requested."""


class StoreFull(StoreError):
    """The disk of the store is full; nothing was stored."""

    error_code = "ERR_DISK_FULL"
    suggestions = ("Free space on the disk: the job is retried automatically",)


class StoreMismatch(StoreError):
    """What is stored has another kind or size than expected."""

    error_code = "ERR_STORE_MISMATCH"


class DocumentError(PenstockError):
    """An attempt to ingest a document failed; it is retried.

    `error_code` is for programs, `suggestions` are for people: both are in the job's record.
    """

    def __init__(
        self,
        reason: str,
        code: str = "ERR_DOCUMENT",
        suggestions: tuple[str, ...] = (),
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(reason, code, suggestions)
        self.reason, self.error_code, self.suggestions = reason, code, suggestions
        self.retry_after = retry_after
        """Seconds to wait, as the service that refused requested."""

    def __str__(self) -> str:
        return self.reason


class ParserDied(DocumentError):
    """The process that read the document exceeded its memory or time, or crashed."""


class FencesMissing(DocumentError):
    """Nothing was read: this machine cannot fence the process that would have read it.

    `missing` has the reason for each fence that does not stand.
    """

    def __init__(self, missing: Mapping[str, str]) -> None:
        listed = ", ".join(f"{fence} ({reason})" for fence, reason in missing.items())
        super().__init__(
            f"nothing is read without all fences, and these are missing: {listed}",
            "ERR_FENCES_MISSING",
            (
                "Run the worker on Linux 5.13 or newer with seccomp and Landlock",
                'Set documents.fences = "use" if the files are your own',
            ),
        )
        self.missing = dict(missing)

    def __reduce__(self) -> tuple[type[FencesMissing], tuple[dict[str, str]]]:
        return type(self), (self.missing,)


class EmbedderFailed(DocumentError):
    """The embedder refused or did not answer."""


class DocumentRefused(DocumentError):
    """A document that cannot be ingested: it is moved to `failed/`."""


class FileMissing(DocumentRefused):
    """The file does not exist."""


class FileRefused(DocumentRefused):
    """Not a regular file within its folder and of an allowed size."""


class UnsupportedFile(DocumentRefused):
    """An unsupported type, or not the type of its extension."""


class ParseError(DocumentRefused):
    """The file is broken, encrypted or malicious."""


class RagMissing(DocumentRefused):
    """No RAG of this name is configured."""

    def __init__(self, rag_id: str, known: tuple[str, ...] = ()) -> None:
        there = f"; there are {', '.join(known)}" if known else "; none is configured"
        super().__init__(
            f"there is no RAG {rag_id[:100]!r}{there}",
            "ERR_RAG_UNKNOWN",
            ("List what is configured with: penstock rag list",),
        )
        self.rag_id, self.known = rag_id, known

    def __reduce__(self) -> tuple[type[RagMissing], tuple[str, tuple[str, ...]]]:
        return type(self), (self.rag_id, self.known)


class ConfigurationWrong(DocumentRefused):
    """`client.yaml` or a RAG's file cannot be used; `problems` has every one of its mistakes."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        super().__init__(f"{source}: {'; '.join(problems)}", "ERR_CONFIG_INVALID")
        self.source, self.problems = source, problems

    def __reduce__(self) -> tuple[type[ConfigurationWrong], tuple[str, tuple[str, ...]]]:
        return type(self), (self.source, self.problems)
