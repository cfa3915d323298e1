"""A model behind a function of the user's own."""

from __future__ import annotations

import importlib
from typing import Any, Final

from penstock.errors import (
    ConfigError,
    ConfigurationWrong,
    DocumentError,
    DocumentRefused,
    EmbedderFailed,
)
from penstock.pipelines.documents.configuration import Embeddings
from penstock.pipelines.documents.embedding.port import Embedding
from penstock.pipelines.documents.embedding.threaded import ThreadedEmbedder
from penstock.pipelines.documents.embedding.vectors import unit_vectors, well_formed

__all__ = ["PythonEmbedder"]

_PROBE: Final = "How long are the vectors?"
_CHARACTERS_PER_TOKEN: Final = 4
_MATRIX: Final = 2


class PythonEmbedder(ThreadedEmbedder):
    """What `model: "package.module:factory"` names, in a thread of its own.

        def factory():
            model = load(...)
            return lambda texts: model.encode(texts)     # a row of numbers for each text

    The factory is called once, when the embedder is opened; what it returns is called with a list
    of texts, by one thread at a time. If that has a `revision`, it belongs to the model's name.
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
            # The user's code raises what it likes.
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
    """What the user's function gives, as a matrix."""
    import numpy as np  # noqa: PLC0415  an extra

    try:
        rows = np.asarray(made(texts), np.float32)
    except DocumentError:
        raise  # it knows our errors, and means this one
    except Exception as error:
        raise EmbedderFailed(f"the embedder raised {error!r}", "ERR_EMBEDDER_FAILED") from error
    if rows.ndim != _MATRIX or len(rows) != len(texts) or not rows.shape[1]:
        raise EmbedderFailed(
            f"the embedder gave {rows.shape} for {len(texts)} texts; expected a row of numbers for "
            "each",
            "ERR_EMBEDDER_ANSWER",
        )
    return rows
