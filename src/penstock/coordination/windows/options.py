"""What a window can be told, checked when it is said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self, TypedDict

from penstock.delivery.times import wait_s
from penstock.errors import SettingError
from penstock.redis.keys.names import check_name
from penstock.settings_coordination import WindowSettings

__all__ = ["OVERHEAD_BYTES", "SEED_WINDOW", "WindowOptions", "WindowWords"]

SEED_WINDOW: Final = "batch"
"""The window whose keys and fields are those of the security pipeline."""
OVERHEAD_BYTES: Final = 8 * 1024
"""A batch becomes one job or message: so much more than its items that takes at most."""

_MOST_ITEMS: Final = 10_000
_LONGEST_FIELD: Final = 64
_SHORTEST_S: Final = 0.001
_OWN_FIELDS: Final = frozenset(
    {
        *("batch_id", "started_at", "ended_at", "last_activity", "started_ms", "ended_ms"),
        *("count", "reason", "fast_path", "_penstock", "task", "id", "job_id"),
    }
)


class WindowWords(TypedDict, total=False):
    """What can be said about a window, where it is not as the settings have it."""

    max_age: float | timedelta | None
    idle: float | timedelta | None
    max_items: int | None
    max_bytes: int | None
    key_field: str | None
    items_field: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How a window gathers. `Window` explains each."""

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
        """Fill in the defaults; SettingError for what cannot be."""
        is_seed = name == SEED_WINDOW
        return cls(
            name=name,
            max_age_ms=_ms("window.max_age", settings.max_age_s if max_age is None else max_age),
            idle_ms=_ms("window.idle", settings.idle_s if idle is None else idle),
            max_items=settings.max_items if max_items is None else max_items,
            max_bytes=settings.max_bytes if max_bytes is None else max_bytes,
            key_field=key_field or ("camera_id" if is_seed else "key"),
            items_field=items_field or ("detection_ids" if is_seed else "items"),
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
