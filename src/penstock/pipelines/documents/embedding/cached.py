"""Cached vectors: a text that any process embedded before is not embedded again."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from penstock.coordination.cache.cache import Cache
from penstock.errors import EmbedderFailed, NotOpen, ServerError
from penstock.pipelines.documents.embedding.embedder import Embedder, Embedding
from penstock.throttled_log import RateLimitedLog

__all__ = ["CachedEmbedder"]

quiet = RateLimitedLog(logging.getLogger(__name__))
_LET_ALONE_S: Final = 5.0
"""Pause after an error of the cache's server: each attempt may take seconds."""
_BYTES: Final = 4


class CachedEmbedder:
    """An embedder that keeps vectors in a cache, by the model and the text.

        embedder = CachedEmbedder(HttpEmbedder(...), app.cache("embedding"), ttl_s=7 * 86_400)

    A text that several processes request at once is embedded by one of them. `scope` separates
    models of the same name, as by their API. While the cache's server is away, all texts are
    embedded.
    """

    def __init__(self, embedder: Embedder, cache: Cache, ttl_s: float, *, scope: str = "") -> None:
        self._embedder, self._cache, self._ttl_s, self._scope = embedder, cache, ttl_s, scope
        self._asked_again = 0.0

    @property
    def model(self) -> str:
        return self._embedder.model

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    async def open(self) -> None:
        await self._embedder.open()

    async def close(self) -> None:
        await self._embedder.close()

    async def embed(self, texts: Sequence[str]) -> Embedding:
        """Vectors of the texts; `tokens` are those of the texts that were made now."""
        if not texts:
            return Embedding([], 0)
        made = _Made(self._embedder, self._keys(texts))
        found: dict[str, bytes] = {}
        if time.monotonic() >= self._asked_again:
            try:
                found = await self._cache.get_or_set_many(
                    made.texts, made.make, ttl=self._ttl_s, type=bytes
                )
            except (ServerError, NotOpen) as error:
                self._asked_again = time.monotonic() + _LET_ALONE_S
                quiet.warning("away", "vectors are embedded without the cache: %s", error)
        size = _BYTES * self.dimension
        wrong = [key for key, vector in found.items() if len(vector) != size]
        if wrong:
            await self._forget(wrong)
        found = {key: vector for key, vector in found.items() if len(vector) == size}
        # What was made before the server went away is not made twice.
        found |= made.vectors
        if missing := [key for key in made.texts if key not in found]:
            found |= await made.make(missing)
        vectors = [found[key] for key in made.keys]
        return Embedding(vectors, made.tokens, sum(key not in made.vectors for key in made.keys))

    def _keys(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        about = f"{self.model}\n{self.dimension}\n{self._scope}".encode(errors="surrogatepass")
        model = blake2b(about, digest_size=8).hexdigest()
        return [(f"{model}:{_digest(text)}", text) for text in texts]

    async def _forget(self, keys: list[str]) -> None:
        quiet.warning("wrong", "%d cached vectors are invalid and embedded again", len(keys))
        try:
            await self._cache.delete(*keys)
        except (ServerError, NotOpen):
            return  # they stay cached, and are embedded again at the next request


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


class _Made:
    """What was made for one call."""

    def __init__(self, embedder: Embedder, keys: list[tuple[str, str]]) -> None:
        self._embedder = embedder
        self.keys = [key for key, _ in keys]
        self.texts = dict(keys)
        self.vectors: dict[str, bytes] = {}
        self.tokens = 0

    async def make(self, missing: list[str]) -> dict[str, bytes]:
        vectors, tokens, _ = await self._embedder.embed([self.texts[key] for key in missing])
        if len(vectors) != len(missing):
            raise EmbedderFailed(
                f"the embedder gave {len(vectors)} vectors for {len(missing)} texts",
                "ERR_EMBEDDER_ANSWER",
            )
        made = dict(zip(missing, vectors, strict=True))
        self.vectors |= made
        self.tokens += tokens
        return made
