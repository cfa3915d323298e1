"""Public names of a package that are imported on first use, so that importing it costs little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: `names` by their module within the package, separated by spaces.

    Assign it where type checkers do not look (`else` of `if TYPE_CHECKING`), since they take any
    attribute of a module that has one for granted.
    """
    modules = {name: module for module, group in names.items() for name in group.split()}

    def get(name: str) -> Any:
        try:
            module = modules[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        value = getattr(import_module(f"{package}.{module}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
