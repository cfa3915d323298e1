"""Suggestions for each reason for which a document is refused."""

from __future__ import annotations

from typing import Final, TypeVar

from penstock.errors import DocumentError

__all__ = ["BY_THE_FILE", "DEATHS", "SUGGESTIONS", "explained"]

E = TypeVar("E", bound=DocumentError)

SUGGESTIONS: Final[dict[str, tuple[str, ...]]] = {
    "ERR_EMPTY_FILE": ("Check that the file was copied completely",),
    "ERR_TYPE_MISMATCH": (
        "Give the file the extension that fits its content",
        "Submit it with skip_validation to have it read by its content",
    ),
    "ERR_UNSUPPORTED_TYPE": ("Export the document as PDF, DOCX, Markdown, HTML or plain text",),
    "ERR_PDF_INVALID": (
        "Verify PDF is valid using: pdfinfo {name}",
        "Try re-exporting the PDF from original source",
        "Check file permissions: ls -la {name}",
    ),
    "ERR_PDF_ENCRYPTED": (
        "Remove the password: qpdf --decrypt --password=... {name} unlocked.pdf",
        "Export the PDF again without a password",
    ),
    "ERR_PDF_EMPTY": ("Check that the PDF was exported completely: it has no pages",),
    "ERR_NO_TEXT": (
        "Scanned pages need text recognition: set sources.ocr in the file of the RAG",
        "Export the document with its text instead of pictures of it",
    ),
    "ERR_OCR_MISSING": (
        "Install it: apt-get install tesseract-ocr",
        "Turn sources.ocr off in the file of the RAG",
    ),
    "ERR_DOCX_INVALID": (
        "Open the file in a word processor and save it again as .docx",
        "Check that the file was copied completely",
    ),
    "ERR_DOCX_ENCRYPTED": ("Remove the password and save the document again as .docx",),
    "ERR_ZIP_UNSAFE": ("Open the file in a word processor and save it again as .docx",),
    "ERR_ZIP_BOMB": ("Open the file in a word processor and save it again as .docx",),
    "ERR_XML_DOCTYPE": ("Remove the DOCTYPE from the file",),
    "ERR_NOT_TEXT": ("Save the file as text in UTF-8",),
    "ERR_TOO_MANY_ELEMENTS": ("Split the document into smaller files",),
    "ERR_TOO_MUCH_TEXT": (
        "Split the document into smaller files",
        "Raise documents.largest_text, or lower the overlap of the RAG's chunking",
    ),
    "ERR_PARSE_TOO_SLOW": (
        "Split the document into smaller files",
        "Raise documents.parse_cpu_s if the document is known to be good",
    ),
    "ERR_PARSE_TIMEOUT": ("Raise documents.parse_wall_s if the machine is slow or busy",),
    "ERR_PARSE_FAILED": ("Export the document again, or in another format",),
    "ERR_OUT_OF_MEMORY": (
        "Split the document, or raise documents.parse_memory_mb if it is known to be good",
    ),
    "ERR_PARSER_CRASHED": ("Export the document again: its file crashes the reader",),
    "ERR_PARSER_KILLED": (
        "Give the machine more memory, or run fewer parsers (documents.parsers)",
    ),
    "ERR_PARSER_LOST": ("Nothing: it is read again by a parser of its own",),
    "ERR_PARSER_CLOSED": ("Nothing: the worker was stopped, another one reads the document",),
    "ERR_PARSER_START": ("Install what reads documents: pip install 'penstock[documents]'",),
    "ERR_OCR_FAILED": ("Check that tesseract works: tesseract --version",),
    "ERR_FILE_READ": ("Check the disk or the network that the file is on",),
}
"""By error code. `{name}` stands for the name of the file."""

BY_THE_FILE: Final = frozenset(("ERR_OUT_OF_MEMORY", "ERR_PARSER_CRASHED", "ERR_PARSE_TIMEOUT"))
"""Deaths of a parser that its file has caused, or may have."""

DEATHS: Final = BY_THE_FILE | {"ERR_PARSE_TOO_SLOW"}
"""Deaths of a parser that this file or one read before has caused."""


def explained(kind: type[E], code: str, reason: str, name: str = "filename") -> E:
    """An error with its code's suggestions."""
    lines = SUGGESTIONS.get(code, ())
    return kind(reason, code, tuple(line.replace("{name}", name) for line in lines))
