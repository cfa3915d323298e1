"""What files of the chatbot, for which this configuration was made, say in other words.

Its `client.yaml` and the files of its RAGs work here as they are: fields for other parts of it are
accepted and do nothing, fields with another name are taken under ours. What is on none of these
lists is a mistake.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CLIENT_IGNORED",
    "CLIENT_NAMES",
    "RAG_IGNORED",
    "RAG_NAMES",
    "STRATEGIES",
]

CLIENT_IGNORED: Final = frozenset(
    {
        "app",
        "cache",
        "concurrency",
        "error_handling",
        "llm",
        "monitoring",
        "paths.logs_dir",
        "paths.templates_dir",
        "qdrant.max_retries",
        "redis.max_pool_size",
        "redis.timeout_s",
        "security",
        "sessions",
    }
)
"""Sections and fields of `client.yaml` that do nothing here."""

CLIENT_NAMES: Final = {"qdrant.timeout_s": "qdrant.timeout"}
"""Fields of `client.yaml` with another name, and ours."""

RAG_IGNORED: Final = frozenset(
    {
        "cache",
        "chunking.secondary_separators",
        "chunking.separator",
        # An index is never cleared in place: `penstock ingest reindex` builds a new one beside it.
        "collection.recreation_policy",
        "collection.shard_number",
        "embeddings.normalize",
        "errors",
        "experimental",
        "llm",
        "metadata",
        "monitoring",
        "prompting",
        "rate_limit",  # of questions to the chatbot
        "retrieval.filter_duplicates",
        "retrieval.max_context_chunks",
        "retrieval.rerank",
        "security",
        "sessions",
    }
)
"""Sections and fields of a RAG's file that do nothing here."""

RAG_NAMES: Final = {
    "chunking.chunk_overlap": "chunking.overlap",
    "chunking.chunk_size": "chunking.size",
    "chunking.splitter": "chunking.strategy",
    "embeddings.batch_size": "embeddings.batch",
    "embeddings.model_name": "embeddings.model",
    "retrieval.score_threshold": "retrieval.threshold",
    "sources.allowed_extensions": "sources.extensions",
    "sources.auto_reload": "sources.watch",
    "sources.max_file_size_mb": "sources.max_mb",
}
"""Fields of a RAG's file with another name, and ours.

`embeddings.model_name` is a model of sentence-transformers where no provider is named.
"""

STRATEGIES: Final = {"recursive_character": "recursive", "semantic": "structure"}
"""Values of `chunking.splitter`, and ours of `chunking.strategy`."""
