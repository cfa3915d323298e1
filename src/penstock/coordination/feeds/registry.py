"""The registry of feeds, by which their number is limited."""

from __future__ import annotations

from typing import Final

from penstock.coordination.feeds.keys import FeedKeys, FeedsKeys
from penstock.coordination.feeds.scripts import FeedScripts
from penstock.delivery.queries import ask, text
from penstock.errors import InvalidName, TooMany
from penstock.redis.client import Client
from penstock.redis.keys.names import decode_id, encode_id
from penstock.redis.retry import repeat_until_known

__all__ = ["note_feed"]

_SWEPT_PER_NOTE: Final = 20
_SWEPT_IF_FULL: Final = 500
_GRACE_MS: Final = 600_000


async def note_feed(client: Client, name: str) -> None:
    """Note a feed before its first event; TooMany if there are `feeds.max_feeds` already.

    A feed leaves the registry some time after it has expired or was deleted.
    """
    await _sweep_some(client, _SWEPT_PER_NOTE)
    if not await _is_noted(client, name):
        await _sweep_some(client, _SWEPT_IF_FULL)
        if not await _is_noted(client, name):
            raise TooMany("feeds", client.settings.feeds.max_feeds, "feeds.max_feeds")


async def _is_noted(client: Client, name: str) -> bool:
    return await repeat_until_known(
        lambda: FeedScripts.of(client).note_feed(
            registry=FeedsKeys.of(client.keys).registry,
            feed=encode_id("feed", name),
            max_feeds=client.settings.feeds.max_feeds,
        )
    )


async def _sweep_some(client: Client, count: int) -> None:
    """Forget those of some random feeds that are gone, so that they do not accumulate."""
    registry = FeedsKeys.of(client.keys).registry
    names: list[bytes] = await client.call("ZRANDMEMBER", registry, count)
    places = [_place(client, name) for name in names]
    there = await ask(client, [("EXISTS", place) for place in places if place])
    found = iter(there)
    gone = [name for name, place in zip(names, places, strict=True) if not place or not next(found)]
    if gone:
        await FeedScripts.of(client).forget_feeds(registry=registry, grace_ms=_GRACE_MS, feeds=gone)


def _place(client: Client, name: bytes) -> str:
    """Key of a feed's state; empty for what is no name of a feed."""
    try:
        return FeedKeys.of(client.keys, decode_id(text(name))).state
    except InvalidName:
        return ""
