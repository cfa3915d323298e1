"""Markdown: structure where it helps, and data for everything else."""

from __future__ import annotations

import io
import time

import pytest

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.formats.blocks import (
    ParsedDocument,
    ParseLimits,
    TextBlock,
)
from penstock.pipelines.documents.parsing.formats.markdown import parse

LIMITS = ParseLimits(largest_text=64 << 20)
N = 100_000


def read(source: str) -> ParsedDocument:
    return parse(io.BytesIO(source.encode()), LIMITS)


def only(source: str) -> TextBlock:
    (block,) = read(source).blocks
    return block


SOURCE = """# Guide

Intro with a [link][home].

[home]: https://example.org

## Install `it`

```sh
pip install it


pip check
```

| a | b |
|---|---|
| 1 | 2 |

- one
- two

***

Setext
------

    indented code

<div onclick="alert(1)">raw</div>
"""


def test_blocks_are_slices_of_the_source_with_the_headings_above_them():
    parsed = read(SOURCE)
    for block in parsed.blocks:
        assert SOURCE[block.start : block.start + len(block.text)] == block.text
    found = [(block.kind, block.headings, block.text) for block in parsed.blocks]
    install = ("Guide", "Install `it`")
    assert found == [
        ("text", ("Guide",), "# Guide"),
        ("text", ("Guide",), "Intro with a [link][home]."),
        ("text", ("Guide",), "[home]: https://example.org"),
        ("text", install, "## Install `it`"),
        ("code", install, "```sh\npip install it\n\n\npip check\n```"),
        ("table", install, "| a | b |\n|---|---|\n| 1 | 2 |"),
        ("text", install, "- one\n- two"),
        ("text", ("Guide", "Setext"), "Setext\n------"),
        ("code", ("Guide", "Setext"), "    indented code"),
        ("text", ("Guide", "Setext"), '<div onclick="alert(1)">raw</div>'),
    ]
    assert parsed.title == "Guide"


def test_front_matter_gives_the_title_and_is_not_interpreted():
    bomb = "".join(f"k{n}: &k{n} [*k{n - 1}, *k{n - 1}]\n" for n in range(1, 30))
    source = (
        f'---\ntitle: "On: rivers"\n!!python/object/apply:os.system [x]: 1\n{bomb}---\n# H\n\nText'
    )
    parsed = read(source)
    assert parsed.title == "On: rivers"
    assert [block.text for block in parsed.blocks] == ["# H", "Text"]
    assert source[parsed.blocks[1].start :] == "Text"


def test_a_rule_at_the_beginning_is_no_front_matter():
    assert [block.text for block in read("---\n\nText without an end to it\n").blocks] == [
        "Text without an end to it"
    ]


def test_a_listing_without_end_goes_to_the_end():
    assert only("```\ncode\n\n# not a heading").kind == "code"


def test_a_heading_in_a_quote_or_list_is_text():
    assert only("> # quoted").headings == ()


def test_long_headings_are_cut_in_the_path_only():
    block = only(f"# {'long ' * 1000}")
    assert len(block.text) > 4000
    assert len(block.headings[0]) <= 200


def test_windows_line_ends_and_marks_are_no_matter():
    parsed = parse(io.BytesIO("\ufeff# A\r\n\r\nText\r\n".encode()), LIMITS)
    assert [block.text for block in parsed.blocks] == ["# A", "Text"]


@pytest.mark.parametrize("source", ["", "\n\n", "---\ntitle: x\n---\n", "***\n\n***"])
def test_nothing_to_read_is_refused(source):
    with pytest.raises(ParseError) as caught:
        read(source)
    assert caught.value.error_code == "ERR_NO_TEXT"


@pytest.mark.parametrize(
    "source",
    {
        "quotes": ">" * N + "x",
        "quotes with spaces": "> " * N + "x",
        "brackets": "[" * N,
        "links": "[](" * N,
        "emphasis": "*a " * N,
        "items in one line": "* " * N + "x",
        "nested items": "".join("  " * depth + "- x\n" for depth in range(500)),
        "backticks": "`a" * N,
        "columns": "|" * N + "\n" + "|-" * N + "|",
        "tags": "<a " * N,
        "comments": "<!--" * N,
        "headings": "# a\n" * (N // 4),
        "deep quotes": (">" * 40 + " a\n") * 5000,
        "definitions": "".join(f"[a{n}]: b\n" for n in range(10_000)),
        "open definitions": "[a]: <\n" * 10_000,
        "open titles": "[a]: b '\n" * 10_000,
        "one paragraph": "a\n" * 50_000,
        "rows": "|a|b|\n|-|-|\n" + "|x|y|\n" * 10_000,
        "lazy lines": "> a\n" + "b\n" * 50_000,
        "fences": "```\n" * 20_001,
        "front matter": "---\n" + "title\n" * N,
    }.items(),
    ids=lambda item: item[0],
)
def test_hostile_text_takes_no_longer_than_other_text(source):
    began = time.process_time()
    assert read(source[1]).blocks
    assert time.process_time() - began < 10
