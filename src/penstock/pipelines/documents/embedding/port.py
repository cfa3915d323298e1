"""What an embedder is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["Embedder", "Embedding"]


class Embedding(NamedTuple):
    """Vectors for texts, in their order."""

    vectors: list[bytes]
    """Little-endian float32, of length 1."""
    tokens: int
    """How many the model counted; an estimate where it does not say."""
    cached: int = 0
    """How many were remembered rather than made."""


class Embedder(Protocol):
    """Turns texts into vectors. EmbedderFailed if it cannot now; never a vector that is made up."""

    @property
    def model(self) -> str:
        """Name and revision: vectors of different models never meet in one collection."""
        ...

    @property
    def dimension(self) -> int: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Embedding: ...
