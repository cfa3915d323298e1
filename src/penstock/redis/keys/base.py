"""What the key objects of all families have in common."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FamilyKeys"]


@dataclass(frozen=True, slots=True)
class FamilyKeys:
    """Keys that belong together. `Keys` makes such objects, and checks names before it does."""

    root: str
    """Namespace and colon, or nothing."""
    home: str
    """What the keys belong to, as it stands in them: `mail`, on a cluster `{mail}`."""

    @property
    def _is_tagged(self) -> bool:
        return self.home.startswith("{")
