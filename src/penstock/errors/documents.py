"""What stores and the pipeline of documents refuse."""

from __future__ import annotations

from typing import ClassVar

from penstock.errors.base import PenstockError

__all__ = [
    "ConfigurationWrong",
    "DocumentError",
    "DocumentRefused",
    "EmbedderFailed",
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
    """A store of tables, vectors or files did not do what it was asked to."""

    error_code: ClassVar[str] = "ERR_STORE"
    suggestions: tuple[str, ...] = ()


class StoreAway(StoreError):
    """It does not answer now; what was asked may or may not have happened. Ask again later."""

    error_code = "ERR_STORE_AWAY"
    retry_after: float | None = None
    """Seconds that it asks to be left alone."""


class StoreFull(StoreError):
    """There is no room on its disk; nothing was stored. Ask again when there is."""

    error_code = "ERR_DISK_FULL"
    suggestions = ("Free space on the disk: the job is tried again by itself",)


class StoreMismatch(StoreError):
    """What is stored is of another kind or size than the caller thinks."""

    error_code = "ERR_STORE_MISMATCH"


class DocumentError(PenstockError):
    """A document could not be taken in this time; it is tried again.

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
        """Seconds that whoever refused asks to be left alone."""

    def __str__(self) -> str:
        return self.reason


class ParserDied(DocumentError):
    """The process that read the document was ended: memory, time, or a crash."""


class EmbedderFailed(DocumentError):
    """The embedder refused or did not answer. No vector was made up."""


class DocumentRefused(DocumentError):
    """A document that no repetition makes acceptable: it goes to `failed/`."""


class FileMissing(DocumentRefused):
    """There is no such file (any more)."""


class FileRefused(DocumentRefused):
    """Not a regular file within its folder and of an allowed size."""


class UnsupportedFile(DocumentRefused):
    """A type that is not read, or another one than the name says."""


class ParseError(DocumentRefused):
    """The file is broken, encrypted, or made to harm its reader."""


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
