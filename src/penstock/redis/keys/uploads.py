"""Keys of uploads."""

from __future__ import annotations

from penstock.redis.keys.base import FamilyKeys
from penstock.redis.keys.names import check_number

__all__ = ["UploadKeys"]


class UploadKeys(FamilyKeys):
    """Keys of one upload; on a cluster they share a slot, so a script may span them."""

    __slots__ = ()

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
