"""Objects of an application by name and options, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

__all__ = ["NamedObjects"]

T = TypeVar("T")


class NamedObjects(Generic[T]):
    """Returns the same object for the same name and equal options, another for other options."""

    def __init__(self) -> None:
        # Options are compared, not hashed: a type annotation need not be hashable.
        self._made: dict[str, list[tuple[Mapping[str, Any], T]]] = {}

    def get(self, name: str, options: Mapping[str, Any], make: Callable[[], T]) -> T:
        """Return the object of this name that was made with these options, or `make` it."""
        variants = self._made.get(name, ())
        for known, made in variants:
            if known == options:
                return made
        made = make()  # may raise for an invalid name
        self._made.setdefault(name, []).append((options, made))
        return made

    def __iter__(self) -> Iterator[T]:
        """In the order of first use of names, then of their options."""
        return (made for variants in list(self._made.values()) for _, made in list(variants))
