"""What groups of settings are made of."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from penstock.settings_reading import checked, dotted, kinds_of

__all__ = ["Bytes", "Count", "Group", "Seconds", "Share"]

Count = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Bytes = Annotated[int, Meta(ge=1, le=512 * 1024 * 1024)]
Share = Annotated[float, Meta(gt=0, le=1)]


class Group:
    """A group of settings that checks itself when it is made."""

    __slots__ = ()
    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, kind in kinds_of(type(self)).items():
            if not is_dataclass(kind):
                given = getattr(self, name)
                object.__setattr__(self, name, checked(dotted(self.section, name), given, kind))
