"""PDF files as they come, read in this process."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from tests.kit.pdf_files import CATALOG, one_page, stream, written

from penstock.errors import DocumentError, ParseError
from penstock.pipelines.documents.parsing.formats import pdf
from penstock.pipelines.documents.parsing.formats.blocks import ParseLimits

LIMITS = ParseLimits(largest_text=1_000_000)


def read(data: bytes, first: int = 0, last: int = 1_000, *, most: int = 1_000_000) -> pdf.Pages:
    return pdf.pages(io.BytesIO(data), first, last, ParseLimits(largest_text=most))


def refusal(data: bytes) -> ParseError:
    with pytest.raises(ParseError) as caught:
        read(data)
    assert caught.value.suggestions
    return caught.value


def test_each_page_is_a_block_with_its_number_and_its_place_in_the_whole_text() -> None:
    found = read(written(["first page\nsecond line", "page two", "page three"], title="A title"))

    assert [(block.text, block.page) for block in found.blocks] == [
        ("first page\nsecond line", 1),
        ("page two", 2),
        ("page three", 3),
    ]
    whole = pdf.BETWEEN_PAGES.join(block.text for block in found.blocks)
    assert all(whole[b.start : b.start + len(b.text)] == b.text for b in found.blocks)
    assert (found.title, found.total, found.end) == ("A title", 3, len(whole))


def test_parts_of_a_document_continue_each_other() -> None:
    data = written([f"this is page {number}" for number in range(1, 8)])
    whole = read(data)

    first = read(data, 0, 4)
    second = pdf.pages(io.BytesIO(data), 4, 8, LIMITS, start=first.end)

    assert first.blocks + second.blocks == whole.blocks
    assert second.end == whole.end
    assert pdf.page_count(io.BytesIO(data)) == 7


def test_a_word_that_is_broken_at_the_end_of_a_line_is_whole_again() -> None:
    assert read(one_page()).blocks[0].text == "A valve opens when the pressure falls."


def test_pages_without_text_are_counted() -> None:
    found = read(written(["text", "", "more text", ""]))

    assert (found.blank, found.failed, [block.page for block in found.blocks]) == (2, 0, [1, 3])


def test_too_much_text_is_refused_and_not_cut() -> None:
    data = written(["0123456789"] * 5)
    most = read(data).end

    assert read(data, most=most).end == most
    with pytest.raises(ParseError) as caught:
        read(data, most=most - 1)
    assert caught.value.error_code == "ERR_TOO_MUCH_TEXT"
    assert f"more than {most - 1} characters" in str(caught.value)


def test_a_pdf_with_a_password_is_refused_as_encrypted() -> None:
    assert refusal(written(["secret"], user_password="x")).error_code == "ERR_PDF_ENCRYPTED"


def test_a_pdf_that_only_its_owner_may_change_is_read() -> None:
    assert read(written(["open to all"], user_password="")).blocks[0].text == "open to all"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(written(["some text"] * 60)[:9_000], id="truncated"),
        pytest.param(b"%PDF-1.7\n" + os.urandom(50_000), id="noise"),
        pytest.param(b"%PDF-1.7\n", id="header only"),
    ],
)
def test_what_is_no_whole_pdf_is_refused_as_invalid(data: bytes) -> None:
    error = refusal(data)

    assert error.error_code == "ERR_PDF_INVALID"
    assert any("pdfinfo" in line for line in error.suggestions)


def test_a_pdf_without_pages_is_refused_as_empty_also_after_a_broken_one() -> None:
    nothing = one_page(pages=b"<</Type/Pages/Kids[]/Count 0>>")

    assert refusal(b"%PDF-1.7\nrubbish").error_code == "ERR_PDF_INVALID"
    assert refusal(nothing).error_code == "ERR_PDF_EMPTY"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(one_page(xref=False), id="no xref"),
        pytest.param(one_page(trailer=b"/Prev 9"), id="xref elsewhere"),
        pytest.param(one_page(trailer=b"/Prev %d" % one_page().index(b"xref")), id="xref loop"),
        pytest.param(one_page().replace(b"/Size 6", b"/Size 2147483600"), id="huge size"),
        pytest.param(
            one_page(pages=b"<</Type/Pages/Kids[3 0 R]/Count 2147483647>>"), id="2^31 pages"
        ),
        pytest.param(
            one_page(
                catalog=CATALOG[:-2] + b"/OpenAction<</S/JavaScript/JS(app.alert\\(1\\))>>"
                b"/AA<</WC<</S/Launch/F(/bin/sh)>>>>>>"
            ),
            id="actions",
        ),
        pytest.param(b"From: a mail gateway\r\n\r\n" + one_page(), id="lines before it"),
    ],
)
def test_what_can_be_mended_is_read(data: bytes) -> None:
    assert "pressure" in read(data).blocks[0].text


def test_a_page_tree_that_contains_itself_ends() -> None:
    found = read(one_page(pages=b"<</Type/Pages/Kids[2 0 R 3 0 R]/Count 2>>"))

    assert (len(found.blocks), found.failed) == (1, 1)


def test_pages_that_are_only_claimed_to_be_there_are_counted_as_failed() -> None:
    found = read(one_page(pages=b"<</Type/Pages/Kids[3 0 R]/Count 1000000>>"), 0, 50)

    assert (found.total, len(found.blocks), found.failed) == (1_000_000, 1, 49)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(stream(b"BI /W 99999 /H 99999 /BPC 8 /CS /RGB ID xxxx"), id="endless image"),
        pytest.param(stream(b"[" * 500_000), id="deep nesting"),
        pytest.param(stream(b"q " * 500_000), id="endless saves"),
        pytest.param(b"<</Length 99999999>>\nstream\nx\nendstream", id="wrong length"),
    ],
)
def test_bad_content_of_a_page_is_a_page_without_text(content: bytes) -> None:
    found = read(one_page(content))

    assert (found.blocks, found.blank + found.failed) == ([], 1)


def test_recognition_without_the_program_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ParseError) as caught:
        pdf.pages(io.BytesIO(written([""])), 0, 1, LIMITS, ocr=True)

    assert caught.value.error_code == "ERR_OCR_MISSING"
    assert any("apt-get install tesseract-ocr" in line for line in caught.value.suggestions)


def program(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "tesseract"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_pages_that_are_pictures_are_recognised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # It says what it was given: the header of the picture.
    program(tmp_path, 'read -r a b c d; echo "scan $a $b $c $d as $1 $2 $3 $4"; cat >/dev/null')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    found = pdf.pages(io.BytesIO(written(["typed", ""])), 0, 2, LIMITS, ocr=True)

    assert [block.text for block in found.blocks] == [
        "typed",
        "scan P5 1654 2339 255 as stdin stdout --dpi 200",
    ]


def test_a_recognition_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path, "cat >/dev/null; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    with pytest.raises(DocumentError) as caught:
        pdf.pages(io.BytesIO(written([""])), 0, 1, LIMITS, ocr=True)

    assert type(caught.value) is DocumentError
    assert caught.value.error_code == "ERR_OCR_FAILED"
