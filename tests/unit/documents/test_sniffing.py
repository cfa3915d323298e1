"""Files by their content, whatever they are called."""

from __future__ import annotations

import io
import zipfile

import pytest
from tests.kit.pdf_files import one_page

from penstock.errors import DocumentRefused, ParseError, UnsupportedFile
from penstock.pipelines.documents.parsing.formats.blocks import ParseLimits
from penstock.pipelines.documents.parsing.sniffing import HEAD_BYTES, sniff

BOMB = b"<!DOCTYPE x [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;'>]><x>&b;</x>"
OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def archive(*names: str, content: bytes = b"<x/>") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name in names:
            made.writestr(name, content)
    return file.getvalue()


DOCX = archive("[Content_Types].xml", "_rels/.rels", "word/document.xml")


def found(data: bytes, declared: str = "", *, by_content: bool = False) -> str:
    return sniff(data[:HEAD_BYTES], io.BytesIO(data), declared, by_content=by_content)


def refusal(data: bytes, declared: str = "", *, by_content: bool = False) -> DocumentRefused:
    with pytest.raises(DocumentRefused) as caught:
        found(data, declared, by_content=by_content)
    assert caught.value.suggestions
    return caught.value


@pytest.mark.parametrize(
    ("data", "declared", "kind"),
    [
        (one_page(), "pdf", "pdf"),
        (one_page(), "", "pdf"),
        (b"Received: by a gateway\r\n\r\n" + one_page(), "pdf", "pdf"),
        (b"\xef\xbb\xbf\r\n" + one_page(), "", "pdf"),
        (DOCX, "docx", "docx"),
        (DOCX, "", "docx"),
        (archive("[Content_Types].xml", "word/document2.xml"), "docx", "docx"),
        (archive("[Content_Types].xml", "word/main.xml"), "docx", "docx"),
        (archive("[Content_Types].xml", "word/main.xml"), "", "docx"),
        (archive("[Content_Types].xml", "text/body.xml"), "docx", "docx"),
        (b"# A heading", "md", "md"),
        (b"plain", "txt", "txt"),
        (b"plain", "", "txt"),
        (b"<!DOCTYPE html><p>x", "html", "html"),
        (b"<!-- made by -->\n<HTML lang=en><p>x", "", "html"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!doctype html>", "", "html"),
        (b"<!-- --> " * 900 + b"<body>", "", "txt"),
        (b"<div align=center>a README</div>", "md", "md"),
        (b"<!DOCTYPE html>a text about it", "txt", "txt"),
        (b"A text about files that begin with %PDF-1.7", "md", "md"),
        (b"Rar! is what such files begin with", "txt", "txt"),
        ("Grüße aus Köln".encode("utf-16"), "txt", "txt"),
        ("without a mark at all".encode("utf-16-le"), "txt", "txt"),
        ("Grüße, l'été".encode("latin-1"), "txt", "txt"),
        ("\u6f22\u5b57".encode("shift-jis"), "txt", "txt"),
        (b"\x1b[31mred\x1b[0m and plain\r\n\f", "txt", "txt"),
        (b" \n\t ", "txt", "txt"),
    ],
)
def test_a_file_is_what_its_content_is_and_texts_are_what_their_name_says(
    data: bytes, declared: str, kind: str
) -> None:
    assert found(data, declared) == kind


def test_an_empty_file_is_refused() -> None:
    error = refusal(b"", "txt")

    assert isinstance(error, ParseError)
    assert error.error_code == "ERR_EMPTY_FILE"


@pytest.mark.parametrize("declared", ["txt", "md", "html", "docx"])
def test_a_pdf_under_another_name_is_refused_or_read_as_what_it_is(declared: str) -> None:
    error = refusal(one_page(), declared)

    assert isinstance(error, UnsupportedFile)
    assert (error.error_code, str(error)) == (
        "ERR_TYPE_MISMATCH",
        f"its name says {declared}, its content is pdf",
    )
    assert found(one_page(), declared, by_content=True) == "pdf"


@pytest.mark.parametrize("declared", ["txt", "md", "html", "pdf"])
def test_a_docx_under_another_name_is_refused_or_read_as_what_it_is(declared: str) -> None:
    assert refusal(DOCX, declared).error_code == "ERR_TYPE_MISMATCH"
    assert found(DOCX, declared, by_content=True) == "docx"


def test_by_content_a_text_is_html_only_if_it_is_a_whole_page() -> None:
    assert found(b"<!doctype html><p>x", "txt", by_content=True) == "html"
    assert found(b"just words", "html", by_content=True) == "txt"
    assert found(b"just words", "pdf", by_content=True) == "txt"
    assert found(b"# words", "md", by_content=True) == "md"


def test_a_pdf_that_is_also_an_archive_is_a_pdf() -> None:
    both = one_page() + DOCX

    assert zipfile.is_zipfile(io.BytesIO(both))
    assert found(both, "pdf") == "pdf"
    assert refusal(both, "docx").error_code == "ERR_TYPE_MISMATCH"


@pytest.mark.parametrize("data", [b"not a PDF", bytes(range(256)) * 4])
def test_a_file_without_the_header_of_a_pdf_is_a_broken_one(data: bytes) -> None:
    error = refusal(data, "pdf")

    assert (type(error), error.error_code) == (ParseError, "ERR_PDF_INVALID")
    assert str(error).startswith("PDF header corrupted or invalid")


@pytest.mark.parametrize(
    "data",
    [
        b"not an archive",
        b"PK\x03\x04 and nothing else",
        DOCX[: len(DOCX) // 2],
        archive("a.txt"),
        archive("word/document.xml"),
    ],
)
def test_what_is_no_whole_docx_is_a_broken_one(data: bytes) -> None:
    error = refusal(data, "docx")

    assert (type(error), error.error_code) == (ParseError, "ERR_DOCX_INVALID")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (archive("[Content_Types].xml", "xl/workbook.xml"), "Excel"),
        (archive("[Content_Types].xml", "ppt/presentation.xml"), "PowerPoint"),
        (archive("mimetype", "content.xml", "styles.xml"), "OpenDocument"),
    ],
)
def test_other_office_files_are_named(data: bytes, words: str) -> None:
    for declared in ("docx", "txt", ""):
        error = refusal(data, declared)
        assert (type(error), error.error_code) == (UnsupportedFile, "ERR_UNSUPPORTED_TYPE")
        assert words in str(error)


def test_pictures_and_programs_are_no_texts() -> None:
    assert refusal(PNG, "txt").error_code == "ERR_TYPE_MISMATCH"
    assert "PNG" in str(refusal(PNG, "txt"))
    assert refusal(PNG, "", by_content=True).error_code == "ERR_UNSUPPORTED_TYPE"
    assert refusal(bytes(100), "txt").error_code == "ERR_TYPE_MISMATCH"
    assert refusal(bytes(range(1, 32)) * 3, "md").error_code == "ERR_TYPE_MISMATCH"


def test_an_encrypted_docx_says_so() -> None:
    assert refusal(OLD_OFFICE, "docx").error_code == "ERR_DOCX_ENCRYPTED"
    assert refusal(OLD_OFFICE, "").error_code == "ERR_UNSUPPORTED_TYPE"


def test_no_xml_is_parsed_to_find_the_type() -> None:
    hostile = archive("[Content_Types].xml", "_rels/.rels", "word/document.xml", content=BOMB)

    assert found(hostile, "docx") == "docx"


def test_an_archive_of_too_many_entries_is_refused_before_they_are_read() -> None:
    data = archive(*(f"word/{number}.xml" for number in range(40)))

    with pytest.raises(ParseError) as caught:
        sniff(
            data[:100], io.BytesIO(data), "docx", limits=ParseLimits(largest_text=1, zip_entries=39)
        )

    assert caught.value.error_code == "ERR_ZIP_UNSAFE"
