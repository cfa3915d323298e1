"""The embedder that a RAG's file asks for."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakValueDictionary

from penstock.app import Penstock
from penstock.errors import ConfigurationWrong
from penstock.pipelines.documents.configuration import Embeddings, RagConfig
from penstock.pipelines.documents.embedding.batching import Batcher
from penstock.pipelines.documents.embedding.builtin import BuiltinEmbedder
from penstock.pipelines.documents.embedding.http import AT_ONCE, HttpEmbedder
from penstock.pipelines.documents.embedding.port import Embedder
from penstock.pipelines.documents.embedding.python import PythonEmbedder
from penstock.pipelines.documents.embedding.remembering import Remembering
from penstock.pipelines.documents.embedding.sentence import SentenceEmbedder

__all__ = ["open_embedder"]

# By the application; the embedder goes with the last of its users.
_shared: WeakKeyDictionary[Penstock, WeakValueDictionary[Embeddings, Batcher]]
_shared = WeakKeyDictionary()


def open_embedder(rag: RagConfig, app: Penstock) -> Embedder:
    """The embedder of a RAG, to be opened; RAGs with the same `embeddings` share one.

    So their texts go together, and the limit on calls at once holds for all of them. It ends when
    all who opened it have closed it. ConfigurationWrong for what cannot be.
    """
    config, settings = rag.embeddings, app.settings.documents
    made = _shared.setdefault(app, WeakValueDictionary())
    if (known := made.get(config)) is not None:
        return known
    embedder = _provider(config, app)
    is_remembered = config.provider != "builtin" if config.cache is None else config.cache
    if is_remembered:
        cache = app.cache("embedding")
        embedder = Remembering(embedder, cache, settings.cache_s, scope=config.url or "")
    batcher = made[config] = Batcher(
        embedder,
        config.batch or settings.embed_batch,
        settings.embed_wait_ms / 1000,
        at_once=AT_ONCE if config.provider == "http" else 1,
    )
    return batcher


def _provider(config: Embeddings, app: Penstock) -> Embedder:
    if config.provider == "http":
        return HttpEmbedder(config, app)
    if config.provider == "sentence-transformers":
        return SentenceEmbedder(config)
    if config.provider == "python":
        return PythonEmbedder(config)
    builtin = BuiltinEmbedder()
    problems: list[str] = []
    if config.model not in {"", builtin.model, builtin.model.partition("@")[0]}:
        problems.append(f"model: the built-in one is {builtin.model!r}")
    if config.dimension not in {None, builtin.dimension}:
        problems.append(f"dimension: the built-in model has {builtin.dimension}")
    if problems:
        raise ConfigurationWrong("embeddings", tuple(problems))
    return builtin
