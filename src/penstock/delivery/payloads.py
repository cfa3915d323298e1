"""Payloads as people read them."""

from __future__ import annotations

import msgspec

__all__ = ["SHOWN_BYTES", "PayloadView", "show_bytes"]

SHOWN_BYTES = 64 * 1024
"""What is shown of a payload, unless more or less is asked for."""


class PayloadView(msgspec.Struct, frozen=True, kw_only=True):
    """A payload as people read it: unpacked, and cut if it is long."""

    text: str
    """Bytes that are no UTF-8 are written as `\\xff`."""
    size: int
    """Bytes of the whole, unpacked."""
    is_text: bool = True
    is_cut: bool = False
    is_missing: bool = False
    """There is none, or it was stored elsewhere and is gone."""
    raw: bytes | None = msgspec.field(default=None, name="base64")
    """The bytes themselves, if they are no text; cut like the text."""


def show_bytes(data: bytes, most_bytes: int = SHOWN_BYTES) -> PayloadView:
    """Return a payload, unpacked already, as people read it."""
    shown = data[:most_bytes]
    is_cut = len(data) > len(shown)
    try:
        text, is_text = shown.decode(), True
    except UnicodeDecodeError as error:
        # The cut may have gone through a character.
        is_text = (
            is_cut and error.start > len(shown) - 4 and error.reason == "unexpected end of data"
        )
        text = shown[: error.start].decode() if is_text else shown.decode(errors="backslashreplace")
    raw_shown = None if is_text else shown
    return PayloadView(text=text, size=len(data), is_text=is_text, is_cut=is_cut, raw=raw_shown)
