"""Models of sentence-transformers, which is not installed here: a module stands in for it."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from penstock.errors import ConfigError, ConfigurationWrong, DocumentRefused, NotOpen
from penstock.pipelines.documents.config.models import Embeddings
from penstock.pipelines.documents.embedding.local import SentenceEmbedder

CONFIG = Embeddings(provider="sentence-transformers", model="tiny")


class FakeModel:
    def __init__(self, name):
        if name == "missing":
            raise OSError("no such model")
        self.width = 3

    def __getitem__(self, _):
        return SimpleNamespace(
            auto_model=SimpleNamespace(config=SimpleNamespace(_commit_hash="0123456789abcdef"))
        )

    def get_sentence_embedding_dimension(self):
        return 3

    def encode(self, texts, **options):
        assert options["convert_to_numpy"]
        return np.array([[len(text), 1.0, 0.0][: self.width] for text in texts], np.float32)


@pytest.fixture
def installed(monkeypatch):
    library = ModuleType("sentence_transformers")
    library.SentenceTransformer = FakeModel
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)


async def test_without_its_package_it_says_what_to_install(not_installed):
    with pytest.raises(ConfigError, match="pip install sentence-transformers"):
        await SentenceEmbedder(CONFIG).open()


async def test_texts_become_vectors_of_length_one(installed):
    embedder = SentenceEmbedder(CONFIG)
    with pytest.raises(NotOpen):
        _ = embedder.dimension
    with pytest.raises(NotOpen):
        await embedder.embed(["x"])
    await embedder.open()
    await embedder.open()
    assert embedder.dimension == 3
    assert embedder.model == "tiny@0123456789ab"
    vectors, tokens, cached = await embedder.embed(["abc", "half \ud83d"])
    assert np.allclose(np.frombuffer(vectors[0], "<f4"), np.array([3, 1, 0]) / 10**0.5)
    assert tokens > 0
    assert cached == 0
    assert await embedder.embed([]) == ([], 0, 0)
    embedder._loaded.width = 2
    with pytest.raises(DocumentRefused) as refused:
        await embedder.embed(["abc"])
    assert refused.value.error_code == "ERR_DIMENSION_MISMATCH"
    await embedder.close()
    await embedder.close()


async def test_what_cannot_be_loaded_is_a_mistake_in_the_configuration(installed):
    with pytest.raises(ConfigError, match="no such model"):
        await SentenceEmbedder(Embeddings(model="missing")).open()
    with pytest.raises(ConfigurationWrong, match="has 3"):
        await SentenceEmbedder(Embeddings(model="tiny", dimension=4)).open()
    with pytest.raises(ConfigurationWrong, match="model"):
        SentenceEmbedder(Embeddings())
