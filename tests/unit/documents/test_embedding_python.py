"""Embedders of the user's own: a module that stands in for his."""

import sys
from types import ModuleType

import numpy as np
import pytest

from penstock.errors import (
    ConfigError,
    ConfigurationWrong,
    DocumentRefused,
    EmbedderFailed,
    NotOpen,
)
from penstock.pipelines.documents.config.models import Embeddings
from penstock.pipelines.documents.embedding.local import PythonEmbedder


class Lengths:
    revision = "7"

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked.append(texts)
        if "fail" in texts:
            raise RuntimeError("out of luck")
        if "refuse" in texts:
            raise DocumentRefused("not this one", "ERR_MINE")
        width = 2 if "narrow" in texts else 3
        return [[len(text), 1, 0][:width] for text in texts if text != "skip"]


@pytest.fixture
def mine(monkeypatch):
    module = ModuleType("mine")
    module.Lengths = Lengths
    module.none = lambda: lambda texts: [[] for _ in texts]
    module.broken = lambda: 1 / 0
    module.not_callable = lambda: 7
    module.words = lambda: lambda texts: texts
    monkeypatch.setitem(sys.modules, "mine", module)


def embedder_of(model="mine:Lengths", dimension=None):
    return PythonEmbedder(Embeddings(provider="python", model=model, dimension=dimension))


async def test_a_function_of_the_user_makes_vectors_of_length_one(mine):
    embedder = embedder_of()
    with pytest.raises(NotOpen):
        _ = embedder.dimension
    with pytest.raises(NotOpen):
        await embedder.embed(["x"])
    await embedder.open()
    await embedder.open()
    assert embedder.dimension == 3
    assert embedder.model == "mine:Lengths@7"
    vectors, tokens, cached = await embedder.embed(["abc", "half \ud83d"])
    assert np.allclose(np.frombuffer(vectors[0], "<f4"), np.array([3, 1, 0]) / 10**0.5)
    assert embedder._loaded.asked[-1] == ["abc", "half ?"]
    assert tokens > 0
    assert cached == 0
    assert await embedder.embed([]) == ([], 0, 0)
    await embedder.close()
    await embedder.close()


@pytest.mark.parametrize(
    ("text", "error", "code"),
    [
        ("fail", EmbedderFailed, "ERR_EMBEDDER_FAILED"),
        ("skip", EmbedderFailed, "ERR_EMBEDDER_ANSWER"),
        ("refuse", DocumentRefused, "ERR_MINE"),
        ("narrow", DocumentRefused, "ERR_DIMENSION_MISMATCH"),
    ],
)
async def test_what_goes_wrong_in_it_is_told_by_its_code(mine, text, error, code):
    embedder = embedder_of()
    await embedder.open()
    with pytest.raises(error) as raised:
        await embedder.embed(["abc", text])
    assert raised.value.error_code == code
    assert len((await embedder.embed(["abc"])).vectors) == 1
    await embedder.close()


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("missing_module_of_mine:Lengths", "missing_module_of_mine"),
        ("mine:Missing", "Missing"),
        ("mine:broken", "ZeroDivisionError"),
        ("mine:not_callable", "not callable"),
        ("mine:words", "could not convert"),
        ("mine:none", "expected a row of numbers"),
    ],
)
async def test_what_cannot_be_made_is_a_mistake_in_the_configuration(mine, model, problem):
    with pytest.raises(ConfigError, match=problem):
        await embedder_of(model).open()


async def test_its_dimension_and_its_name_are_checked(mine):
    with pytest.raises(ConfigurationWrong, match="3 numbers"):
        await embedder_of(dimension=4).open()
    for model in ("", "mine", ":Lengths", "mine:"):
        with pytest.raises(ConfigurationWrong, match="module:factory"):
            embedder_of(model)
