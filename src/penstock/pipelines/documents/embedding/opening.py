"""The embedder of a RAG, by the `embeddings` of its file."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakValueDictionary

from penstock.app import Penstock
from penstock.errors import ConfigurationWrong
from penstock.pipelines.documents.config.models import Embeddings, RagConfig
from penstock.pipelines.documents.embedding.builtin import BuiltinEmbedder
from penstock.pipelines.documents.embedding.cached import CachedEmbedder
from penstock.pipelines.documents.embedding.embedder import Batcher, Embedder
from penstock.pipelines.documents.embedding.http import AT_ONCE, HttpEmbedder
from penstock.pipelines.documents.embedding.local import PythonEmbedder, SentenceEmbedder

__all__ = ["open_embedder"]

# By application; an embedder is dropped with the last of its users.
_shared: WeakKeyDictionary[Penstock, WeakValueDictionary[Embeddings, Batcher]]
_shared = WeakKeyDictionary()


def open_embedder(rag: RagConfig, app: Penstock) -> Embedder:
    """The embedder of a RAG, to be opened; RAGs with the same `embeddings` share one.

    Their texts are then batched together, and the limit on concurrent calls holds for all of them.
    ConfigurationWrong for settings that the provider does not support.
    """
    config, settings = rag.embeddings, app.settings.documents
    made = _shared.setdefault(app, WeakValueDictionary())
    if (known := made.get(config)) is not None:
        return known
    embedder = _provider(config, app)
    is_remembered = config.provider != "builtin" if config.cache is None else config.cache
    if is_remembered:
        cache = app.cache("embedding")
        embedder = CachedEmbedder(embedder, cache, settings.cache_s, scope=config.url or "")
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
