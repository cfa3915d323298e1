"""PDF files for tests: good ones, and ones that are made by hand to be bad."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence

from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen import canvas

__all__ = ["CATALOG", "FONT", "by_hand", "one_page", "stream", "written"]

CATALOG = b"<</Type/Catalog/Pages 2 0 R>>"
FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
PAGES = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
PAGE = (
    b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R"
    b"/Resources<</Font<</F1 5 0 R>>>>>>"
)
TEXT = b"BT /F1 12 Tf 50 700 Td (A valve opens when the pres-) Tj 0 -14 Td (sure falls.) Tj ET"


def written(
    pages: Sequence[str], *, title: str = "", user_password: str | None = None, owner: str = "o"
) -> bytes:
    """A PDF with these texts, by a program that makes PDFs. An empty text is an empty page."""
    file = io.BytesIO()
    lock = None
    if user_password is not None:
        lock = StandardEncryption(user_password, ownerPassword=owner)
    paper = canvas.Canvas(file, encrypt=lock, pageCompression=1)
    if title:
        paper.setTitle(title)
    for page in pages:
        text = paper.beginText(50, 790)
        text.setFont("Helvetica", 10)
        for line in page.splitlines():
            text.textLine(line)
        paper.drawText(text)
        paper.showPage()
    paper.save()
    return file.getvalue()


def stream(data: bytes, *, deflated: int = 0) -> bytes:
    """A stream, packed so many times."""
    for _ in range(deflated):
        data = zlib.compress(data, 9)
    filters = b"/Filter[" + b"/FlateDecode " * deflated + b"]" if deflated else b""
    return b"<</Length %d %s>>\nstream\n%s\nendstream" % (len(data), filters, data)


def by_hand(objects: Sequence[bytes], *, trailer: bytes = b"", xref: bool = True) -> bytes:
    """A PDF of these objects, the first of which is the catalog."""
    file = io.BytesIO(b"%PDF-1.7\n")
    file.seek(0, io.SEEK_END)
    places: list[int] = []
    for number, body in enumerate(objects, 1):
        places.append(file.tell())
        file.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = file.tell()
    if xref:
        file.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
        file.writelines(b"%010d 00000 n \n" % place for place in places)
    file.write(b"trailer\n<</Size %d/Root 1 0 R%s>>\n" % (len(objects) + 1, trailer))
    file.write(b"startxref\n%d\n%%%%EOF\n" % table)
    return file.getvalue()


def one_page(
    content: bytes | None = None,
    *,
    catalog: bytes = CATALOG,
    pages: bytes = PAGES,
    trailer: bytes = b"",
    xref: bool = True,
) -> bytes:
    """A PDF of one page; any of its objects may be replaced by a bad one."""
    content = stream(TEXT) if content is None else content
    return by_hand([catalog, pages, PAGE, content, FONT], trailer=trailer, xref=xref)
