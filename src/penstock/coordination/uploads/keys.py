"""Keys of uploads."""

from __future__ import annotations

from typing import Self

from penstock.redis.keys.family import FamilyKeys
from penstock.redis.keys.names import check_number, encode_id
from penstock.redis.keys.space import KeySpace

__all__ = ["UploadKeys"]


class UploadKeys(FamilyKeys):
    """Keys of one upload; on a cluster they share a slot, so a script may span them."""

    __slots__ = ()

    @classmethod
    def of(cls, keys: KeySpace, upload: str) -> Self:
        return cls(keys.prefix, keys.tag(encode_id("upload", upload)))

    @property
    def state(self) -> str:
        """HASH: the upload's status, sizes, counts and times."""
        return f"{self.root}upload:{self.home}:state"

    @property
    def metadata(self) -> str:
        """HASH: the file's name, path, owner and own metadata."""
        return f"{self.root}upload:{self.home}:metadata"

    @property
    def parts(self) -> str:
        """HASH: from chunk number to the part stored for it: ETag, size, checksum."""
        return f"{self.root}upload:{self.home}:parts"

    def chunk(self, chunk: int) -> str:
        """STRING: the bytes of a chunk until its part is stored."""
        return f"{self.root}upload:{self.home}:chunks:{check_number('chunk', chunk)}"
