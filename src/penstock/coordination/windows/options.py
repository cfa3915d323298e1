"""Options of windows, validated on construction, and the encoding of their keys and items."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Self, TypedDict

from penstock.coordination.stored_names import SHARED_WINDOW, WINDOW_FIELDS
from penstock.delivery.times import wait_s
from penstock.errors import EncodeError, InvalidItem, SettingError
from penstock.redis.codec import Codec
from penstock.redis.codec.json_rules import MAX_NESTING, NEVER_TOO_DEEP, nests_too_deep
from penstock.redis.keys.names import check_name, decode_id, encode_id
from penstock.settings import CodecSettings
from penstock.settings.coordination import WindowSettings

__all__ = ["OVERHEAD_BYTES", "ItemEncoder", "WindowKwargs", "WindowOptions"]

OVERHEAD_BYTES: Final = 8 * 1024
"""A batch becomes one job or message, which is larger than its items by this much at most."""

_MOST_ITEMS: Final = 10_000
_LONGEST_ITEM_ID: Final = 256
_SEPARATOR: Final = "\x1f"
_NEVER_COMPRESS: Final = 512 * 1024 * 1024
# An item is nested in the list of a batch, which is a field of an object.
_NESTED: Final = b"[[%b]]"
_LONGEST_FIELD: Final = 64
_SHORTEST_S: Final = 0.001
_MOST_KEYS: Final = 4_096
"""Keys whose encoding is kept."""
_OWN_FIELDS: Final = frozenset(
    {
        *("batch_id", "started_at", "ended_at", "last_activity", "started_ms", "ended_ms"),
        *("count", "reason", "fast_path", "_penstock", "task", "id", "job_id"),
    }
)


class WindowKwargs(TypedDict, total=False):
    """Options of a window; the settings have the defaults."""

    max_age: float | timedelta | None
    idle: float | timedelta | None
    max_items: int | None
    max_bytes: int | None
    key_field: str | None
    items_field: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """When a window closes its batches, and how its jobs name their fields: see `Window`."""

    name: str
    max_age_ms: int
    idle_ms: int
    max_items: int
    max_bytes: int
    key_field: str
    items_field: str

    @classmethod
    def of(
        cls,
        name: str,
        settings: WindowSettings,
        *,
        max_age: float | timedelta | None = None,
        idle: float | timedelta | None = None,
        max_items: int | None = None,
        max_bytes: int | None = None,
        key_field: str | None = None,
        items_field: str | None = None,
    ) -> Self:
        """Fill in the defaults; SettingError for what is invalid."""
        key_name, items_name = WINDOW_FIELDS.get(name, ("key", "items"))
        return cls(
            name=name,
            max_age_ms=_ms("window.max_age", settings.max_age_s if max_age is None else max_age),
            idle_ms=_ms("window.idle", settings.idle_s if idle is None else idle),
            max_items=settings.max_items if max_items is None else max_items,
            max_bytes=settings.max_bytes if max_bytes is None else max_bytes,
            key_field=key_field or key_name,
            items_field=items_field or items_name,
        )

    def __post_init__(self) -> None:
        check_name("window", self.name)
        for what, ms in (("max_age", self.max_age_ms), ("idle", self.idle_ms)):
            if type(ms) is not int or ms < 1:
                raise SettingError(f"window.{what}", ms, "at least a millisecond")
        if type(self.max_items) is not int or not 1 <= self.max_items <= _MOST_ITEMS:
            raise SettingError("window.max_items", self.max_items, f"1 to {_MOST_ITEMS:,}")
        if type(self.max_bytes) is not int or self.max_bytes < 1:
            raise SettingError("window.max_bytes", self.max_bytes, "a whole number of bytes")
        for what in ("key_field", "items_field"):
            _check_field(f"window.{what}", getattr(self, what))
        if self.key_field == self.items_field:
            raise SettingError("window.items_field", self.items_field, "another than key_field")


class ItemEncoder:
    """Keys, items and ids of one window, as they are stored."""

    def __init__(self, options: WindowOptions, settings: CodecSettings) -> None:
        name = options.name
        self.prefix = "" if name == SHARED_WINDOW else encode_id("window", f"{name}{_SEPARATOR}")
        self._name = "" if name == SHARED_WINDOW else f"{name}{_SEPARATOR}"
        self._max_bytes = options.max_bytes
        self._windows: dict[str, tuple[str, bytes]] = {}
        # Compressed, items could not be put together by the server.
        self._encode = Codec(replace(settings, compress_above=_NEVER_COMPRESS)).encoder(Any)

    def window(self, key: str) -> tuple[str, bytes]:
        """The name of a key's window in stored keys, and the key as it is stored."""
        try:
            return self._windows[key]
        except (KeyError, TypeError):
            window = self._encode_key(key)
        if len(self._windows) >= _MOST_KEYS:
            self._windows.clear()
        self._windows[key] = window
        return window

    def _encode_key(self, key: str) -> tuple[str, bytes]:
        if not isinstance(key, str) or _SEPARATOR in key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidItem(f"key {str(key)[:60]!r}: expected text without U+001F")
        window = encode_id("window", self._name + key if key else "")
        try:
            return window, key.encode()
        except UnicodeEncodeError:
            raise InvalidItem(f"key {key[:60]!r}: half of a surrogate pair is no text") from None

    def key(self, window: str) -> str:
        """The caller's key, from the name of its window in stored keys."""
        return decode_id(window.removeprefix(self.prefix))

    def item(self, item: Any) -> bytes:
        """An item as JSON; InvalidItem if no batch can hold it."""
        try:
            data = self._encode(item)
        except EncodeError as error:
            raise InvalidItem(str(error)) from None
        if len(data) >= self._max_bytes:
            raise InvalidItem(
                f"an item of {len(data)} bytes: a batch has at most {self._max_bytes}; "
                "put the data elsewhere and add its address"
            )
        if len(data) > NEVER_TOO_DEEP - 4 and nests_too_deep(_NESTED % data):
            raise InvalidItem(f"an item that nests deeper than {MAX_NESTING - 2}")
        return data

    @staticmethod
    def item_id(id_: str | None) -> bytes:
        """An item's id as it is stored; empty for none."""
        if id_ is None:
            return b""
        if not isinstance(id_, str) or not 1 <= len(id_) <= _LONGEST_ITEM_ID:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidItem(
                f"id {str(id_)[:60]!r}: expected a text of 1 to {_LONGEST_ITEM_ID} characters"
            )
        try:
            return id_.encode()
        except UnicodeEncodeError:
            raise InvalidItem(f"id {id_[:60]!r}: half of a surrogate pair is no text") from None


def _check_field(what: str, field: object) -> None:
    if not isinstance(field, str) or not 1 <= len(field) <= _LONGEST_FIELD or not field.isascii():
        raise SettingError(what, field, f"a name of 1 to {_LONGEST_FIELD} ASCII characters")
    if field in _OWN_FIELDS:
        raise SettingError(what, field, "a name that batches do not have already")


def _ms(what: str, wait: float | timedelta) -> int:
    try:
        seconds = wait_s(wait, what)
    except (TypeError, ValueError) as error:
        raise SettingError(what, wait, f"seconds or a timedelta ({error})") from None
    if seconds < _SHORTEST_S:
        raise SettingError(what, wait, "at least a millisecond")
    return round(seconds * 1000)
