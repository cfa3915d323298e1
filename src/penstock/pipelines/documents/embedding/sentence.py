"""Models of sentence-transformers, which the user installs himself: it is a gigabyte."""

from __future__ import annotations

import importlib
from typing import Any, Final

from penstock.errors import ConfigError, ConfigurationWrong, DocumentRefused
from penstock.pipelines.documents.configuration import Embeddings
from penstock.pipelines.documents.embedding.port import Embedding
from penstock.pipelines.documents.embedding.threaded import ThreadedEmbedder
from penstock.pipelines.documents.embedding.vectors import unit_vectors, well_formed

__all__ = ["SentenceEmbedder"]

_MOST_AT_ONCE: Final = 32
_CHARACTERS_PER_TOKEN: Final = 4


class SentenceEmbedder(ThreadedEmbedder):
    """A model of sentence-transformers by its name, or the path of its folder, in a thread."""

    def __init__(self, config: Embeddings) -> None:
        if not config.model:
            raise ConfigurationWrong(
                "embeddings", ("model: the provider 'sentence-transformers' needs it",)
            )
        super().__init__(config)

    def _load(self) -> None:
        if self._loaded is not None:
            return
        try:
            library: Any = importlib.import_module("sentence_transformers")
        except ImportError:
            raise ConfigError(
                "the provider 'sentence-transformers' is not installed: "
                "pip install sentence-transformers"
            ) from None
        try:
            loaded = library.SentenceTransformer(self._config.model)
        except Exception as error:
            # Its loaders raise what they like: no such model, no network, not enough memory.
            raise ConfigError(f"cannot load the model {self._config.model!r}: {error}") from error
        dimension = int(loaded.get_sentence_embedding_dimension())
        if self._config.dimension not in (None, dimension):
            raise ConfigurationWrong(
                "embeddings", (f"dimension: the model {self._config.model!r} has {dimension}",)
            )
        self._dimension = dimension
        self._revision = _revision_of(loaded)
        self._loaded = loaded

    def _embed(self, loaded: Any, texts: list[str]) -> Embedding:
        import numpy as np  # noqa: PLC0415  an extra

        rows = loaded.encode(
            [well_formed(text) for text in texts],
            batch_size=_MOST_AT_ONCE,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        rows = np.asarray(rows)
        if rows.shape != (len(texts), self.dimension):
            raise DocumentRefused(
                f"{self.model} gave vectors of the shape {rows.shape}, not of dimension "
                f"{self.dimension}",
                "ERR_DIMENSION_MISMATCH",
            )
        tokens = sum(len(text) // _CHARACTERS_PER_TOKEN + 1 for text in texts)
        return Embedding(unit_vectors(rows, texts), tokens)


def _revision_of(loaded: Any) -> str:
    """The commit of the model's repository; nothing for one from a folder."""
    try:
        revision = loaded[0].auto_model.config._commit_hash  # noqa: SLF001  the only place
    except (AttributeError, IndexError, KeyError, TypeError):
        return ""
    return revision[:12] if isinstance(revision, str) else ""
