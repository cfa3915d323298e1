"""Where the vectors are: a choice of settings."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import ConfigError
from penstock.settings import Settings
from penstock.stores.vectors.port import VectorStore

__all__ = ["open_vectors"]


def open_vectors(settings: Settings) -> VectorStore:
    """The store that `vectors.url` names; without one, Qdrant's engine in `home`.

    It is not open yet: `await store.open()`. ConfigError if a package that it needs is missing.
    """
    # Each needs packages of its own, which not everybody has installed.
    if settings.vectors.url is not None:
        from penstock.stores.vectors.server import QdrantServer  # noqa: PLC0415

        return QdrantServer(settings.vectors)
    if find_spec("qdrant_edge") is None:
        raise ConfigError("vectors without an address need: pip install 'penstock[documents]'")
    from penstock.stores.vectors.housed import Housed  # noqa: PLC0415

    return Housed(settings.home_path / "vectors", settings.vectors)
