"""Keys of another type than their names require: listed, renamed, deleted.

Penstock neither uses nor removes such a key; an operator does.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

from penstock.delivery.queries import text
from penstock.errors import PenstockError
from penstock.redis.client import Client
from penstock.redis.codec.escaping import escaped

__all__ = ["ForeignKey", "delete_key", "foreign_among", "rename_key"]


class ForeignKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of another type than its name requires."""

    key: str
    """Its name; bytes that are not UTF-8 are halves of surrogate pairs, as in paths of Python's."""
    type: str
    """What it holds."""
    expected: str
    """What belongs there."""

    def __str__(self) -> str:
        key = escaped(self.key.encode(errors="surrogateescape"))
        return f"key {key} holds a {self.type} where a {self.expected} is expected"


def foreign_among(expected: Mapping[str, str], kinds: Sequence[bytes]) -> list[ForeignKey]:
    """Keys whose type, as TYPE replied, is not the expected one."""
    return [
        ForeignKey(key=key, type=text(kind), expected=wanted)
        for (key, wanted), kind in zip(expected.items(), kinds, strict=True)
        if text(kind) not in {"none", wanted}
    ]


async def rename_key(
    client: Client, foreign: ForeignKey, to: str, refusal: type[PenstockError]
) -> None:
    """Rename such a key; `refusal` if `to` exists, or if the key is of the right type by now.

    Three round trips.
    """
    if not await client.call("RENAMENX", foreign.key, to):
        raise refusal(f"there is a key {to!r} already; give another name")
    # What is renamed cannot change its type any more.
    if text(await client.call("TYPE", to)) == foreign.expected:
        await client.call("RENAMENX", to, foreign.key)
        raise refusal(f"{foreign.key!r} was replaced by one of the right type meanwhile; try again")


async def delete_key(client: Client, foreign: ForeignKey, refusal: type[PenstockError]) -> None:
    """Delete such a key with all that it holds; `refusal` as for `rename_key`."""
    aside = f"{foreign.key}.{secrets.token_hex(8)}"  # on a cluster in the same slot
    await rename_key(client, foreign, aside, refusal)
    await client.call("UNLINK", aside)
