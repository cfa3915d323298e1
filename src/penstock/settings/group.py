"""What groups of settings are made of."""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, dataclass_transform

from msgspec import Meta

from penstock.settings.reading import SECRET, checked, dotted, is_secret, kinds_of

__all__ = ["Bytes", "Count", "Group", "Seconds", "Secret", "Share"]

Count = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Bytes = Annotated[int, Meta(ge=1, le=512 * 1024 * 1024)]
Share = Annotated[float, Meta(gt=0, le=1)]
Secret = Annotated[str, SECRET]
"""A text that no error, `repr` or log line shows; so is an address, which may have a password."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Group:
    """A group of settings: a frozen dataclass that validates its values when it is made.

    Its methods are written once here instead of generated for each group, which took a fifth of
    the time of importing `Penstock`.
    """

    section: ClassVar[str] = ""
    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=True)(cls)

    def __init__(self, **values: Any) -> None:
        kinds = kinds_of(type(self))
        for item in fields(self):
            name, kind = item.name, kinds[item.name]
            if name in values:
                value = values.pop(name)
            else:
                value = item.default if item.default_factory is MISSING else item.default_factory()
            if not is_dataclass(kind):
                value = checked(dotted(self.section, name), value, kind)
            object.__setattr__(self, name, value)  # by __dict__, reads would be slower
        for name in values:
            raise TypeError(f"{type(self).__name__} has no setting {name!r}")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Checks over more than one setting."""

    def __repr__(self) -> str:
        kinds = kinds_of(type(self))
        names = [item.name for item in fields(self) if not is_secret(kinds[item.name])]
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, item.name) for item in fields(self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
