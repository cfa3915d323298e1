"""Keys, items and ids of a window, as they are stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock.coordination.windows.options import SEED_WINDOW, WindowOptions
from penstock.errors import EncodeError, InvalidItem
from penstock.redis.codec import Codec
from penstock.redis.json_rules import MAX_NESTING, NEVER_TOO_DEEP, nests_too_deep
from penstock.redis.keys.names import decode_id, encode_id
from penstock.settings import CodecSettings

__all__ = ["Items"]

LONGEST_ITEM_ID: Final = 256

_BETWEEN: Final = "\x1f"
_NEVER_COMPRESS: Final = 512 * 1024 * 1024
# An item stands in the list of a batch, which is a field of an object.
_WITHIN: Final = b"[[%b]]"


class Items:
    """Spells the keys and items of one window."""

    def __init__(self, options: WindowOptions, settings: CodecSettings) -> None:
        name = options.name
        self.prefix = "" if name == SEED_WINDOW else encode_id("window", f"{name}{_BETWEEN}")
        self._name = "" if name == SEED_WINDOW else f"{name}{_BETWEEN}"
        self._max_bytes = options.max_bytes
        # Compressed, items could not be put together by the server.
        self._encode = Codec(replace(settings, compress_above=_NEVER_COMPRESS)).encoder(Any)

    def window(self, key: str) -> tuple[str, bytes]:
        """The window of a key as it stands in keys, and the key as it is stored."""
        if not isinstance(key, str) or _BETWEEN in key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidItem(f"key {str(key)[:60]!r}: expected text without U+001F")
        window = encode_id("window", self._name + key if key else "")
        try:
            return window, key.encode()
        except UnicodeEncodeError:
            raise InvalidItem(f"key {key[:60]!r}: half of a surrogate pair is no text") from None

    def key(self, window: str) -> str:
        """The key of a window as it stands in keys."""
        return decode_id(window.removeprefix(self.prefix))

    def item(self, item: Any) -> bytes:
        """An item as JSON; InvalidItem if no batch can have it."""
        try:
            data = self._encode(item)
        except EncodeError as error:
            raise InvalidItem(str(error)) from None
        if len(data) >= self._max_bytes:
            raise InvalidItem(
                f"an item of {len(data)} bytes: a batch has at most {self._max_bytes}; "
                "put the data elsewhere and add its address"
            )
        if len(data) > NEVER_TOO_DEEP - 4 and nests_too_deep(_WITHIN % data):
            raise InvalidItem(f"an item that nests deeper than {MAX_NESTING - 2}")
        return data

    @staticmethod
    def item_id(id_: str | None) -> bytes:
        """An item's id as it is stored; empty for none."""
        if id_ is None:
            return b""
        if not isinstance(id_, str) or not 1 <= len(id_) <= LONGEST_ITEM_ID:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidItem(
                f"id {str(id_)[:60]!r}: expected a text of 1 to {LONGEST_ITEM_ID} characters"
            )
        try:
            return id_.encode()
        except UnicodeEncodeError:
            raise InvalidItem(f"id {id_[:60]!r}: half of a surrogate pair is no text") from None
