"""Rows of the ledger as objects."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.stores.files.naming import unescaped

__all__ = ["Attempt", "Begun", "DocumentRow", "JobRow", "RagRow", "Sealed", "Version", "columns"]

DocumentState = Literal[
    "processing", "sealed", "indexed", "failed", "cancelled", "forgetting", "forgotten"
]


class RagRow(msgspec.Struct, frozen=True, kw_only=True):
    """A RAG as it is: which collection serves it, and which one is being built."""

    rag_id: str
    version: int
    physical: str
    model: str
    dimension: int
    embeddings: str
    """How its vectors are made, as JSON: the file of the RAG may say otherwise by now."""
    shadow: str = ""
    shadow_model: str = ""
    shadow_dimension: int = 0
    shadow_embeddings: str = ""
    shadow_recipe: str = ""
    """Of all copies in the shadow: chunks of two kinds would be found beside each other."""
    batch_id: str = ""
    """Of the jobs that fill the shadow."""
    former: str = ""
    """The collection that was replaced, until it is removed."""


class DocumentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A document: the version that is found, and the attempt that began last."""

    rag_id: str
    doc_id: str
    state: DocumentState
    generation: int
    """Of the attempt that began last."""
    sealed: int
    """The generation that searches find; 0 if none. Those below describe it, up to `metadata`."""
    digest: str
    recipe: str
    chunks: int
    size: int
    type: str
    stored: str
    source: str
    metadata: str
    duplicate_of: str
    job_id: str
    """Of the last attempt, as all that follow."""
    new_digest: str
    new_recipe: str
    attempts: int
    submitted_ms: int
    begun_ms: int
    done_ms: int
    bad_digest: str
    """Of a file that cannot be read, with the parsers that said so."""
    bad_parser: str
    error_code: str
    error: str

    @property
    def file(self) -> str:
        """The name in `processed/` of the version that is found; `stored` is the same as text."""
        return unescaped(self.stored)


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    batch_id: str
    rag_id: str
    doc_id: str
    state: str
    """open, done, failed or cancelled."""
    submitted_ms: int
    ended_ms: int
    chunks: int
    error_code: str
    error: str


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to take in what."""

    rag_id: str
    doc_id: str
    job_id: str
    batch_id: str
    digest: str
    recipe: str
    parser: str
    source: str
    submitted_ms: int
    """A job that was submitted before one that has begun has nothing to say any more."""
    force: bool
    """Also if it has not changed, or is known to be bad."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says to an attempt."""

    verdict: Literal["go", "unchanged", "bad", "superseded"]
    rag: RagRow
    generation: int
    """Of this attempt; of the version that is there, if unchanged."""
    former: DocumentRow | None
    """As it was before."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a document."""

    chunks: int
    size: int
    type: str
    metadata: str


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["sealed", "superseded", "moved"]
    """`superseded` by a later attempt; `moved`: the RAG has another collection by now."""
    duplicate_of: str = ""


def columns(row: type[msgspec.Struct]) -> str:
    """The columns of a row for a SELECT, in the order of its fields."""
    return ", ".join(row.__struct_fields__)
