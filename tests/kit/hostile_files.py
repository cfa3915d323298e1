"""Hostile files of all formats, made by rules and by a seeded random generator.

    for file in hostile_files(scale=0.05):
        file.name, file.declared, file.make()

None of them is stored: each is made when it is read. `scale` is for the number of repetitions in
those that are large; 1.0 makes bombs that take a parser's memory or time.
"""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.kit.pdf_files import CATALOG, FONT, TEXT, by_hand, one_page, stream, written

__all__ = ["HostileFile", "hostile_files"]

_SEED = 16
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
_ENTITIES = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
_LAUGHS = f'<!DOCTYPE x [<!ENTITY l0 "ha">{_ENTITIES}]>'
_EXTERNAL = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'


@dataclass(frozen=True, slots=True)
class HostileFile:
    """A file to be made, the type that its name stands for, and whether that is believed."""

    name: str
    declared: str
    make: Callable[[], bytes]
    by_content: bool = False


def hostile_files(scale: float = 1.0) -> list[HostileFile]:
    """The whole corpus, in the same order and with the same bytes each time."""

    def many(count: int) -> int:
        return max(2, int(count * scale))

    return [
        *_pdfs(many),
        *_documents(many),
        *_archives(many),
        *_pages(many),
        *_markdown(many),
        *_texts(many),
        *_confusions(),
    ]


Many = Callable[[int], int]


# ruff: noqa: S311, E501, C901  the same files each time, one to a line

# ---- PDF


def _pdfs(many: Many) -> Iterator[HostileFile]:
    def pdf(name: str, make: Callable[[], bytes]) -> HostileFile:
        return HostileFile(f"pdf: {name}", "pdf", make)

    good = written([f"Page {number} of a good document, with words." for number in range(5)])
    for eighth in range(1, 9):
        yield pdf(f"cut at {eighth}/9", lambda e=eighth: good[: len(good) * e // 9])
    for number in range(20):
        yield pdf(f"bytes changed {number}", lambda n=number: _changed(good, n, 12))
    for number in range(6):
        yield pdf(f"blocks moved {number}", lambda n=number: _shuffled(good, n))
    for packed in (1, 2, 3):
        yield pdf(
            f"deflated {packed} times",
            lambda p=packed: one_page(stream(b" " * many(400 << 20), deflated=p)),
        )
    yield pdf("deflated pages", lambda: one_page(stream(TEXT * many(500_000), deflated=1)))
    for name in ("ASCIIHexDecode", "ASCII85Decode", "LZWDecode", "RunLengthDecode", "Crypt"):
        yield pdf(f"filter {name}", lambda n=name: one_page(_filtered(n, b"\x80" * many(1 << 20))))
    for name in ("DCTDecode", "JPXDecode", "JBIG2Decode", "CCITTFaxDecode", "Unknown"):
        yield pdf(f"filter {name}", lambda n=name: one_page(_filtered(n, bytes(4_096))))
    yield pdf("a hundred filters", lambda: one_page(_filtered("FlateDecode /" * 99 + "X", b"x")))
    yield pdf("its own parent", lambda: one_page(pages=b"<</Type/Pages/Kids[2 0 R]/Count 1>>"))
    kids = b"3 0 R " * many(100_000)
    count = b"%d" % many(100_000)
    yield pdf(
        "one page many times",
        lambda: one_page(pages=b"<</Type/Pages/Kids[%s]/Count %s>>" % (kids, count)),
    )
    for wrong in (b"-1", b"2147483648", b"99999999999999999999", b"0", b"(x)", b"2 0 R"):
        yield pdf(
            f"count {wrong.decode()}",
            lambda w=wrong: one_page(pages=b"<</Type/Pages/Kids[3 0 R]/Count %s>>" % w),
        )
    for key, action in {
        "JavaScript": b"/JS (app.launchURL\\('file:///bin/sh'\\); while\\(1\\){})",
        "Launch": b"/F (/bin/sh) /Win <</F (cmd.exe)>>",
        "URI": b"/URI (http://127.0.0.1:9/)",
        "GoToR": b"/F (/etc/passwd) /D [0 /Fit]",
        "SubmitForm": b"/F (http://127.0.0.1:9/)",
        "ImportData": b"/F (/etc/passwd)",
    }.items():
        opened = b"<</Type/Catalog/Pages 2 0 R/OpenAction<</S/%s %s>>>>" % (key.encode(), action)
        yield pdf(f"opens by {key}", lambda o=opened: one_page(catalog=o))
    for name, content in {
        "states": b"q " * many(5_000_000),
        "states restored": b"Q " * many(2_000_000),
        "operands": b"1 " * many(5_000_000) + b"Tj",
        "arrays in arrays": b"[" * many(500_000),
        "dictionaries in dictionaries": b"<<" * many(500_000),
        "an open string": b"(" * many(1_000_000),
        "texts": b"BT /F1 9 Tf " + b"(word) Tj " * many(500_000) + b"ET",
        "forms of itself": b"/X Do " * 1_000,
        "an open image": b"BI /W 100000 /H 100000 /BPC 8 ID " + bytes(1_000),
    }.items():
        yield pdf(f"content: {name}", lambda c=content: one_page(stream(c, deflated=1)))
    for name, trailer in {
        "previous table is itself": b"/Prev 9",
        "encrypted": b"/Encrypt <</Filter/Standard/V 1/R 2/O(x)/U(x)/P -1>>",
        "no such root": b"/Root 99 0 R",
        "arrays": b"/ID [" + b"[" * many(200_000),
    }.items():
        yield pdf(f"trailer: {name}", lambda t=trailer: one_page(trailer=t))
    yield pdf("no table", lambda: one_page(xref=False))
    yield pdf("objects without end", lambda: b"%PDF-1.7\n" + b"1 0 obj\n" * many(300_000))
    yield pdf("numbers of objects", lambda: b"%PDF-1.7\n" + b"".join(
        b"%d 0 obj<<>>endobj\n" % (n * 7_919 % (1 << 23)) for n in range(many(200_000))
    ))  # fmt: skip
    yield pdf("comments", lambda: b"%PDF-1.7\n" + b"%" * many(20_000_000))
    for name, length in {"negative": b"-5", "huge": b"999999999", "of itself": b"4 0 R"}.items():
        body = b"<</Length %s>>\nstream\n%s\nendstream" % (length, TEXT)
        yield pdf(f"length {name}", lambda b=body: one_page(b))
    objects = b"<</Type/ObjStm/N 1000000/First 8/Extends 6 0 R/Length 12>>\nstream\n1 0 2 0 <<>>\nendstream"
    yield pdf(
        "streams of objects in a circle",
        lambda: by_hand(
            [CATALOG, b"<</Type/Pages/Kids[7 0 R]/Count 1>>", b"<<>>", b"<<>>", FONT, objects]
        ),
    )
    yield pdf("late header", lambda: b"x" * 1_000 + good)
    yield pdf("header only", lambda: b"%PDF-1.7\n")


def _filtered(name: str, data: bytes) -> bytes:
    return b"<</Length %d/Filter[/%s]>>\nstream\n%s\nendstream" % (len(data), name.encode(), data)


# ---- DOCX


def _documents(many: Many) -> Iterator[HostileFile]:
    def docx(name: str, inner: Callable[[], str], before: str = "") -> HostileFile:
        return HostileFile(f"docx: {name}", "docx", lambda: _docx(inner(), before=before))

    noise = random.Random(_SEED)
    words = " ".join(f"{noise.getrandbits(32):x}" for _ in range(20_000))
    paragraph = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
    text = paragraph.format("words")
    yield docx("empty paragraphs", lambda: _varied("<w:p/>", many(3_000_000)) + text)
    yield docx("empty runs", lambda: f"<w:p>{_varied('<w:r/>', many(1_500_000))}</w:p>" + text)
    yield docx("too many tags", lambda: _varied("<w:p/>", 4_200_000))
    yield docx("depth", lambda: "<w:p>" * many(200_000) + "</w:p>" * many(200_000))
    yield docx("tables in tables", lambda: "<w:tbl><w:tr><w:tc>" * many(50_000))
    yield docx("unclosed", lambda: "<w:p><w:r><w:t>" + words)
    yield docx(
        "attributes", lambda: "<w:p " + " ".join(f'a{n}="1"' for n in range(many(300_000))) + "/>"
    )
    yield docx("one attribute", lambda: f'<w:p a="{"x" * many(12_000_000)}"/>')
    yield docx("one text", lambda: paragraph.format("x " * many(8_000_000)))
    yield docx(
        "namespaces", lambda: "".join(f'<w:p xmlns:n{n}="u{n}"/>' for n in range(many(100_000)))
    )
    yield docx("references", lambda: paragraph.format("&#65;" * many(2_000_000)))
    yield docx("bad references", lambda: paragraph.format("&#x110000;&#0;&nope;"))
    yield docx("merged cells", lambda: _merged(words, many(5_000)))
    yield docx("wide cells", lambda: "<w:tbl>" + _wide_row() * many(50_000) + "</w:tbl>")
    yield docx("text boxes", lambda: "<w:p>" + "<w:txbxContent><w:p>" * many(100_000))
    yield docx("alternatives", lambda: _alternatives(many(100)) + text)
    yield docx(
        "styles in a circle", lambda: '<w:p><w:pPr><w:pStyle w:val="a"/></w:pPr></w:p>' + text
    )
    yield docx("instructions", lambda: "<?x y?>" * many(500_000) + text)
    yield docx("comments", lambda: "<!-- - -->" * many(500_000) + text)
    yield docx(
        "sections of data",
        lambda: "<w:p><w:r><w:t>" + "<![CDATA[x]]>" * many(300_000) + "</w:t></w:r></w:p>",
    )
    for name, declaration in {
        "laughs": _LAUGHS,
        "external": _EXTERNAL,
        "empty": "<!DOCTYPE x>",
    }.items():
        yield docx(f"doctype {name}", lambda: text, before=declaration)
        yield docx(
            f"doctype {name} behind comments",
            lambda: text,
            before=f"<!--{'x' * 70_000}-->{declaration}",
        )
    for encoding in ("utf-7", "utf-16", "utf-32", "ebcdic-cp-us", "utf-8", "shift_jis", "x-nope"):
        head = f'<?xml version="1.0" encoding="{encoding}"?>'
        yield HostileFile(
            f"docx: says it is {encoding}", "docx", lambda h=head: _docx(text, head=h + _LAUGHS)
        )
    good = _docx("".join(paragraph.format(f"word {n}") for n in range(300)))
    for number in range(20):
        yield HostileFile(
            f"docx: bytes changed {number}", "docx", lambda n=number: _changed(good, n, 6)
        )
    for ninth in range(1, 9):
        yield HostileFile(
            f"docx: cut at {ninth}/9", "docx", lambda n=ninth: good[: len(good) * n // 9]
        )


def _varied(element: str, count: int) -> str:
    """Elements with some noise between them, so that they are not packed to nothing."""
    noise = random.Random(_SEED)
    block = "".join(element + " " * noise.randrange(8) for _ in range(10_000))
    return block * (count // 10_000) + element * (count % 10_000)


def _merged(words: str, rows: int) -> str:
    first = f'<w:tr><w:tc><w:tcPr><w:vMerge w:val="restart"/></w:tcPr><w:p><w:r><w:t>{words}</w:t></w:r></w:p></w:tc></w:tr>'
    more = "<w:tr><w:tc><w:tcPr><w:vMerge/></w:tcPr><w:p/></w:tc></w:tr>"
    return f"<w:tbl>{first}{_varied(more, rows)}</w:tbl>"


def _wide_row() -> str:
    return '<w:tr><w:tc><w:tcPr><w:gridSpan w:val="63"/></w:tcPr><w:p><w:r><w:t>x</w:t></w:r></w:p></w:tc></w:tr>'


def _alternatives(depth: int) -> str:
    mc = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    inside = "<mc:AlternateContent><mc:Choice>"
    return f"<w:p {mc}>" + inside * depth + "</mc:Choice></mc:AlternateContent>" * depth + "</w:p>"


def _docx(inner: str, *, before: str = "", head: str = '<?xml version="1.0"?>') -> bytes:
    body = f'{head}{before}<w:document xmlns:w="{_WORD}"><w:body>{inner}</w:body></w:document>'
    return _packed({"[Content_Types].xml": _types(), "word/document.xml": body.encode()})


def _types(before: str = "") -> bytes:
    override = f'<Override PartName="/word/document.xml" ContentType="{_MAIN}"/>'
    return f'<?xml version="1.0"?>{before}<Types xmlns="{_TYPES}">{override}</Types>'.encode()


def _packed(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return file.getvalue()


# ---- archives


def _archives(many: Many) -> Iterator[HostileFile]:
    def zipped(name: str, make: Callable[[], bytes], declared: str = "docx") -> HostileFile:
        return HostileFile(f"archive: {name}", declared, make)

    good = _docx("<w:p><w:r><w:t>some words</w:t></w:r></w:p>")
    parts = {"[Content_Types].xml": _types(), "word/document.xml": b"<x/>"}
    yield zipped("zeros", lambda: _packed({**parts, "word/zeros": bytes(many(500 << 20))}))
    yield zipped("entries", lambda: _packed({f"{n}": b"" for n in range(many(60_000))}))
    for name in ("../out", "/abs", "C:/win", "a\\..\\b", "a/../../b", "\x1b[2J", "a" * 60_000, ""):
        yield zipped(f"a name {name[:8]!r}", lambda n=name: _packed({**parts, n: b"x"}))
    for at, value in {4: 99, 6: 1, 8: 99, 10: 0xFFFF}.items():
        yield zipped(
            f"header {at} is {value}", lambda a=at, v=value: _patched(good, b"PK\x03\x04", a, v)
        )
        yield zipped(
            f"directory {at} is {value}", lambda a=at, v=value: _patched(good, b"PK\x01\x02", a, v)
        )
    for field, at in {"packed size": 20, "size": 24, "offset": 42, "checksum": 16}.items():
        for value in (0, 0x7FFF_FFFF, 0xFFFF_FFFF):
            yield zipped(
                f"{field} {value:#x}",
                lambda a=at, v=value: _patched(good, b"PK\x01\x02", a, v, "<L"),
            )
    for field, at in {"entries": 10, "directory size": 12, "directory offset": 16}.items():
        yield zipped(f"end: {field}", lambda a=at: _patched(good, b"PK\x05\x06", a, 0xFFFF))
    yield zipped("twice", lambda: good + good)
    yield zipped("behind something", lambda: b"MZ" + bytes(4_096) + good)
    yield zipped("nested", lambda: _packed({**parts, "word/a.docx": good}))
    yield zipped("no document", lambda: _packed({"[Content_Types].xml": _types()}))
    yield zipped("no types", lambda: _packed({"word/document.xml": b"<x/>"}))
    yield zipped(
        "types with a doctype", lambda: _packed({**parts, "[Content_Types].xml": _types(_LAUGHS)})
    )
    for kind in (
        "xl/workbook.xml",
        "ppt/presentation.xml",
        "META-INF/container.xml",
        "content.xml",
    ):
        yield zipped(f"holds {kind}", lambda k=kind: _packed({**parts, k: b"<x/>"}), "")
    yield zipped("bzip2", lambda: _packed(parts, zipfile.ZIP_BZIP2))
    yield zipped("lzma", lambda: _packed(parts, zipfile.ZIP_LZMA))
    yield zipped("end only", lambda: b"PK\x05\x06" + bytes(18))
    yield zipped("a comment", lambda: good[:-2] + b"\xff\xff" + b"PK\x05\x06" * 16_383)
    yield zipped("nothing but heads", lambda: b"PK\x03\x04" * many(2_000_000))


def _patched(data: bytes, magic: bytes, at: int, value: int, form: str = "<H") -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, data.rindex(magic) + at, value)
    return bytes(changed)


# ---- HTML


def _pages(many: Many) -> Iterator[HostileFile]:
    def html(name: str, make: Callable[[], str | bytes]) -> HostileFile:
        return HostileFile(f"html: {name}", "html", lambda: _encoded(make()))

    start = "<!doctype html><p>words</p>"
    for tag in ("div", "b", "table", "ul", "blockquote", "pre", "svg", "font", "p", "title"):
        yield html(f"nested {tag}", lambda t=tag: start + f"<{t}>" * many(200_000) + "x")
    for name, piece in {
        "cells": "<table><tr><td colspan=9999>x",
        "attributes": "<p a=1 b=2 c=3 d=4>",
        "open comments": "<!--",
        "open tags": "<a <a <a ",
        "open scripts": "<script>",
        "references": "&amp;&#65;&#x41;&nope;",
        "large references": "&#99999999999999999999;",
        "end tags": "</p></div></b>",
        "lists": "<ul><li>x",
        "carriage returns": "\r",
        "instructions": "<?php x ?>",
        "sections": "<![CDATA[x]]>",
        "breaks": "<br>",
        "nothing": "\0",
        "marks": "\u202ex\u2066",
    }.items():
        yield html(f"many {name}", lambda p=piece: start + p * many(300_000))
    yield html("one name", lambda: start + "<" + "a" * many(5_000_000) + ">")
    yield html("one attribute", lambda: start + '<p title="' + "x" * many(9_000_000) + '">y')
    yield html("a doctype with entities", lambda: _LAUGHS + start + "&l9;")
    yield html("an external doctype", lambda: _EXTERNAL + start + "&e;")
    for name in (
        "utf-7",
        "zip",
        "rot13",
        "idna",
        "undefined",
        "utf-16",
        "cp037",
        "shift_jis",
        "gb18030",
        "x" * 40,
    ):
        yield html(
            f"says it is {name}", lambda n=name: f"<meta charset={n}>" + start + "\xe9\xff" * 500
        )
    yield html("UTF-16 that ends early", lambda: (start * 100).encode("utf-16")[:-1])


# ---- Markdown


def _markdown(many: Many) -> Iterator[HostileFile]:
    def md(name: str, make: Callable[[], str]) -> HostileFile:
        return HostileFile(f"md: {name}", "md", lambda: make().encode())

    for name, piece in {
        "brackets": "[", "parentheses": "](", "images": "![", "stars": "*a ", "backticks": "`a",
        "quotes": ">", "lists": "- ", "numbers": "1. ", "hashes": "#", "underscores": "_a_",
        "links": "[a](b", "angles": "<a ", "tables": "|", "escapes": "\\", "entities": "&amp",
    }.items():  # fmt: skip
        yield md(f"a line of {name}", lambda p=piece: "words\n\n" + p * many(300_000))
        yield md(f"lines of {name}", lambda p=piece: "words\n\n" + f"{p}\n" * many(200_000))
    yield md("longer and longer backticks", lambda: "\n".join("`" * n for n in range(many(3_000))))
    yield md("indented lists", lambda: "\n".join("  " * n + "- x" for n in range(many(2_000))))
    yield md("references", lambda: "".join(f"[{n}]: /x\n" for n in range(many(200_000))))
    yield md(
        "a wide table",
        lambda: "|a" * many(50_000) + "\n" + "|-" * many(50_000) + "\n" + "|b" * many(50_000),
    )
    yield md("an open fence", lambda: "```\n" + "x\n" * many(500_000))
    yield md("front matter", lambda: "---\n" + "a: &a [*a]\n" * many(100_000))
    yield md("paragraphs", lambda: "x\n\n" * many(500_000))


# ---- text


def _texts(many: Many) -> Iterator[HostileFile]:
    def txt(name: str, make: Callable[[], str | bytes]) -> HostileFile:
        return HostileFile(f"txt: {name}", "txt", lambda: _encoded(make()))

    yield txt("nothing", lambda: b"")
    yield txt("white space", lambda: " \n\t" * 1_000)
    yield txt("one line", lambda: "word " * many(4_000_000))
    yield txt("one word", lambda: "x" * many(10_000_000))
    yield txt("short lines", lambda: "x\n" * many(1_000_000))
    yield txt("empty lines", lambda: "x" + "\n" * many(10_000_000) + "y")
    yield txt("marks of one letter", lambda: "a" + "\u0301" * many(2_000_000))
    yield txt("zero width", lambda: "a\u200b\u2060\ufeff" * many(500_000))
    yield txt("directions", lambda: "\u202eabc\u2066" * many(500_000))
    yield txt("flags", lambda: "\U0001f1e6" * many(500_000))
    yield txt("joined faces", lambda: "\U0001f468\u200d" * many(500_000))
    yield txt("terminal", lambda: "\x1b[31m\x1b]0;x\x07\x9b2J" * many(200_000) + "words")
    yield txt("open sequences", lambda: "words " + "\x1b[" * many(500_000))
    yield txt("struck over", lambda: "words " + "a\b" * many(500_000))
    yield txt(
        "UTF-8 that is too long", lambda: b"words \xc0\xaf\xf8\x88\x80\x80\x80" * many(50_000)
    )
    yield txt("surrogates", lambda: "words ".encode("utf-16-le") + b"\x00\xd8" * many(50_000))
    yield txt("ISO-2022", lambda: b"words \x1b$B!!\x1b(B\x1b$(D" * many(50_000))
    yield txt(
        "three encodings", lambda: "é".encode() + b"\xe9 " + "é".encode("utf-16") * many(10_000)
    )
    for mark in (b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"\xef\xbb\xbf"):
        yield txt(f"only a mark {mark.hex()}", lambda m=mark: m)
        yield txt(
            f"noise behind {mark.hex()}", lambda m=mark: m + random.Random(_SEED).randbytes(5_000)
        )
    for number in range(8):
        yield txt(f"noise {number}", lambda n=number: random.Random(n).randbytes(20_000))


# ---- names that do not fit


def _confusions() -> Iterator[HostileFile]:
    heads = {
        "pdf": b"%PDF-1.7\n", "zip": b"PK\x03\x04", "office": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "png": b"\x89PNG\r\n\x1a\n", "elf": b"\x7fELF\x02\x01", "gzip": b"\x1f\x8b\x08",
        "postscript": b"%!PS-Adobe", "rtf": b"{\\rtf1", "html": b"<html><body>words",
    }  # fmt: skip
    for kind, head in heads.items():
        for declared in ("pdf", "docx", "html", "md", "txt"):
            data = head + b" some words and more" * 50
            yield HostileFile(f"sniff: {kind} as {declared}", declared, lambda d=data: d)
        yield HostileFile(f"sniff: {kind}", "", lambda h=head: h + bytes(500), by_content=True)
    both = written(["both"]) + _docx("<w:p><w:r><w:t>both</w:t></w:r></w:p>")
    for declared in ("pdf", "docx", "txt"):
        yield HostileFile(f"sniff: PDF and DOCX as {declared}", declared, lambda: both)


def _encoded(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode(errors="surrogatepass")


def _changed(data: bytes, number: int, count: int) -> bytes:
    noise, changed = random.Random(number), bytearray(data)
    for _ in range(count):
        changed[noise.randrange(len(changed))] = noise.randrange(256)
    return bytes(changed)


def _shuffled(data: bytes, number: int) -> bytes:
    noise, size = random.Random(number), 64
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    noise.shuffle(blocks)
    return b"".join([data[:16], *blocks])
