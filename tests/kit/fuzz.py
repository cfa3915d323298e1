"""Fuzzing of one decoder: coverage-guided with atheris where it is installed, else by changes.

    python -m tests.kit.fuzz TARGET SECONDS [SEED]

Fails with the input (as bytes to copy into a test) on an exception that the decoder does not
document, and on one that takes longer than SLOWEST_S. A decoder is one row of TARGETS.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import atheris
except ImportError:
    atheris = None

LARGEST = 1 << 14
"""Bytes of an input."""
SLOWEST_S = 2.0
"""Processor time that an input of that size may take, with instrumentation."""


@dataclass(frozen=True)
class Target:
    decode: Callable[[bytes], object]
    corpus: tuple[bytes, ...]
    refusals: tuple[type[BaseException], ...] = ()
    """What the decoder may raise; `()` for nothing."""


def targets() -> dict[str, Callable[[], Target]]:
    """Each decoder of what comes from outside, by name; its modules are imported when made."""
    return {
        name.removeprefix("_target_"): made
        for name, made in globals().items()
        if name.startswith("_target_")
    }


# ---- stored by Penstock or by other programs, read from the server


def _target_codec() -> Target:
    from penstock.errors import DecodeError
    from penstock.redis.codec import Codec, Form
    from penstock.settings import CodecSettings

    codec = Codec(CodecSettings(compress_above=64, max_inflated=1 << 20))
    value = {"a": [1, 2.5, None, "é"], "b": "x" * 200}

    def decode(data: bytes) -> None:
        for form in Form:
            for type_ in (Any, bytes, dict[str, int]):
                try:
                    codec.decode(data, type_, form)
                except DecodeError:
                    continue

    corpus = (codec.encode(value), codec.encode(value, Form.TEXT), codec.encode("x" * 500), b"1")
    return Target(decode, corpus)


def _target_job() -> Target:
    from penstock.queues.storage.stored_job import Meta, read_item, task_item, write_item
    from penstock.redis.codec import Codec
    from penstock.settings import CodecSettings

    codec = Codec(CodecSettings(compress_above=200, max_inflated=1 << 20))

    def decode(data: bytes) -> None:
        item = read_item(data, codec)
        again = read_item(write_item(item, item.meta, codec), codec)
        assert again.task == item.task, (item, again)

    named = {"args": b"[1]", "kwargs": b'{"b":null}'}
    corpus = (
        task_item(codec, id="a", task="t", **named),
        task_item(codec, id="a", task="t", **named, meta=Meta(attempts=2, group="g")),
        task_item(codec, id="a", task="t", args=b'["%s"]' % (b"x" * 300), kwargs=b"{}"),
        b'{"task":"t","_penstock":{"attempts":1,"raw":"eA=="},"max_retries":3,"retry_count":1}',
        b'{"job_id":7,"NaN":NaN}',
    )
    return Target(decode, corpus)


def _target_queue_letter() -> Target:
    from penstock.queues.dead_letters.letter import read_letter

    letter = {
        "original_job": {"task": "t", "args": []},
        "error": "ValueError: x",
        "attempt_count": 3,
        "first_failed_at": "2026-01-01T00:00:00Z",
        "queue_name": "mail",
        "history": [{"at": 1, "error": "x"}],
        "suggestions": ["a"],
        "raw": "e30=",
        "buried_ms": 1,
        "_penstock": {"attempts": 1},
    }
    overflow = b'{"original_job":{"a":NaN},"error":"moved","queue_name":"mail"}'
    return Target(read_letter, (json.dumps(letter).encode(), overflow, b"{}"))


def _target_message_headers() -> Target:
    from penstock.topics.message import decode_headers

    return Target(decode_headers, (b'{"a":"b","n":1,"deep":{"x":[1]}}', b"{}"))


def _target_topic_metadata() -> Target:
    from penstock.topics.storage.metadata import read_options

    options = b'{"partitioner":"crc32","retention_ms":1000,"max_len":10,"max_bytes":100}'
    return Target(lambda data: read_options("orders", data), (options, b"{}"), _refusals())


def _target_schedule() -> Target:
    from penstock.queues.schedules.cron import read_when

    def decode(data: bytes) -> None:
        when = read_when(data.decode(errors="replace"))
        if when is not None:
            when.next_after(1_700_000_000_000)

    corpus = (b"cron UTC */5 * * * *", b"cron Europe/Berlin 0 3 1 1 *", b"every 1000 500")
    return Target(decode, corpus, _refusals())


def _target_identifier() -> Target:
    from penstock.inspector.key_contract import read_key
    from penstock.redis.keys.names import decode_id, encode_id

    def decode(data: bytes) -> None:
        read_key(data)
        read_key(data, "hsi")
        text = data.decode(errors="replace")
        decode_id(text)
        if 0 < len(text) <= 512:
            assert decode_id(encode_id("x", text)) == text

    corpus = (b"a%3Ab", b"stream:topic:{orders:3}", b"rag:ingest:queue", b"dlq:overflow:mail")
    return Target(decode, corpus)


# ---- over the network


def _target_rate_headers() -> Target:
    from penstock.coordination.limits.headers import read_retry_after, read_usages
    from penstock.coordination.limits.rates import parse_rates

    names = (
        *("retry-after", "date", "ratelimit", "ratelimit-policy", "x-ratelimit-limit"),
        *("x-ratelimit-remaining", "x-ratelimit-reset"),
    )
    known = parse_rates(("5/min", "50/hour"))

    def decode(data: bytes) -> None:
        values = data.decode("latin-1").split("\n")
        headers = dict(zip(names, values, strict=False))
        wait = read_retry_after(headers, now_s=1_700_000_000.0)
        assert wait is None or wait >= 0, wait
        read_usages(headers, known, now_s=1_700_000_000.0)

    corpus = (
        b'3\nTue, 15 Nov 1994 08:12:31 GMT\n"5/min";r=1;t=2\n"5/min";q=5;w=60\n5\n1\n1700000060',
        b"Fri, 31 Dec 1999 23:59:59 GMT\n\nlimit=10, remaining=1, reset=5\n10;w=1\n1\n0\n1",
    )
    return Target(decode, corpus)


def _target_rate() -> Target:
    from penstock.coordination.limits.rates import parse_rates

    corpus = (b"5/min", b"100 per 10s", b"1_000/.5hour")
    return Target(lambda data: parse_rates(data.decode(errors="replace")), corpus, _refusals())


def _target_forwarded() -> Target:
    from penstock.interfaces.forwarded import Callers

    name = Callers(("10.0.0.0/8", "unix", "::1")).name

    def decode(data: bytes) -> None:
        name("10.0.0.1", [(b"X-Forwarded-For", line) for line in data.split(b"\n")])
        name(data.decode(errors="replace"), [])

    return Target(
        decode, (b"1.2.3.4, 10.0.0.2:80", b"[2001:db8::1]:443\nunknown", b"::ffff:1.2.3.4")
    )


def _target_address() -> Target:
    from penstock.redis.address import parse_address
    from penstock.settings import Settings

    settings = Settings()
    corpus = (
        b"redis://user:p%40ss@host:6379?db=1",
        b"redis+cluster://a:1,b:2",
        b"redis+sentinel://:pw@h:26379,[::1]:2/mymaster/0",
        b"unix:///tmp/x.sock",
    )
    return Target(
        lambda data: parse_address(data.decode(errors="replace"), settings), corpus, _refusals()
    )


def _target_embedding_answer() -> Target:
    from penstock.pipelines.documents.embedding.answers import read_answer

    answer = b'{"data":[{"index":0,"embedding":[0.1,2e3,-1]}],"usage":{"total_tokens":3}}'
    return Target(
        lambda data: read_answer(data, 1, None), (answer, answer.replace(b"0,", b"1,")), _refusals()
    )


# ---- between our own processes, one of which may have been taken over


def _target_frames() -> Target:
    from penstock.processes.frames import FrameBuffer, FrameRefused, frame

    def decode(data: bytes) -> None:
        buffer = FrameBuffer(1 << 16)
        for start in range(0, len(data), 7):
            buffer.feed(data[start : start + 7])

    return Target(decode, (frame(b"x") + frame(b"y" * 20), frame(b"")), (FrameRefused,))


def _target_parser_reply() -> Target:
    import msgspec

    from penstock.pipelines.documents.parsing.sandbox import protocol

    decode = msgspec.msgpack.Decoder(protocol.ParserReply).decode
    reply = msgspec.msgpack.encode(protocol.Refused("parse", "ERR_X", "why", ("do this",)))
    return Target(decode, (reply,), (msgspec.MsgspecError, UnicodeDecodeError, RecursionError))


def _target_vector_request() -> Target:
    from penstock.processes.frames import FrameRefused
    from penstock.stores.vectors import requests
    from penstock.stores.vectors.port import Point

    made = (
        requests.Search(1, "c", b"\0\0\x80?", 5, ["d"], 0.5),
        requests.Upsert(2, "c", "d", 1, [Point("id", b"\0\0\x80?", {"text": "x"})]),
    )
    corpus = tuple(requests.encode(request) for request in made)
    return Target(requests.decode_request, corpus, (FrameRefused,))


# ---- files of users


def _document(kind: str, corpus: tuple[bytes, ...]) -> Target:
    from penstock.errors import DocumentError
    from penstock.pipelines.documents.parsing.formats import docx, html, markdown, text
    from penstock.pipelines.documents.parsing.formats.blocks import ParseLimits
    from penstock.pipelines.documents.parsing.sniffing import HEAD_BYTES, sniff

    parse = {"docx": docx.parse, "html": html.parse, "md": markdown.parse, "txt": text.parse}[kind]
    limits = ParseLimits(largest_text=1 << 20)

    def decode(data: bytes) -> None:
        file = io.BytesIO(data)
        with contextlib.suppress(DocumentError):
            sniff(file.read(HEAD_BYTES), file, kind, by_content=True, limits=limits)
        file.seek(0)
        parse(file, limits)

    return Target(decode, corpus, (DocumentError, RecursionError))


def _target_docx() -> Target:
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # stored: changes of bytes are changes of the XML
        archive.writestr(
            "[Content_Types].xml",
            "<Types xmlns='http://schemas.openxmlformats.org/package/2006/content-types'>"
            f"<Override PartName='/word/document.xml' ContentType='{main}'/></Types>",
        )
        archive.writestr(
            "_rels/.rels",
            "<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/relationships'>"
            "<Relationship Id='r' Type='http://schemas.openxmlformats.org/officeDocument/2006/"
            "relationships/officeDocument' Target='word/document.xml'/></Relationships>",
        )
        archive.writestr(
            "word/document.xml",
            "<w:document xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'>"
            "<w:body><w:p><w:pPr><w:pStyle w:val='Heading1'/></w:pPr><w:r><w:t>Title</w:t></w:r>"
            "</w:p><w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val='2'/></w:tcPr><w:p><w:r><w:t>cell"
            "</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>",
        )
    return _document("docx", (file.getvalue(),))


def _target_html() -> Target:
    page = b"<!doctype html><title>t</title><meta charset=latin1><h1>a</h1><table><tr><td>b<pre>c"
    return _document("html", (page, b"<p>" * 50, b"<script>x</script><!-- --><a href='#'>y</a>"))


def _target_markdown() -> Target:
    page = b"# a\n\n* b\n  * c\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n```py\ncode\n```\n> q [l](u)"
    return _document("md", (page, b"[" * 60, b"> " * 60))


def _target_text() -> Target:
    return _document("txt", ("é ü\n\n1. x".encode(), "ä".encode("utf-16"), b"\xe4\xf6", b"a\x0cb"))


def _target_pdf() -> Target:
    from tests.kit.pdf_files import one_page, written

    from penstock.errors import DocumentError
    from penstock.pipelines.documents.parsing.formats import pdf
    from penstock.pipelines.documents.parsing.formats.blocks import ParseLimits

    limits = ParseLimits(largest_text=1 << 20)

    def decode(data: bytes) -> None:
        pdf.pages(io.BytesIO(data), 0, 2, limits, ocr=False)

    return Target(decode, (written(["A valve opens."]), one_page(b"BT ET")), (DocumentError,))


def _target_configuration() -> Target:
    from penstock.pipelines.documents.config.yaml_reading import ConfigFileUnreadable, read_yaml

    path = Path(tempfile.mkdtemp(prefix="penstock-fuzz-")) / "rag.yaml"

    def decode(data: bytes) -> None:
        path.write_bytes(data)
        read_yaml(path)

    corpus = (b"a: 1\nb:\n  - x\n  - {c: 2020-01-01}\n", b"a: &x [1]\nb: *x\n", b"? !!str x\n: y")
    return Target(decode, corpus, (ConfigFileUnreadable,))


def _refusals() -> tuple[type[BaseException], ...]:
    from penstock.errors import PenstockError

    return (PenstockError,)


# ---- the run


def tried(target: Target, data: bytes) -> None:
    """Decode one input; an AssertionError with the input if that breaks the rules."""
    begun = time.process_time()
    try:
        target.decode(data)
    except target.refusals:
        pass
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} for {data!r}") from error
    took = time.process_time() - begun
    assert took < SLOWEST_S, f"{took:.1f} s for {data!r}"


def changed_by_chance(target: Target, seconds: float, seed: int) -> int:
    """Without atheris: inputs of the corpus, changed and spliced; how many were tried."""
    from tests.kit.odd.odd_bytes import changed, odd

    rng = random.Random(seed)
    target.decode(target.corpus[0])  # must be readable; imports what is needed
    end, tries = time.monotonic() + seconds, 0
    pool = list(target.corpus) * 2  # one half stays, the other drifts away
    while time.monotonic() < end:
        data = rng.choice(pool)
        match rng.randrange(4):
            case 0:
                data = odd(rng, data)
            case 1:
                other = rng.choice(pool)
                data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
            case _:
                for _ in range(rng.randint(1, 6)):
                    data = changed(rng, data)
        tried(target, data[:LARGEST])
        if rng.random() < 0.01:
            pool[rng.randrange(len(target.corpus), len(pool))] = data[:LARGEST] or b"x"
        tries += 1
    return tries


def guided(make: Callable[[], Target], seconds: float, seed: int) -> None:
    """With atheris, which ends the process."""
    assert atheris is not None
    with atheris.instrument_imports(include=["penstock"], enable_loader_override=False):
        target = make()
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as folder:
        for number, data in enumerate(target.corpus):
            (Path(folder) / str(number)).write_bytes(data)
        options = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-max_len={LARGEST}"]
        options += [f"-artifact_prefix={folder}/", "-rss_limit_mb=2048", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *options, folder], lambda data: tried(target, data))
        atheris.Fuzz()


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    make = targets()[name]
    if atheris is not None and not os.environ.get("PENSTOCK_FUZZ_UNGUIDED"):
        guided(make, seconds, seed)
    else:
        print(f"{name}: {changed_by_chance(make(), seconds, seed)} inputs, unguided")


if __name__ == "__main__":
    main()
