"""HTML: what a reader sees, in order, from however broken a page."""

from __future__ import annotations

import io
import time

import pytest

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.formats.blocks import ParsedDocument, ParseLimits
from penstock.pipelines.documents.parsing.formats.html import parse

LIMITS = ParseLimits(largest_text=64 << 20)
N = 100_000


def read(source: str | bytes, limits: ParseLimits = LIMITS) -> ParsedDocument:
    data = source.encode() if isinstance(source, str) else source
    return parse(io.BytesIO(data), limits)


def texts(source: str) -> list[str]:
    return [block.text for block in read(source).blocks]


def test_text_in_blocks_with_the_headings_above_them():
    parsed = read(
        "<!DOCTYPE html><html><head><title> On\n rivers </title></head><body>"
        "<h1>Rivers</h1><p>They <b>fl</b>ow<br>down.</p>"
        "<div>loose <p>para</p> tail</div>"
        "<h2>Dams</h2><p>Stop them.<h1>Lakes</h1>Still."
    )
    assert parsed.title == "On rivers"
    assert [(block.headings, block.text) for block in parsed.blocks] == [
        (("Rivers",), "Rivers"),
        (("Rivers",), "They flow\ndown."),
        (("Rivers",), "loose"),
        (("Rivers",), "para"),
        (("Rivers",), "tail"),
        (("Rivers", "Dams"), "Dams"),
        (("Rivers", "Dams"), "Stop them."),
        (("Lakes",), "Lakes"),
        (("Lakes",), "Still."),
    ]
    whole = "\n\n".join(block.text for block in parsed.blocks)
    for block in parsed.blocks:
        assert whole[block.start : block.start + len(block.text)] == block.text


def test_scripts_styles_and_navigation_are_left_out():
    source = (
        "<style>p{}</style><nav>Home <a>Up</a></nav><p>Kept</p><script>var x='<p>no</p>'</script>"
        "<noscript>Turn it on</noscript><template><p>no</p></template><svg><text>no</text></svg>"
        "<!-- no --><p>Kept too"
    )
    assert texts(source) == ["Kept", "Kept too"]


def test_tables_are_tables():
    parsed = read(
        "<table><caption>Sizes</caption><thead><tr><th>name<th>a|b</thead>"
        "<tr><td>one<td><p>x</p><p>y</p><tr><td colspan=2>wide</table>"
    )
    caption, table = parsed.blocks
    assert caption.text == "Sizes"
    assert table.kind == "table"
    assert table.text == "| name | a\\|b |\n| --- | --- |\n| one | x y |\n| wide |  |"


def test_tables_within_tables_are_flattened():
    (table,) = read(
        "<table><tr><td>a<td><table><tr><td>in<td>ner</table><tr><td>b<td>c</table>"
    ).blocks
    assert table.text == "| a | in ner |\n| --- | --- |\n| b | c |"


def test_tables_for_layout_are_text():
    long = "words of an article. " * 200
    parsed = read(f"<table><tr><td>menu<td>{long}</table><table><tr><td>alone</table>")
    assert [block.kind for block in parsed.blocks] == ["text"] * 3


def test_listings_keep_their_lines():
    (block,) = read("<pre><code>def f():\n    return  1\n</code></pre>").blocks
    assert (block.kind, block.text) == ("code", "def f():\n    return  1")


def test_lists_are_one_block():
    source = "<ul><li>one<ul><li>in</ul><li><p>two</p><p>more</p></ul><p>after"
    assert texts(source) == ["- one\n  - in\n- two\n  more", "after"]


def test_references_to_characters_are_resolved():
    assert texts("<p>&lt;b&gt; &eacute; &#8364; &amp; &nosuch;") == ["<b> é € & &nosuch;"]


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<meta charset="iso-8859-2">', "iso8859_2"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "cp1251"),
        ('<?xml version="1.0" encoding="koi8-r"?>', "koi8_r"),
        ("", "utf-16"),
        ("", "utf-8-sig"),
        ('<meta charset="iso-8859-1">', "utf-8"),
        ('<meta charset="no-such-thing">', "utf-8"),
        ('<meta charset="rot13">', "cp1252"),
    ],
)
def test_the_encoding_is_found(head, encoding):
    text = {"cp1251": "Вода течёт", "koi8_r": "Вода течёт"}.get(encoding, "Später öfter")
    data = f"{head}<p>{text} and plain words after it.</p>".encode(encoding)
    assert read(data).blocks[0].text == f"{text} and plain words after it."


@pytest.mark.parametrize(
    "doctype",
    ['<!DOCTYPE html [<!ENTITY a "b">]>', '<!doctype x SYSTEM "file:///etc/passwd" [\n]>'],
)
def test_entities_of_its_own_are_refused(doctype):
    with pytest.raises(ParseError) as caught:
        read(f"{doctype}<p>&a;</p>")
    assert caught.value.error_code == "ERR_XML_DOCTYPE"


def test_usual_document_types_are_fine():
    public = (
        '"-//W3C//DTD XHTML 1.0 Strict//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-strict.dtd"'
    )
    assert texts(f"<!DOCTYPE html PUBLIC {public}><p>x") == ["x"]


@pytest.mark.parametrize(
    "source", ["", " ", "<p> </p>", "<script>x</script>", "<!--x-->", "<title>x</title>"]
)
def test_pages_without_text_are_refused(source):
    with pytest.raises(ParseError) as caught:
        read(source)
    assert caught.value.error_code == "ERR_NO_TEXT"


def test_too_much_text_is_refused():
    small = ParseLimits(largest_text=100)
    for source in ("<p>" + "x" * 101, "<p>x" * 60, "<table>" + "<tr><td>x<td>y" * 5000, "x" * 1000):
        with pytest.raises(ParseError) as caught:
            read(source, small)
        assert caught.value.error_code == "ERR_TOO_MUCH_TEXT"


@pytest.mark.parametrize(
    "source",
    {
        "div": "<div>" * N + "deep" + "</div>" * N + "<p>after",
        "b": "<b>" * N + "deep",
        "crossed": "<b><i>" * N + "x</b>" * N,
        "tables": "<table><tr><td>" * N + "x",
        "lists": "<ul><li>" * N + "x",
        "closing": "x" + "</div>" * N,
        "attributes": "<p " + " ".join(f"a{n}=1" for n in range(50_000)) + ">x",
        "signs": "x" + "<" * N,
        "ampersands": "x" + "&" * N,
        "comments": "x" + "<!--" * N,
        "columns": "<table>" + "<tr><td colspan=99999999999>x<td>y" * 300,
        "listings": "<pre>" * N + "x",
        "doctypes": "x" + "<!doctype " * N,
        "one paragraph": "<p>" + "word " * 2_000_000,
        "forms": "<form><table>" * 20_000 + "x",
    }.items(),
    ids=lambda item: item[0],
)
def test_hostile_pages_take_no_longer_than_others(source):
    began = time.process_time()
    assert read(source[1]).blocks
    assert time.process_time() - began < 10
