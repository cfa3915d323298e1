"""The embedder that needs no network: the mean of a text's word vectors.

The vectors are those of WordLlama's `l2_supercat`, read from the files of its package. The package
itself is not imported: that takes longer than reading, and its loader wants to download.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ConfigError, DocumentRefused
from penstock.pipelines.documents.embedding.embedder import (
    Embedding,
    ThreadedEmbedder,
    unit_vectors,
    well_formed,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

__all__ = ["BuiltinEmbedder"]

_PACKAGE: Final = "wordllama"
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_DIMENSION: Final = 256
_INSTALL: Final = "the built-in embedder is not installed: pip install 'penstock[documents]'"

# Limits of one step, which bound its memory to some MiB.
_MOST_CHARACTERS: Final = 262_144
_MOST_TEXTS: Final = 256
_MOST_TOKENS: Final = 8_192

_loading = threading.Lock()


class BuiltinEmbedder(ThreadedEmbedder):
    """Embeds in a thread of its own; the same text always gives the same vector.

    Opening it reads the weights, 32 MiB that all embedders of the process share. DocumentRefused
    for a text without a single token: it has no vector.
    """

    @property
    def model(self) -> str:
        """Name and version of the weights. ConfigError if they are not installed."""
        try:
            version = importlib.metadata.version(_PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(_INSTALL) from None
        return f"wordllama-l2-supercat-{_DIMENSION}@{version}"

    @property
    def dimension(self) -> int:
        return _DIMENSION

    def _load(self) -> None:
        with _loading:
            self._loaded = _load()

    def _embed(self, loaded: _Model, texts: list[str]) -> Embedding:
        return _embedded(loaded, texts)


class _Model(NamedTuple):
    words: NDArray[np.float32]
    """A row for each token."""
    tokenizer: Tokenizer


@cache
def _load() -> _Model:
    found = importlib.util.find_spec(_PACKAGE)  # finds it, does not import it
    if found is None or not found.submodule_search_locations:
        raise ConfigError(_INSTALL)
    folder = Path(found.submodule_search_locations[0])
    try:
        import numpy as np  # noqa: PLC0415  an extra
        from safetensors.numpy import load  # noqa: PLC0415
        from tokenizers import Tokenizer  # noqa: PLC0415
    except ImportError:
        raise ConfigError(_INSTALL) from None
    try:
        [words] = load((folder / _WEIGHTS).read_bytes()).values()
        tokenizer: Any = Tokenizer.from_file(str(folder / _TOKENIZER))
    except Exception as error:  # noqa: BLE001
        # Of any type: another version has other files, or they are damaged.
        raise ConfigError(f"the weights of the built-in embedder cannot be read: {error}") from None
    if words.ndim != 2 or words.shape[1] != _DIMENSION:  # noqa: PLR2004
        raise ConfigError(f"the weights of the built-in embedder are of the shape {words.shape}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _Model(words.astype(np.float32), tokenizer)


def _embedded(model: _Model, texts: list[str]) -> Embedding:
    import numpy as np  # noqa: PLC0415

    sums = np.zeros((len(texts), _DIMENSION), np.float32)
    tokens = 0
    for start, some in _in_pieces(texts):
        encoded = model.tokenizer.encode_batch_fast(
            [well_formed(text) for text in some], add_special_tokens=False
        )
        for row, one in enumerate(encoded, start):
            ids = one.ids
            if not ids:
                raise DocumentRefused("an empty text has no vector", "ERR_EMBEDDER_REFUSED")
            tokens += len(ids)
            # Text by text is five times as fast as np.add.reduceat over all of them; the mean
            # and the sum point to the same place.
            for at in range(0, len(ids), _MOST_TOKENS):
                sums[row] += model.words.take(ids[at : at + _MOST_TOKENS], axis=0).sum(axis=0)
    return Embedding(unit_vectors(sums, texts), tokens)


def _in_pieces(texts: list[str]) -> list[tuple[int, list[str]]]:
    """Texts that are tokenised together, and where they begin."""
    pieces: list[tuple[int, list[str]]] = []
    size = _MOST_CHARACTERS
    for at, text in enumerate(texts):
        size += len(text)
        if size > _MOST_CHARACTERS or len(pieces[-1][1]) >= _MOST_TEXTS:
            pieces.append((at, []))
            size = len(text)
        pieces[-1][1].append(text)
    return pieces
