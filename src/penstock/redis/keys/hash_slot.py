"""Where a key lives on a cluster."""

from __future__ import annotations

from binascii import crc_hqx

__all__ = ["SLOTS", "key_slot"]

SLOTS = 16_384


def key_slot(key: str | bytes) -> int:
    """Slot of a key: CRC16 of its hash tag if it has one, else of the whole key.

    The tag is what stands between the first `{` and the first `}` after it, unless that is empty.
    """
    # surrogateescape: a stored key that is not UTF-8 still has a slot when it was read as text
    data = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    start = data.find(b"{") + 1
    if start:
        end = data.find(b"}", start)
        if end > start:
            data = data[start:end]
    return crc_hqx(data, 0) % SLOTS
