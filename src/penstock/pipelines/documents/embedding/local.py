"""Models of the user in this process: of sentence-transformers, or a Python function."""

from __future__ import annotations

import importlib
from typing import Any, Final

from penstock.errors import (
    ConfigError,
    ConfigurationWrong,
    DocumentError,
    DocumentRefused,
    EmbedderFailed,
    NotOpen,
)
from penstock.pipelines.documents.config.models import Embeddings
from penstock.pipelines.documents.embedding.embedder import (
    Embedding,
    ThreadedEmbedder,
    unit_vectors,
    well_formed,
)

__all__ = ["PythonEmbedder", "SentenceEmbedder"]


class LocalEmbedder(ThreadedEmbedder):
    """A model that the RAG's file names; subclasses load and call it."""

    def __init__(self, config: Embeddings) -> None:
        super().__init__()
        self._config = config
        self._dimension = config.dimension
        self._revision = ""

    @property
    def model(self) -> str:
        """The name and, once it is open, the revision, if the model has one."""
        name = self._config.model
        return f"{name}@{self._revision}" if self._revision else name

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            raise NotOpen("the dimension is known once the embedder is open")
        return self._dimension


_MOST_AT_ONCE: Final = 32
_CHARACTERS_PER_TOKEN: Final = 4


class SentenceEmbedder(LocalEmbedder):
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
            # Its loaders raise errors of many types: no such model, no network, no memory.
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


_PROBE: Final = "How long are the vectors?"
_MATRIX: Final = 2


class PythonEmbedder(LocalEmbedder):
    """The function that `model: "package.module:factory"` makes, in a thread of its own.

        def factory():
            model = load(...)
            return lambda texts: model.encode(texts)     # a row of numbers for each text

    The factory is called once, when the embedder is opened. Its function is called with a list of
    texts, by one thread at a time; an attribute `revision` of it becomes part of the model's name.
    """

    def __init__(self, config: Embeddings) -> None:
        module, colon, factory = config.model.partition(":")
        if not (module and colon and factory):
            problem = "model: the provider 'python' needs it, as package.module:factory"
            raise ConfigurationWrong("embeddings", (problem,))
        super().__init__(config)
        self._module, self._factory = module, factory

    def _load(self) -> None:
        if self._loaded is not None:
            return
        name = self._config.model
        try:
            made: Any = importlib.import_module(self._module)
            for part in self._factory.split("."):
                made = getattr(made, part)
            made = made()
        except Exception as error:
            raise ConfigError(f"cannot make the embedder {name!r}: {error!r}") from error
        try:
            dimension = _rows(made, [_PROBE]).shape[1]
        except DocumentError as error:
            raise ConfigError(f"the embedder {name!r} cannot be used: {error}") from error
        if self._config.dimension not in (None, dimension):
            problem = f"dimension: {name!r} makes vectors of {dimension} numbers"
            raise ConfigurationWrong("embeddings", (problem,))
        self._dimension, self._revision = dimension, str(getattr(made, "revision", ""))
        self._loaded = made

    def _embed(self, loaded: Any, texts: list[str]) -> Embedding:
        rows = _rows(loaded, [well_formed(text) for text in texts])
        if rows.shape[1] != self.dimension:
            raise DocumentRefused(
                f"{self.model} gave vectors of {rows.shape[1]} numbers, not {self.dimension}",
                "ERR_DIMENSION_MISMATCH",
            )
        tokens = sum(len(text) // _CHARACTERS_PER_TOKEN + 1 for text in texts)
        return Embedding(unit_vectors(rows, texts), tokens)


def _rows(made: Any, texts: list[str]) -> Any:
    """Result of the user's function, as a matrix."""
    import numpy as np  # noqa: PLC0415  an extra

    try:
        rows = np.asarray(made(texts), np.float32)
    except DocumentError:
        raise  # raised by the function on purpose
    except Exception as error:
        raise EmbedderFailed(f"the embedder raised {error!r}", "ERR_EMBEDDER_FAILED") from error
    if rows.ndim != _MATRIX or len(rows) != len(texts) or not rows.shape[1]:
        raise EmbedderFailed(
            f"the embedder gave {rows.shape} for {len(texts)} texts; expected a row of numbers for "
            "each",
            "ERR_EMBEDDER_ANSWER",
        )
    return rows
