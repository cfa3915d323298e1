"""Imports what readers would import on the way: a fenced child can open no file."""

from __future__ import annotations

from importlib import import_module
from typing import Final

__all__ = ["preload"]

_ENCODINGS: Final = (
    *("ascii", "latin_1", "utf_7", "utf_8_sig", "mac_roman", "mac_cyrillic", "koi8_r", "koi8_u"),
    *("utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be"),
    *(f"iso8859_{part}" for part in range(1, 17) if part != 12),  # noqa: PLR2004  there is none
    *(f"cp{page}" for page in (437, 850, 852, 866, 874, *range(1250, 1259))),
    *("cp932", "shift_jis", "euc_jp", "iso2022_jp", "cp949", "euc_kr"),
    *("gb2312", "gbk", "gb18030", "big5", "big5hkscs"),
)
"""Those that browsers know, and those of MS-DOS. A document in another one is guessed."""


def preload() -> None:
    """Import all encodings, and what guesses them."""
    for name in _ENCODINGS:
        import_module(f"encodings.{name}")
    import_module("charset_normalizer")
