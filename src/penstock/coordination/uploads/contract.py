"""The stored contract of uploads: every kind of key they have."""

from __future__ import annotations

from typing import Final

from penstock.redis.keys.family import Family, RedisType, Ttl

__all__ = ["UPLOAD_FAMILIES"]

STRING, HASH = RedisType.STRING, RedisType.HASH
TERMINAL = Ttl.TERMINAL

OURS = "Penstock"

UPLOAD_FAMILIES: Final = (
    Family(
        "upload.state", "upload:<upload>:state", "upload:{<upload>}:state",
        HASH, TERMINAL, "24 hours from the final state", "uploads", OURS,
    ),
    Family(
        "upload.metadata", "upload:<upload>:metadata", "upload:{<upload>}:metadata",
        HASH, TERMINAL, "24 hours from the final state", "uploads", OURS,
    ),
    Family(
        "upload.parts", "upload:<upload>:parts", "upload:{<upload>}:parts",
        HASH, TERMINAL, "24 hours from the final state", "uploads", OURS,
    ),
    Family(
        "upload.chunk", "upload:<upload>:chunks:<chunk>", "upload:{<upload>}:chunks:<chunk>",
        STRING, TERMINAL, "until its part is stored; an hour from the final state", "uploads", OURS,
    ),
)  # fmt: skip
