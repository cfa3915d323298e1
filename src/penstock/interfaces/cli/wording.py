"""Times, sizes, payloads and tables, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from penstock.interfaces.cli.output import say, say_lines
from penstock.redaction import redacted
from penstock.topics.admin.views import MessageView, PayloadView

__all__ = ["age", "message_line", "moment", "payload_line", "plural", "size", "table"]

_LINE = 200
"""Characters of a payload on a line with other things."""
_DATA = frozenset({"CALL", "DATA", "DOCUMENT", "ID", "ITEM", "JOB", "KEY"})
"""Columns with the user's data; others may describe errors."""
_KIBI = 1024
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> bool:
    """Print rows under their titles: numbers to the right, texts to the left.

    The last column is the one that may be long; it is not padded. False if the reader has gone.
    """
    cells = [[_cell(*pair) for pair in zip(titles, row, strict=True)] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    numeric = [any(isinstance(row[place], int) for row in rows) for place in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return say(line(titles), bold=True) and say_lines(map(line, cells), is_data=True)


def _cell(title: str, cell: object) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell) if title in _DATA else redacted(str(cell))


def plural(count: int, noun: str) -> str:
    """`1 message`, `1,204 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def moment(ms: int | None, timespec: str = "seconds") -> str:
    """A time that `--from` and `--to` understand, too."""
    if ms is None:
        return "-"
    try:
        shown = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:  # an id of another program
        return f"{ms} ms"
    return shown.isoformat(timespec=timespec).replace("+00:00", "Z")


def age(ms: float | None) -> str:
    """A duration in its largest unit that fits: `850 ms`, `12.0 s`, `3.5 h`."""
    if ms is None:
        return "-"
    if ms < 1000:  # noqa: PLR2004  a second
        return f"{ms:.0f} ms"
    for seconds, unit in _UNITS:
        if ms >= seconds * 1000:
            return f"{ms / 1000 / seconds:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def size(count: float) -> str:
    """Bytes in their largest unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if count < _KIBI:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIBI
    return f"{count:.1f} GiB"


def payload_line(payload: PayloadView, most: int = _LINE) -> str:
    """The payload, or its beginning and how long it is."""
    if payload.is_missing:
        return "(no payload)"
    if payload.is_cut or len(payload.text) > most:
        return f"{payload.text[:most]}… ({size(payload.size)})"
    return payload.text


def message_line(view: MessageView) -> str:
    """One message on one line; data throughout."""
    place = f"{moment(view.sent_ms, 'milliseconds')}  {view.id}"
    if view.barrier is not None:
        return f"{place}  (here the topic grew, to generation {view.barrier})"
    key = "" if view.key is None else f"  key={view.key}"
    headers = "".join(f"  {name}={value}" for name, value in view.headers.items())
    payload = payload_line(view.payload)
    if view.fields is not None:
        payload += " " + " ".join(f"{name}={value}" for name, value in view.fields.items())
    return f"{place}{key}{headers}  {payload}"
