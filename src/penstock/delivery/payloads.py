"""Payloads for display."""

from __future__ import annotations

import msgspec

__all__ = ["SHOWN_BYTES", "PayloadView", "show_bytes"]

SHOWN_BYTES = 64 * 1024
"""Default limit of a displayed payload."""


class PayloadView(msgspec.Struct, frozen=True, kw_only=True):
    """A payload for display: decompressed, and truncated if it is long."""

    text: str
    """Bytes that are not UTF-8 are escaped as `\\xff`."""
    size: int
    """Bytes of the whole, decompressed."""
    is_text: bool = True
    is_cut: bool = False
    is_missing: bool = False
    """The message has no payload, or it was stored outside the stream and is gone."""
    raw: bytes | None = msgspec.field(default=None, name="base64")
    """The bytes, if they are not text; truncated like the text."""


def show_bytes(data: bytes, max_bytes: int = SHOWN_BYTES) -> PayloadView:
    """A decompressed payload for display."""
    shown = data[:max_bytes]
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
