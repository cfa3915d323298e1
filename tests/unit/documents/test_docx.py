"""DOCX: all of its text, and none of the harm an archive of XML can do."""

from __future__ import annotations

import io
import struct
import time
import zipfile
import zlib

import docx
import pytest

from penstock.errors import ParseError
from penstock.pipelines.documents.parsing.formats.blocks import ParsedDocument, ParseLimits
from penstock.pipelines.documents.parsing.formats.docx import parse

LIMITS = ParseLimits(largest_text=64 << 20)
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
MC = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml"
TYPES = "[Content_Types].xml"
DOCUMENT = "word/document.xml"
MERGED = """\
| 00 01 |  | 02 |
| --- | --- | --- |
| 10 inner \\| cell | 11 | 12 22 |
| 20 | 21 | 12 22 |"""
CODES = {"ERR_DOCX_INVALID", "ERR_DOCX_ENCRYPTED", "ERR_ZIP_UNSAFE", "ERR_ZIP_BOMB"}
BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'


def body(inner: str) -> str:
    return f"<w:document {W} {MC}><w:body>{inner}</w:body></w:document>"


def p(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def types(**parts: str) -> str:
    names = {
        "document.main": DOCUMENT,
        **{kind: f"word/{name}" for kind, name in parts.items() if kind != "core"},
    }
    overrides = "".join(
        f'<Override PartName="/{name}" ContentType="{MAIN}.{kind.rstrip("0123456789")}+xml"/>'
        for kind, name in names.items()
    )
    space = "http://schemas.openxmlformats.org/package/2006/content-types"
    core = "application/vnd.openxmlformats-package.core-properties+xml"
    overrides += f'<Override PartName="/docProps/core.xml" ContentType="{core}"/>'
    return f'<?xml version="1.0"?><Types xmlns="{space}">{overrides}</Types>'


def packed(entries: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def document(inner: str, **more: str | bytes) -> bytes:
    return packed({TYPES: types(), DOCUMENT: body(inner), **more})


def read(data: bytes, limits: ParseLimits = LIMITS) -> ParsedDocument:
    return parse(io.BytesIO(data), limits)


def texts(data: bytes) -> list[str]:
    return [block.text for block in read(data).blocks]


def code_of(data: bytes, limits: ParseLimits = LIMITS) -> str:
    with pytest.raises(ParseError) as caught:
        read(data, limits)
    assert caught.value.suggestions
    assert len(str(caught.value)) < 400
    return caught.value.error_code


def test_a_document_of_word_is_read_in_order():
    written = docx.Document()
    written.core_properties.title = "On  rivers"
    written.add_heading("Rivers", 1)
    written.add_paragraph("They flow\tdown\nalways.")
    written.add_paragraph("one", style="List Bullet")
    written.add_paragraph("two", style="List Number")
    written.add_heading("Dams", 2)
    table = written.add_table(3, 3)
    for row in range(3):
        for column in range(3):
            table.cell(row, column).text = f"{row}{column}"
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(1, 2).merge(table.cell(2, 2))
    table.cell(1, 0).add_table(1, 2).cell(0, 1).text = "inner | cell"
    written.add_paragraph("The end.")
    written.sections[0].header.paragraphs[0].text = "Secret"
    written.sections[0].footer.paragraphs[0].text = "12"
    file = io.BytesIO()
    written.save(file)
    parsed = parse(file, LIMITS)
    assert parsed.title == "On rivers"
    assert [(b.kind, b.headings, b.text) for b in parsed.blocks] == [
        ("text", ("Rivers",), "Rivers"),
        ("text", ("Rivers",), "They flow\tdown\nalways."),
        ("text", ("Rivers",), "- one\n- two"),
        ("text", ("Rivers", "Dams"), "Dams"),
        (
            "table",
            ("Rivers", "Dams"),
            MERGED,
        ),
        ("text", ("Rivers", "Dams"), "The end."),
        ("text", (), "Secret"),
    ]
    whole = "\n\n".join(block.text for block in parsed.blocks)
    for block in parsed.blocks:
        assert whole[block.start : block.start + len(block.text)] == block.text


def test_headings_are_known_by_outline_and_by_style_in_any_language():
    styles = (
        f"<w:styles {W}>"
        '<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="mine"><w:name w:val="Kapitel"/>'
        '<w:basedOn w:val="berschrift1"/></w:style>'
        '<w:style w:styleId="a"><w:name w:val="A"/><w:basedOn w:val="b"/></w:style>'
        '<w:style w:styleId="b"><w:name w:val="B"/><w:basedOn w:val="a"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="t"><w:name w:val="toc 1"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="o"><w:name w:val="Own"/>'
        '<w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:style></w:styles>'
    )
    inner = (
        p("One", '<w:pStyle w:val="mine"/>')
        + p("1.1", '<w:pStyle w:val="o"/>')
        + p("deep", '<w:outlineLvl w:val="2"/>')
        + p("circle", '<w:pStyle w:val="a"/>')
        + p("Contents .... 3", '<w:pStyle w:val="t"/>')
        + p("Two", '<w:pStyle w:val="Heading1"/>')
    )
    data = packed(
        {TYPES: types(styles="styles.xml"), DOCUMENT: body(inner), "word/styles.xml": styles}
    )
    assert [(block.headings, block.text) for block in read(data).blocks] == [
        (("One",), "One"),
        (("One", "1.1"), "1.1"),
        (("One", "1.1", "deep"), "deep"),
        (("One", "1.1", "deep"), "circle"),
        (("Two",), "Two"),
    ]


def test_deleted_and_moved_text_is_left_out():
    inner = (
        "<w:p><w:r><w:t>kept </w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom><w:ins><w:r><w:t>new</w:t></w:r></w:ins>"
        "<w:hyperlink><w:r><w:t> link</w:t></w:r></w:hyperlink>"
        "<w:r><w:instrText>HYPERLINK x</w:instrText></w:r></w:p>"
    )
    assert texts(document(inner)) == ["kept new link"]


def test_a_text_box_is_read_once():
    box = f"<w:txbxContent>{p('boxed')}{p('twice')}</w:txbxContent>"
    inner = (
        "<w:p><w:r><w:t>anchor</w:t></w:r><w:r><mc:AlternateContent>"
        f"<mc:Choice>{box}</mc:Choice><mc:Fallback><w:pict>{box}</w:pict></mc:Fallback>"
        "</mc:AlternateContent></w:r></w:p>"
    )
    assert texts(document(inner)) == ["anchor", "boxed\ntwice"]


def test_notes_headers_and_footers_come_once_after_the_text():
    parts = {"footnotes": "footnotes.xml", "header1": "header1.xml", "header2": "header2.xml"}
    data = packed(
        {
            TYPES: types(**parts),
            DOCUMENT: body(p("Text")),
            "word/footnotes.xml": f"<w:f {W}><w:footnote>{p('A note')}</w:footnote></w:f>",
            "word/header1.xml": f"<w:hdr {W}>{p('Top')}</w:hdr>",
            "word/header2.xml": f"<w:hdr {W}>{p('Top')}{p('7')}</w:hdr>",
        }
    )
    assert texts(data) == ["Text", "A note", "Top"]


def test_content_controls_and_the_strict_variant_are_read():
    inner = f"<w:sdt><w:sdtContent>{p('controlled')}</w:sdtContent></w:sdt>"
    strict = body(inner).replace(
        "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
        "http://purl.oclc.org/ooxml/wordprocessingml/main",
    )
    for xml in (body(inner), strict, body(inner).encode("utf-16")):
        assert texts(packed({TYPES: types(), DOCUMENT: xml})) == ["controlled"]


@pytest.mark.parametrize("part", [TYPES, DOCUMENT, "word/styles.xml", "docProps/core.xml"])
@pytest.mark.parametrize(
    "hidden",
    [
        lambda xml: (BOMB + xml).encode(),
        lambda xml: ("<?xml version='1.0'?><!-- x --><?x y?>\n" + BOMB + xml).encode(),
        lambda xml: (BOMB + xml).encode("utf-16"),
        lambda xml: (BOMB + xml).encode("utf-16-le"),
        lambda xml: b"\xef\xbb\xbf" + (BOMB + xml).encode(),
    ],
    ids=["plain", "after comments", "utf-16", "utf-16 without a mark", "utf-8 with a mark"],
)
def test_a_document_type_in_any_part_is_refused(part, hidden):
    entries: dict[str, str | bytes] = {
        TYPES: types(styles="styles.xml"),
        DOCUMENT: body(p("x")),
        "word/styles.xml": f"<w:styles {W}/>",
        "docProps/core.xml": "<core/>",
    }
    written = entries[part]
    assert isinstance(written, str)
    entries[part] = hidden(written.removeprefix('<?xml version="1.0"?>'))
    assert code_of(packed(entries)) == "ERR_XML_DOCTYPE"


def test_an_encoding_that_could_hide_a_document_type_is_refused():
    xml = f'<?xml version="1.0" encoding="utf-7"?>{body(p("x"))}'
    assert code_of(packed({TYPES: types(), DOCUMENT: xml})) == "ERR_DOCX_INVALID"
    ebcdic = f'<?xml version="1.0" encoding="cp037"?>{BOMB}{body(p("x"))}'.encode("cp037")
    assert code_of(packed({TYPES: types(), DOCUMENT: ebcdic})) == "ERR_DOCX_INVALID"
    long = "<!--" + "x" * 100_000 + "-->" + BOMB + body(p("x"))
    assert code_of(packed({TYPES: types(), DOCUMENT: long})) == "ERR_DOCX_INVALID"


def test_the_main_part_may_have_any_name():
    for name in ("word/main.xml", "text/body.xml"):
        assert texts(packed({TYPES: types().replace(DOCUMENT, name), name: body(p("x"))})) == ["x"]


def test_what_is_no_docx_is_told():
    whole = document(p("x"))
    assert code_of(b"plain text") == "ERR_DOCX_INVALID"
    assert code_of(b"") == "ERR_DOCX_INVALID"
    assert code_of(b"PK\x03\x04" + b"\x00" * 100) == "ERR_DOCX_INVALID"
    assert code_of(whole[:-30]) == "ERR_DOCX_INVALID"
    assert code_of(packed({TYPES: types()})) == "ERR_DOCX_INVALID"
    assert code_of(packed({DOCUMENT: body(p("x"))})) == "ERR_DOCX_INVALID"
    assert code_of(packed({TYPES: types(), DOCUMENT: body("<w:p>")})) == "ERR_DOCX_INVALID"
    assert code_of(packed({TYPES: types(), DOCUMENT: ""})) == "ERR_DOCX_INVALID"
    assert code_of(document(p("  "))) == "ERR_NO_TEXT"


def outcome_of(data: bytes) -> list[str] | str:
    """The texts, or the code of a refusal that says what to do."""
    try:
        return texts(data)
    except ParseError as error:
        return error.error_code if error.suggestions else "no suggestions"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_broken_byte_is_refused_with_a_code_or_changes_no_text(method):
    paragraphs = "".join(p(f"Paragraph {n}") for n in range(20))
    whole = packed({TYPES: types(), DOCUMENT: body(paragraphs)}, method)
    refused, places = 0, range(0, len(whole), 7)
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        outcome = outcome_of(bytes(broken))
        if isinstance(outcome, str):
            refused += 1
            assert outcome in {
                "ERR_DOCX_INVALID",
                "ERR_DOCX_ENCRYPTED",
                "ERR_ZIP_UNSAFE",
                "ERR_ZIP_BOMB",
            }
        else:
            assert outcome == texts(whole), f"byte {place} changed the text"
    # Dates and attributes of entries are not checked; all that holds text or finds it is.
    assert refused > len(places) // 2


def test_encrypted_documents_are_told():
    assert code_of(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\x00" * 600) == "ERR_DOCX_ENCRYPTED"
    data = bytearray(document(p("x")))
    at = data.find(b"PK\x01\x02")
    data[at + 8] |= 1
    assert code_of(bytes(data)) == "ERR_DOCX_ENCRYPTED"


def test_bombs_are_refused_before_they_are_unpacked():
    zeros = document(p("x"), **{"word/media/a.png": b"\x00" * (64 << 20)})
    began = time.process_time()
    assert code_of(zeros) == "ERR_ZIP_BOMB"
    assert time.process_time() - began < 1
    small = ParseLimits(largest_text=1000, zip_bytes=1000)
    assert code_of(document(p("x" * 2000)), small) == "ERR_ZIP_BOMB"
    small = ParseLimits(largest_text=1000, xml_bytes=500)
    assert code_of(document(p("y" * 2000)), small) == "ERR_ZIP_BOMB"


def test_an_entry_that_holds_more_than_it_says_is_refused():
    data = bytearray(document(p("words " * 5000)))
    real = struct.pack("<L", len(body(p("words " * 5000))))
    said = struct.pack("<L", 600)
    assert data.count(real) == 2
    assert code_of(bytes(data.replace(real, said))) == "ERR_DOCX_INVALID"


def test_too_many_entries_are_refused():
    many = packed({TYPES: types(), DOCUMENT: body(p("x")), **{f"e{n}": "" for n in range(10_001)}})
    assert code_of(many) == "ERR_ZIP_UNSAFE"
    # The count in the directory may lie.
    end = many.rfind(b"PK\x05\x06")
    few = many[: end + 8] + struct.pack("<2H", 2, 2) + many[end + 12 :]
    assert code_of(few) == "ERR_ZIP_UNSAFE"


@pytest.mark.parametrize(
    "name", ["../evil", "word/../../x", "/etc/passwd", "C:\\x", "\\\\host\\x", "a\\..\\b"]
)
def test_names_that_lead_out_are_refused(name):
    assert code_of(document(p("x"), **{name: "y"})) == "ERR_ZIP_UNSAFE"


def test_entries_of_the_same_name_are_refused():
    twice = document(p("x"), **{"word/document.xm_": body(p("other"))})
    assert code_of(twice.replace(b"word/document.xm_", DOCUMENT.encode())) == "ERR_ZIP_UNSAFE"
    assert code_of(document(p("x"), **{"Word/Document.xml": "y"})) == "ERR_ZIP_UNSAFE"


def test_links_are_refused():
    file = io.BytesIO(document(p("x")))
    with zipfile.ZipFile(file, "a") as archive:
        link = zipfile.ZipInfo("word/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    assert code_of(file.getvalue()) == "ERR_ZIP_UNSAFE"


def test_entries_that_overlap_are_refused():
    content = zlib.compress(b"\x00" * 100_000, 9)[2:-4]
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(content), 100_000, 1, 0)
    data = local + b"a" + content
    directory = b"".join(
        struct.pack(
            "<4s6H3L5H2L",
            b"PK\x01\x02",
            20,
            20,
            0,
            8,
            0,
            0,
            0,
            len(content),
            100_000,
            1,
            0,
            0,
            0,
            0,
            0,
            0,
        )
        + name
        for name in (b"a", b"b", b"c")
    )
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 3, 3, len(directory), len(data), 0)
    assert code_of(data + directory + end) == "ERR_ZIP_UNSAFE"


def test_too_much_text_is_refused_and_not_cut():
    small = ParseLimits(largest_text=1000)
    assert code_of(document("".join(p("words") for _ in range(300))), small) == "ERR_TOO_MUCH_TEXT"
    row = "<w:tr><w:tc>" + p("cell") + "</w:tc></w:tr>"
    assert code_of(document(f"<w:tbl>{row * 2000}</w:tbl>"), small) == "ERR_TOO_MUCH_TEXT"


def test_a_piece_of_text_beyond_the_parsers_limit_is_told():
    data = document(p("word%d " * 2_000_000))
    generous = ParseLimits(largest_text=64 << 20, zip_ratio=2000)
    assert code_of(data, generous) == "ERR_TOO_MUCH_TEXT"


def test_deep_nesting_is_refused():
    depth = 5000
    inner = "<w:sdt><w:sdtContent>" * depth + p("x") + "</w:sdtContent></w:sdt>" * depth
    assert code_of(document(inner)) == "ERR_DOCX_INVALID"


def test_very_many_paragraphs_tables_and_columns_take_their_time_and_no_more():
    rows = "<w:tr><w:tc>" + p("a") + "</w:tc><w:tc>" + p("b") + "</w:tc></w:tr>"
    wide = (
        '<w:tr><w:tc><w:tcPr><w:gridSpan w:val="99999999999"/></w:tcPr>' + p("w") + "</w:tc></w:tr>"
    )
    generous = ParseLimits(largest_text=64 << 20, zip_ratio=5000)
    for inner in (
        p("x") * 50_000,
        f"<w:tbl>{rows}</w:tbl>" * 10_000,
        f"<w:tbl>{rows * 20_000}</w:tbl>",
        f"<w:tbl>{rows}{wide * 1000}</w:tbl>",
        f"<w:sdt><w:sdtContent>{p('x')}</w:sdtContent></w:sdt>" * 20_000,
    ):
        began = time.process_time()
        assert read(document(inner), generous).blocks
        assert time.process_time() - began < 20


def test_signs_that_do_not_belong_into_text_are_removed():
    parsed = read(document(p("a\u202eb\u202c")))
    assert parsed.blocks[0].text == "ab"
    assert len(parsed.warnings) == 1


def test_more_tags_than_a_document_has_are_refused_before_they_are_parsed() -> None:
    limits = ParseLimits(largest_text=1_000, xml_tags=200)
    assert code_of(document("<w:p/>" * 300), limits) == "ERR_TOO_MANY_ELEMENTS"
    assert code_of(document("<w:p/>" * 300 + "<broken"), limits) == "ERR_TOO_MANY_ELEMENTS"
    text = read(document("<w:p/>" * 150 + p("words" * 50)), limits)
    assert [block.text for block in text.blocks] == ["words" * 50]
