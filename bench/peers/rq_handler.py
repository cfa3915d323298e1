"""What RQ's worker imports by name."""

from __future__ import annotations


def handle(order: dict[str, object]) -> None:
    pass
