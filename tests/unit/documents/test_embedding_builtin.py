"""The built-in embedder: what is alike is near, and nothing is made up."""

import asyncio
import importlib.metadata
import math
import subprocess
import sys

import numpy as np
import pytest

from penstock.errors import ConfigError, DocumentRefused, EmbedderFailed, NotOpen
from penstock.pipelines.documents.embedding import builtin
from penstock.pipelines.documents.embedding.builtin import BuiltinEmbedder
from penstock.pipelines.documents.embedding.embedder import unit_vectors, well_formed

PLANTED = {
    "how do I get my money back": "Refunds are paid to the customer within fourteen days.",
    "the dog barked at night": "A puppy was heard barking in the dark.",
    "valves of a water pipe": "The pipeline's valve regulates the flow of water.",
    "court ruling on appeal": "The judge upheld the verdict of the lower tribunal.",
    "bake bread at home": "Knead the dough, let it rise, and put it into the oven.",
}


@pytest.fixture
async def embedder():
    made = BuiltinEmbedder()
    await made.open()
    yield made
    await made.close()


def rows_of(vectors):
    return np.array([np.frombuffer(vector, "<f4") for vector in vectors])


async def test_a_question_is_nearest_to_what_answers_it(embedder):
    answers = rows_of((await embedder.embed(list(PLANTED.values()))).vectors)
    questions = rows_of((await embedder.embed(list(PLANTED))).vectors)
    assert (questions @ answers.T).argmax(axis=1).tolist() == list(range(len(PLANTED)))


async def test_vectors_have_the_length_one_and_the_dimension_told(embedder):
    vectors, tokens, cached = await embedder.embed(["one", "two words", "ünïcödé ☃", "\x00", " "])
    assert (len(vectors), cached) == (5, 0)
    assert tokens >= 6
    assert {len(vector) for vector in vectors} == {4 * embedder.dimension} == {1024}
    assert np.allclose(np.linalg.norm(rows_of(vectors), axis=1), 1, atol=1e-6)


async def test_a_text_has_the_same_vector_alone_and_among_others(embedder):
    texts = [f"{word} number {number}" for number in range(600) for word in ("valve", "pump")]
    together = (await embedder.embed(texts)).vectors
    for at in (0, 255, 256, 257, 1_199):
        assert (await embedder.embed([texts[at]])).vectors == [together[at]]


async def test_a_text_longer_than_what_is_taken_at_once_counts_as_a_whole(embedder, monkeypatch):
    long = " ".join(f"word{number} valve" for number in range(2_000))
    whole = rows_of((await embedder.embed([long, "x"])).vectors)
    monkeypatch.setattr(builtin, "_MOST_TOKENS", 100)
    monkeypatch.setattr(builtin, "_MOST_CHARACTERS", 10)
    assert np.allclose(rows_of((await embedder.embed([long, "x"])).vectors), whole, atol=1e-5)


async def test_an_empty_text_is_refused_and_gets_no_vector(embedder):
    with pytest.raises(DocumentRefused, match="empty"):
        await embedder.embed(["something", ""])
    assert await embedder.embed([]) == ([], 0, 0)


async def test_half_a_character_does_no_harm(embedder):
    [vector] = (await embedder.embed(["broken \ud83d text"])).vectors
    assert vector == (await embedder.embed(["broken ? text"])).vectors[0]
    assert well_formed("fine ☃") == "fine ☃"


async def test_the_event_loop_goes_on_while_texts_are_embedded(embedder):
    texts = [f"a text of some length about valve {number}, " * 20 for number in range(2_000)]
    turns = 0
    asked = asyncio.create_task(embedder.embed(texts))
    while not asked.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert turns > 5
    await asked


async def test_it_is_used_while_it_is_open(embedder):
    other = BuiltinEmbedder()
    with pytest.raises(NotOpen):
        await other.embed(["text"])
    await other.close()
    await other.open()
    await other.open()
    assert (await other.embed(["text"])).vectors == (await embedder.embed(["text"])).vectors
    await other.close()
    await other.close()
    with pytest.raises(NotOpen):
        await other.embed(["text"])
    await other.open()
    assert len((await other.embed(["text"])).vectors) == 1
    await other.close()


def test_the_model_names_its_revision():
    version = importlib.metadata.version("wordllama")
    assert BuiltinEmbedder().model == f"wordllama-l2-supercat-256@{version}"


async def test_without_its_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(builtin, "_PACKAGE", "no_such_package_at_all")
    builtin._load.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"pip install 'penstock\[documents\]'"):
            _ = BuiltinEmbedder().model
        with pytest.raises(ConfigError, match=r"pip install 'penstock\[documents\]'"):
            await BuiltinEmbedder().open()
    finally:
        builtin._load.cache_clear()


async def test_damaged_weights_are_an_error_of_the_installation(monkeypatch, tmp_path):
    package = tmp_path / "broken_weights"
    (package / "weights").mkdir(parents=True)
    (package / "weights" / "l2_supercat_256.safetensors").write_bytes(b"\x00" * 100)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtin, "_PACKAGE", "broken_weights")
    builtin._load.cache_clear()
    try:
        with pytest.raises(ConfigError, match="cannot be read"):
            await BuiltinEmbedder().open()
    finally:
        builtin._load.cache_clear()


def test_the_package_of_the_weights_is_not_imported():
    program = (
        "import asyncio, sys\n"
        "from penstock.pipelines.documents.embedding.builtin import BuiltinEmbedder\n"
        "early = {'numpy', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
        "embedder = BuiltinEmbedder()\n"
        "async def main():\n"
        "    await embedder.open()\n"
        "    await embedder.embed(['text'])\n"
        "    await embedder.close()\n"
        "asyncio.run(main())\n"
        "print(sorted(early), 'wordllama' in sys.modules, 'requests' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (run.stdout, run.stderr) == ("[] False False\n", "")


def test_rows_that_are_no_vectors_are_refused():
    good = np.array([[3.0, 4.0]])
    assert np.frombuffer(unit_vectors(good, ["x"])[0], "<f4").tolist() == pytest.approx([0.6, 0.8])
    extreme = np.array([[1e38, 0.0], [1e-30, 0.0]], np.float32)
    assert [np.frombuffer(one, "<f4")[0] for one in unit_vectors(extreme, ["x", "y"])] == [1, 1]
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(EmbedderFailed):
            unit_vectors(np.array([[1.0, wrong]]), ["x"])
    with pytest.raises(DocumentRefused, match="'second'"):
        unit_vectors(np.array([[1.0, 0.0], [0.0, 0.0]]), ["first", "second"])
