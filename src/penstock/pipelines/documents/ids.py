"""The names that things get here."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from penstock.clock import SYSTEM_CLOCK

__all__ = ["PointIds", "new_batch_id", "new_job_id", "physical_name", "unique_key"]


def new_job_id(rag_id: str) -> str:
    """`rag-<rag_id>-<unix time>-<8 hex digits>`."""
    return f"rag-{rag_id}-{SYSTEM_CLOCK.wall_ms() // 1000}-{secrets.token_hex(4)}"


def new_batch_id(rag_id: str) -> str:
    return f"batch-{rag_id}-{SYSTEM_CLOCK.wall_ms() // 1000}-{secrets.token_hex(4)}"


def unique_key(*parts: str) -> str:
    """A unique key of the queue for what the parts name together."""
    text = "\0".join(parts).encode(errors="surrogatepass")
    return blake2b(text, digest_size=16).hexdigest()


def physical_name(alias: str, version: int) -> str:
    """The collection behind a RAG's name; each rebuild makes another."""
    return f"{alias}--v{version}"


class PointIds:
    """Ids of the points of one generation of a document.

    The same text in the same generation has the same id however often a job is repeated, so a
    repetition replaces its own points and nothing else. Generations share no point: whoever is
    superseded may remove all of its own.
    """

    def __init__(self, rag_id: str, doc_id: str, generation: int) -> None:
        told = f"{rag_id}\0{doc_id}\0{generation}".encode(errors="surrogatepass")
        self._space = blake2b(told, digest_size=32).digest()
        self._seen: Counter[bytes] = Counter()

    def of(self, digests: Iterable[bytes]) -> list[str]:
        """One id for each chunk, in their order; equal ones are numbered."""
        ids: list[str] = []
        for digest in digests:
            number = self._seen[digest]
            self._seen[digest] += 1
            told = digest + number.to_bytes(4)
            h = blake2b(told, digest_size=16, key=self._space).hexdigest()
            ids.append(f"{h[:8]}-{h[8:12]}-8{h[13:16]}-a{h[17:20]}-{h[20:]}")  # a UUID, version 8
        return ids
