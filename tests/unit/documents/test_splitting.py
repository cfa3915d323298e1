"""Blocks into chunks: nothing lost, nothing too long, nothing moved by an edit elsewhere."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing.chunks import Chunk
from penstock.pipelines.documents.parsing.formats.blocks import TextBlock
from penstock.pipelines.documents.parsing.splitting import split

DEFAULT = Chunking()
WORDS = ["river", "gate", "valve", "turbine", "reservoir", "spill", "level", "engineer", "rain"]


def sentence(rng: random.Random) -> str:
    words = [rng.choice(WORDS) for _ in range(rng.randint(5, 16))]
    return f"{' '.join(words).capitalize()} {rng.randint(0, 9999)}."


def paragraph(rng: random.Random, most: int = 8) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(1, most)))


def laid_out(texts: list[str], **fields: object) -> list[TextBlock]:
    """Blocks with an empty line between them, as parsers hand them over."""
    blocks: list[TextBlock] = []
    at = 0
    for text in texts:
        blocks.append(TextBlock(text, start=at, **fields))
        at += len(text) + 2
    return blocks


def sections(rng: random.Random, count: int) -> list[tuple[str, list[str]]]:
    return [
        (f"Section {number}", [paragraph(rng) for _ in range(rng.randint(1, 5))])
        for number in range(count)
    ]


def structured(parts: list[tuple[str, list[str]]]) -> list[TextBlock]:
    blocks: list[TextBlock] = []
    at = 0
    for heading, texts in parts:
        for text in (heading, *texts):
            blocks.append(TextBlock(text, headings=("Book", heading), start=at))
            at += len(text) + 2
    return blocks


def changed(before: list[Chunk], after: list[Chunk]) -> int:
    known = {chunk.text for chunk in before}
    return sum(chunk.text not in known for chunk in after)


TEXT = st.text(
    st.one_of(
        st.sampled_from("abc de.\n\n  \t,!?"),
        st.characters(exclude_categories=("Cs", "Cc")),
    ),
    max_size=600,
)
CHUNKINGS = st.builds(
    lambda strategy, size, part: Chunking(strategy=strategy, size=size, overlap=size * part // 10),
    st.sampled_from(["structure", "recursive"]),
    st.integers(64, 300),
    st.integers(0, 9),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, max_size=12), CHUNKINGS)
def test_text_is_all_there_at_its_place_and_in_pieces_of_the_size(texts, chunking):
    whole = "\n\n".join(texts)
    chunks = split(laid_out(texts), chunking)
    seen = bytearray(len(whole))
    for chunk in chunks:
        assert 0 < len(chunk.text) <= chunking.size
        assert whole[chunk.start : chunk.end] == chunk.text
        seen[chunk.start : chunk.end] = b"\x01" * (chunk.end - chunk.start)
    lost = "".join(sign for sign, there in zip(whole, seen, strict=True) if not there)
    assert not lost.strip()
    assert [chunk.start for chunk in chunks] == sorted(chunk.start for chunk in chunks)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(TEXT, st.sampled_from(["text", "code"]), st.sampled_from(["", "A", "B"])),
        max_size=12,
    ),
    CHUNKINGS,
)
def test_text_and_listings_among_headings_are_all_there(items, chunking):
    blocks: list[TextBlock] = []
    at = 0
    for content, kind, heading in items:
        text = f"# {heading}" if content.startswith("a") else content
        blocks.append(TextBlock(text, kind, None, (heading,) if heading else (), at))
        at += len(text) + 2
    whole = "\n\n".join(block.text for block in blocks)
    seen = bytearray(len(whole))
    for chunk in split(blocks, chunking):
        assert len(chunk.text) <= chunking.size
        assert whole[chunk.start : chunk.end].split() == chunk.text.split()
        seen[chunk.start : chunk.end] = b"\x01" * (chunk.end - chunk.start)
    assert not "".join(s for s, there in zip(whole, seen, strict=True) if not there).strip()


@pytest.mark.parametrize("seed", range(5))
def test_an_edit_among_headings_changes_only_chunks_of_its_section(seed):
    rng = random.Random(seed)  # noqa: S311
    parts = sections(rng, 12)
    before = split(structured(parts), DEFAULT)
    parts[5][1][0] = f"Inserted at the front. {parts[5][1][0]}"
    after = split(structured(parts), DEFAULT)
    assert changed(before, after) <= len(after) * 0.2
    assert all(
        chunk.headings[-1] == "Section 5"
        for chunk in after
        if chunk.text not in {each.text for each in before}
    )


@pytest.mark.parametrize("between", ["paragraphs", "lines", "nothing"])
def test_an_edit_in_text_without_headings_changes_a_few_chunks(between):
    rng = random.Random(7)  # noqa: S311
    texts = [paragraph(rng) for _ in range(150)]
    counts: list[int] = []
    for turn in range(20):
        edited = list(texts)
        place = rng.randrange(len(texts))
        edited[place] = f"{edited[place][:30]} something else {'entirely ' * (turn % 5)}"
        both = []
        for version in (texts, edited):
            if between == "paragraphs":
                both.append(split(laid_out(version), DEFAULT))
            else:
                joint = ("\n" if between == "lines" else " ").join(version)
                both.append(split([TextBlock(joint)], DEFAULT))
        counts.append(changed(*both))
        assert len(both[1]) > 60
    assert sum(counts) / len(counts) < 6
    assert max(counts) <= 16


def test_rows_and_lines_far_from_an_edit_stay_in_their_chunks():
    rng = random.Random(3)  # noqa: S311
    rows = [f"| {number} | {sentence(rng)} |" for number in range(300)]
    table = ["| no | what |", "| --- | --- |", *rows]
    code = [f"value_{number} = compute({rng.random()})" for number in range(400)]
    for kind, lines in (("table", table), ("code", code)):
        before = split([TextBlock("\n".join(lines), kind)], DEFAULT)
        lines.insert(50, "| new | row |" if kind == "table" else "inserted = True")
        after = split([TextBlock("\n".join(lines), kind)], DEFAULT)
        assert len(after) > 25
        assert changed(before, after) <= 6


def test_no_chunk_goes_over_a_heading_of_the_first_two_levels():
    blocks = [
        TextBlock("One", headings=("One",), start=0),
        TextBlock("Little.", headings=("One",), start=5),
        TextBlock("Two", headings=("Two",), start=14),
        TextBlock("Less.", headings=("Two",), start=19),
    ]
    assert [(chunk.text, chunk.headings) for chunk in split(blocks, DEFAULT)] == [
        ("One\n\nLittle.", ("One",)),
        ("Two\n\nLess.", ("Two",)),
    ]


def test_small_sections_below_go_together_under_what_they_share():
    blocks: list[TextBlock] = []
    at = 0
    for name in ("x", "y"):
        for text in (name, f"What {name} is here."):
            blocks.append(TextBlock(text, headings=("A", "B", name), start=at))
            at += len(text) + 2
    assert [(chunk.text, chunk.headings) for chunk in split(blocks, DEFAULT)] == [
        ("x\n\nWhat x is here.\n\ny\n\nWhat y is here.", ("A", "B"))
    ]


def test_a_heading_right_below_another_stays_with_the_text():
    long = "Text of the section. " * 40
    blocks = [
        TextBlock("# Book", headings=("Book",), start=0),
        TextBlock("## Part", headings=("Book", "Part"), start=8),
        TextBlock(long, headings=("Book", "Part"), start=17),
    ]
    chunks = split(blocks, DEFAULT)
    assert chunks[0].text.startswith("# Book\n\n## Part\n\nText of")
    assert {chunk.headings for chunk in chunks} == {("Book", "Part")}


def test_indented_text_below_a_heading_keeps_to_the_size():
    text = "    " + "x" * 2000
    blocks = [
        TextBlock("# Name", headings=("Name",), start=0),
        TextBlock(text, headings=("Name",), start=8),
    ]
    chunks = split(blocks, DEFAULT)
    assert chunks[0].text.startswith("# Name\n\n    xxx")
    assert max(len(chunk.text) for chunk in chunks) <= DEFAULT.size


def test_a_table_stays_whole_with_the_heading_before_it():
    table = "| a | b |\n| --- | --- |\n" + "\n".join(f"| {n} | {n * n} |" for n in range(20))
    blocks = [
        TextBlock("Squares", headings=("Squares",), start=0),
        TextBlock(table, "table", headings=("Squares",), start=9),
        TextBlock("After it. " * 30, headings=("Squares",), start=11 + len(table)),
    ]
    first, second = split(blocks, DEFAULT)
    assert (first.kind, first.text) == ("table", f"Squares\n\n{table}")
    assert second.kind == "text"


def test_a_large_table_is_cut_between_rows_and_repeats_its_head():
    head = "| name | value |\n| --- | --- |\n"
    rows = [f"| name {n} | {'v' * (n % 50)} |" for n in range(200)]
    table = head + "\n".join(rows)
    chunks = split([TextBlock(table, "table", page=4, start=1000)], DEFAULT)
    assert len(chunks) > 5
    found: list[str] = []
    for number, chunk in enumerate(chunks):
        assert chunk.kind == "table"
        assert chunk.page == 4
        assert len(chunk.text) <= DEFAULT.size
        assert chunk.text.startswith(head)
        mine = chunk.text[len(head) :]
        place = table[chunk.start - 1000 : chunk.end - 1000]
        assert place == (chunk.text if number == 0 else mine)
        found += mine.split("\n")
    assert found == rows


def test_rows_longer_than_a_chunk_are_split_within():
    table = f"| a | b |\n| --- | --- |\n| 1 | {'word ' * 400}|\n| 2 | x |"
    chunks = split([TextBlock(table, "table")], DEFAULT)
    assert all(len(chunk.text) <= DEFAULT.size for chunk in chunks)
    assert all(chunk.text.startswith("| a | b |\n") for chunk in chunks)
    assert "| 2 | x |" in chunks[-1].text
    assert sum(chunk.text.count("word") for chunk in chunks) == 400


def test_listings_stay_whole_and_small_ones_stay_with_their_text():
    small = "```sh\npip install it\n```"
    large = "```python\n" + "\n".join(f"line_{n} = {n}" for n in range(25)) + "\n```"
    texts = ["Install it with one command, and then go on reading about how it is used.", small]
    blocks = [
        TextBlock(texts[0], start=0),
        TextBlock(small, "code", start=len(texts[0]) + 2),
        TextBlock("More text. " * 40, start=200),
        TextBlock(large, "code", start=700),
    ]
    chunks = split(blocks, DEFAULT)
    assert chunks[0].text == "\n\n".join(texts)
    assert chunks[0].kind == "text"
    assert (chunks[-1].kind, chunks[-1].text) == ("code", large)


def test_large_listings_are_cut_between_lines():
    lines = [f"    value_{n} = {n}" for n in range(200)]
    chunks = split([TextBlock("\n".join(lines), "code")], DEFAULT)
    assert [line for chunk in chunks for line in chunk.text.split("\n")] == lines
    assert {chunk.kind for chunk in chunks} == {"code"}


def test_a_chunk_has_the_page_of_its_first_character():
    rng = random.Random(1)  # noqa: S311
    texts = [paragraph(rng, 20) for _ in range(6)]
    blocks: list[TextBlock] = []
    at = 0
    for page, text in enumerate(texts, 1):
        blocks.append(TextBlock(text, page=page, start=at))
        at += len(text) + 2
    for chunk in split(blocks, DEFAULT):
        on = next(b for b in reversed(blocks) if b.start <= chunk.start)
        assert chunk.page == on.page


def test_sentences_of_one_paragraph_overlap():
    text = " ".join(f"Sentence number {n} is here." for n in range(200))
    chunks = split([TextBlock(text)], Chunking(strategy="recursive", size=512, overlap=128))
    overlaps = [one.end - two.start for one, two in pairwise(chunks)]
    assert all(overlap <= 128 for overlap in overlaps)
    assert sum(overlap > 0 for overlap in overlaps) > len(overlaps) / 2


def test_by_size_alone_tables_and_headings_are_text():
    blocks = [
        TextBlock("One", headings=("One",), start=0),
        TextBlock("| a |\n| --- |\n| 1 |", "table", headings=("One",), start=5),
        TextBlock("Two", headings=("Two",), start=26),
    ]
    (chunk,) = split(blocks, Chunking(strategy="recursive"))
    assert chunk.kind == "text"
    assert chunk.text == "One\n\n| a |\n| --- |\n| 1 |\n\nTwo"


def test_no_text_makes_no_chunk():
    for strategy in ("structure", "recursive"):
        blocks = [TextBlock(" \n\t "), TextBlock("", "table"), TextBlock("\n\n", "code")]
        assert split(blocks, Chunking(strategy=strategy)) == []
        assert split([], Chunking(strategy=strategy)) == []


def test_the_same_blocks_make_the_same_chunks():
    blocks = laid_out([paragraph(random.Random(n)) for n in range(30)])  # noqa: S311
    assert split(blocks, DEFAULT) == split(blocks, DEFAULT)


def test_half_a_surrogate_pair_does_no_harm():
    text = "word \ud83d word. " * 100
    chunks = split([TextBlock(text)], DEFAULT)
    assert len(chunks) > 2
    assert all(len(chunk.text) == chunk.end - chunk.start for chunk in chunks)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 5_000_000,
        "ab " * 500_000,
        "x\n" * 250_000,
        "漢" * 250_000,
        "a" + "\u0301" * 500_000,
        "." * 500_000,
        "👨‍👩‍👧" * 50_000,
        " " * 1_000_000 + "x",
    ],
    ids=["token", "words", "lines", "han", "accents", "dots", "families", "spaces"],
)
@pytest.mark.parametrize("kind", ["text", "code", "table"])
def test_time_grows_with_the_text_and_not_with_its_square(text, kind):
    began = time.process_time()
    chunks = split([TextBlock(text, kind)], DEFAULT)
    assert time.process_time() - began < 20
    assert chunks
    assert max(len(chunk.text) for chunk in chunks) <= DEFAULT.size
