"""A model that runs in a thread of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.errors import NotOpen
from penstock.pipelines.documents.configuration import Embeddings
from penstock.pipelines.documents.embedding.port import Embedding

__all__ = ["ThreadedEmbedder"]


class ThreadedEmbedder(ABC):
    """What embedders have in common that load a model and call it, one call at a time."""

    def __init__(self, config: Embeddings) -> None:
        self._config = config
        self._thread: ThreadPoolExecutor | None = None
        self._loaded: Any = None
        self._dimension = config.dimension
        self._revision = ""

    @property
    def model(self) -> str:
        """The name, and once it is open the revision, if the model has one."""
        name = self._config.model
        return f"{name}@{self._revision}" if self._revision else name

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            raise NotOpen("the dimension is known once the embedder is open")
        return self._dimension

    async def open(self) -> None:
        """Load the model. ConfigError if that cannot be done. May come twice."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-embedder")
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the thread and drop the model. May come twice."""
        thread, self._thread, self._loaded = self._thread, None, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)

    async def embed(self, texts: Sequence[str]) -> Embedding:
        if self._thread is None or self._loaded is None:
            raise NotOpen("the embedder is not open: call open() first")
        if not texts:
            return Embedding([], 0)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._embed, self._loaded, list(texts))

    @abstractmethod
    def _load(self) -> None:
        """Set `_loaded`, `_dimension` and `_revision`, unless they are. Runs in the thread."""

    @abstractmethod
    def _embed(self, loaded: Any, texts: list[str]) -> Embedding:
        """Ask the model. Runs in the thread."""
