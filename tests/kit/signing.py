"""Signing keys of tests."""

from __future__ import annotations

from base64 import b64encode

__all__ = ["KEYS", "NEW", "OLD", "signing"]

OLD = f"old={b64encode(b'o' * 32).decode()}"
NEW = f"new={b64encode(b'n' * 32).decode()}"
KEYS = f"{OLD},{NEW}"


def signing(*, keys: str = KEYS, sign_with: str = "old", **others: str) -> dict[str, str]:
    """Settings that sign; with nothing else, everything needs a signature."""
    return {"keys": keys, "sign_with": sign_with, **(others or {"require": "all"})}
