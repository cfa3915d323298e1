"""Zstd frames: packing, and the one bounded way to unpack what someone else may have written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import DecodeError, InflationRefused

if TYPE_CHECKING:
    import zstandard

__all__ = ["MAGIC", "Zstd", "declared_size"]

MAGIC = b"\x28\xb5\x2f\xfd"
"""Every frame begins with these bytes, and no JSON does."""

_SIZE_UNKNOWN = 2**64 - 1
_DENSEST = 128 * 1024 // 4
"""Bytes that one byte of a frame can stand for: a block of 4 bytes unpacks to 128 KiB at most."""
_LARGEST_WINDOW = 8 * 1024 * 1024
"""What RFC 8878 asks every reader to support; streaming allocates a frame's whole window."""
_SLICE = 64
"""Streaming reads so many bytes at a time, so one step unpacks to about 2 MiB at most."""


def declared_size(head: bytes) -> int:
    """Bytes that a frame says it unpacks to, by its first bytes; 0 if it does not say."""
    import zstandard  # noqa: PLC0415  most processes never compress; it takes 10 ms

    try:
        size = zstandard.get_frame_parameters(head).content_size
    except zstandard.ZstdError:
        return 0
    return size if size != _SIZE_UNKNOWN else 0


class Zstd:
    """Packs and unpacks; usable from several threads at once."""

    def __init__(self, max_inflated: int) -> None:
        self._max_inflated = max_inflated
        self._largest_frame = max_inflated + (max_inflated >> 8) + 1024
        self._threads = threading.local()

    @property
    def largest_frame(self) -> int:
        """Bytes that the frame of an allowed payload can have; more is not worth looking at."""
        return self._largest_frame

    def pack(self, data: bytes) -> bytes:
        """One frame that declares its size."""
        return self._tools()[0].compress(data)

    def unpack(self, frame: bytes, raw: bytes) -> bytes:
        """Return the content of exactly one frame; take memory only once its size is known to fit.

        A bad frame is a DecodeError that carries `raw`, the value as it was stored.
        """
        import zstandard  # noqa: PLC0415  most processes never compress; it takes 10 ms

        if len(frame) > self._largest_frame:
            raise self._too_large(f"a zstd frame of {len(frame)} bytes", raw)
        try:
            header = zstandard.get_frame_parameters(frame)
            if header.dict_id:
                raise DecodeError(f"the zstd frame needs dictionary {header.dict_id}", raw)
            # The one-shot call trusts a declared size: it allocates it, whatever limit it is given,
            # and for 0 it does not even look at the rest.
            if header.content_size in (0, _SIZE_UNKNOWN):
                return self._unpack_streaming(frame, raw)
            if header.content_size > self._max_inflated:
                raise self._too_large(f"a zstd frame of {header.content_size} bytes unpacked", raw)
            if header.content_size > len(frame) * _DENSEST:
                raise DecodeError("the zstd frame declares more than it can hold", raw)
            return self._tools()[1].decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError:
            raise DecodeError("not exactly one whole zstd frame", raw) from None

    def _unpack_streaming(self, frame: bytes, raw: bytes) -> bytes:
        size = 0
        for chunk in self._chunks(frame, raw):  # only counted: a bomb costs time, not memory
            size += len(chunk)
            if size > self._max_inflated:
                raise self._too_large("a zstd frame of undeclared size", raw)
        return b"".join(self._chunks(frame, raw))

    def _chunks(self, frame: bytes, raw: bytes) -> Iterator[bytes]:
        reader = self._tools()[1].decompressobj()
        for start in range(0, len(frame), _SLICE):
            yield reader.decompress(frame[start : start + _SLICE])
            if reader.eof:
                if reader.unused_data or start + _SLICE < len(frame):
                    raise DecodeError("the zstd frame is followed by other data", raw)
                return
        raise DecodeError("the zstd frame is cut short", raw)

    def _too_large(self, what: str, raw: bytes) -> InflationRefused:
        return InflationRefused(f"{what}: more than {self._max_inflated} bytes are refused", raw)

    def _tools(self) -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
        """Return the calling thread's own pair: two threads must not use one at the same time."""
        try:
            return self._threads.tools
        except AttributeError:
            import zstandard  # noqa: PLC0415  as above

            self._threads.tools = (
                zstandard.ZstdCompressor(),
                zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW),
            )
            return self._threads.tools
