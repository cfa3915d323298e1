"""Files of every kind with a sentence in each that no other has, and files that cannot be read."""

from __future__ import annotations

import html
import io
import random
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docx import Document
from tests.kit.pdf_files import written

WORDS = """
pressure valve sluice channel gate water level record measure night report basin inlet
pump repair season worker flow stone bridge summer winter letter office survey profile
account village district engineer drawing copy archive harbour mason timber lock weir
"""
ANIMALS = "otter heron falcon badger salmon lynx beaver weasel raven hedgehog turtle wolf"
CITIES = "Lisbon Oslo Quito Nairobi Kyoto Tbilisi Havana Perth Cusco Riga Dakar Bergen"
TRADES = "violin telescope kimono saxophone compass lantern carpet trumpet clock anchor"
DEBIAN = Path("/usr/share/doc")
KINDS = ("pdf", "docx", "md", "txt", "html")
LARGEST = 60_000
POISON = "POISON"
"""A worker that is told so ends when it wants a vector of a text with this word."""


_words, _animals, _cities, _trades = map(str.split, (WORDS, ANIMALS, CITIES, TRADES))


@dataclass(frozen=True, slots=True)
class Paper:
    """A file to take in."""

    name: str
    sentence: str = ""
    """To be found at the first place; empty for a file that cannot be read."""
    code: str = ""
    """Why it cannot be read."""


def sentence_of(number: int) -> str:
    """A sentence that shares its words with few others."""
    rest, animal = divmod(number, len(_animals))
    rest, city = divmod(rest, len(_cities))
    trade = (rest + animal + city) % len(_trades)
    return (
        f"The {_animals[animal]} of {_cities[city]} plays the {_trades[trade]} "
        f"for {_animals[animal]} number {number}."
    )


def prose(chance: random.Random, words: int) -> str:
    told = [chance.choice(_words) for _ in range(words)]
    sentences = [" ".join(told[start : start + 11]) for start in range(0, words, 11)]
    return " ".join(f"{one.capitalize()}." for one in sentences)


def sections(number: int, sentence: str, words: int = 120) -> Iterator[tuple[str, str]]:
    chance = random.Random(number)  # noqa: S311
    yield f"Report {number}", prose(chance, words)
    # Long enough for a chunk of its own, so that what is around it does not drown it.
    yield "Remark", " ".join([sentence] * 7)
    yield "Remainder", prose(chance, words)


def write_paper(folder: Path, number: int, kind: str, *, words: int = 120) -> Paper:
    sentence = sentence_of(number)
    name = f"paper-{number:03d}.{kind}"
    told = list(sections(number, sentence, words))
    (folder / name).write_bytes(_WRITERS[kind](told))
    return Paper(name, sentence)


def _pdf(told: list[tuple[str, str]]) -> bytes:
    return written([f"{title}\n\n{_lines(text)}" for title, text in told])


def _lines(text: str) -> str:
    words = text.split()
    return "\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12))


def _docx(told: list[tuple[str, str]]) -> bytes:
    document = Document()
    for title, text in told:
        document.add_heading(title, 1)
        document.add_paragraph(text)
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def _md(told: list[tuple[str, str]]) -> bytes:
    return "\n".join(f"# {title}\n\n{text}\n" for title, text in told).encode()


def _txt(told: list[tuple[str, str]]) -> bytes:
    return "\n\n".join(text for _, text in told).encode()


def _html(told: list[tuple[str, str]]) -> bytes:
    body = "".join(f"<h1>{html.escape(t)}</h1><p>{html.escape(x)}</p>" for t, x in told)
    return f"<!DOCTYPE html><html><body>{body}</body></html>".encode()


_WRITERS = {"pdf": _pdf, "docx": _docx, "md": _md, "txt": _txt, "html": _html}


def write_debian(folder: Path, number: int, source: Path) -> Paper:
    """A file of Debian's documentation with a sentence added."""
    sentence = sentence_of(number)
    data, added = source.read_bytes(), " ".join([sentence] * 7)
    if source.suffix == ".html":
        data += f"<h2>Remark</h2><p>{added}</p>".encode()
    else:
        data += f"\n\n\n{added}\n".encode()
    name = f"debian-{number:03d}{source.suffix}"
    (folder / name).write_bytes(data)
    return Paper(name, sentence)


def debian_files(most: int) -> list[Path]:
    """Texts that packages bring along, if there are any here; no two with the same content."""
    found: dict[bytes, Path] = {}
    for path in sorted(DEBIAN.rglob("*")):
        if len(found) >= most:
            break
        if path.suffix not in {".txt", ".html", ".md"} or not path.is_file():
            continue
        if 2_000 < path.stat().st_size < LARGEST:
            data = path.read_bytes()
            try:
                data.decode("ascii")  # so that what is added is in the same encoding
            except UnicodeDecodeError:
                continue
            found.setdefault(data, path)
    return list(found.values())


def write_bad(folder: Path) -> list[Paper]:
    """Files that cannot be read, each for a reason of its own."""
    whole = written(["a page"] * 3)
    bad = {
        "locked.pdf": (written(["secret"], user_password="x"), "ERR_PDF_ENCRYPTED"),
        "half.docx": (_docx([("a", "b")])[:4_000], "ERR_DOCX_INVALID"),
        "broken.pdf": (whole[:40], "ERR_PDF_INVALID"),
        "bomb.docx": (_bomb(), "ERR_ZIP_BOMB"),
        "picture.txt": (bytes(range(256)) * 40, "ERR_TYPE_MISMATCH"),
        "wrong.pdf": (_docx([("a", "b")]), "ERR_TYPE_MISMATCH"),
    }
    for name, (data, _) in bad.items():
        (folder / name).write_bytes(data)
    return [Paper(name, code=code) for name, (_, code) in bad.items()]


def _bomb() -> bytes:
    file = io.BytesIO(_docx([("a", "b")]))
    with zipfile.ZipFile(file) as source:
        parts = {name: source.read(name) for name in source.namelist()}
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in parts.items():
            if name == "word/document.xml":
                data = data.replace(b"<w:body>", b"<w:body>" + b" " * 200_000_000)  # noqa: PLW2901
            target.writestr(name, data)
    return bomb.getvalue()


def write_papers(folder: Path, count: int, *, debian: int = 0) -> list[Paper]:
    """So many files, of which some cannot be read."""
    folder.mkdir(parents=True, exist_ok=True)
    papers = write_bad(folder)
    for number, source in enumerate(debian_files(debian)):
        papers.append(write_debian(folder, number, source))
    for number in range(len(papers), count):
        papers.append(write_paper(folder, number, KINDS[number % len(KINDS)]))
    return papers


def write_notes(folder: Path, count: int, *, words: int = 120, first: int = 0) -> list[Paper]:
    """So many files that are quick to read."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + count)
    return [write_paper(folder, n, ("md", "txt")[n % 2], words=words) for n in numbers]
