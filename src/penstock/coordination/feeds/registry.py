"""The registry of feeds, by which their number is limited."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.coordination.feeds.keys import FeedKeys, FeedsKeys
from penstock.coordination.feeds.scripts import FeedScripts
from penstock.delivery.queries import ask, text
from penstock.errors import InvalidName, ServerError, TooMany
from penstock.redis.client import Client
from penstock.redis.keys.names import decode_id, encode_id
from penstock.redis.retry import repeat_until_known
from penstock.throttled_log import RateLimitedLog

__all__ = ["note_feed"]

_log = RateLimitedLog(logging.getLogger(__name__))

_PATIENCE_S: Final = 1.0
_NOTES_PER_SWEEP: Final = 10
_SWEPT_BY_THE_WAY: Final = 50
_SWEPT_IF_FULL: Final = 500
_GRACE_MS: Final = 600_000


async def note_feed(client: Client, name: str) -> None:
    """Note a feed before its first event; TooMany if there are `feeds.max_feeds` already.

    A feed leaves the registry some time after it has expired or was deleted. On a cluster the
    registry may be on another node than the feed; if that one fails or hangs, the feed is made
    without being counted.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await _note(client, name)
    except (TimeoutError, ServerError) as error:
        reason = str(error) or f"no reply within {_PATIENCE_S:g} s"
        _log.warning("registry", "cannot count feeds, making %r uncounted: %s", name, reason)


async def _note(client: Client, name: str) -> None:
    feeds = await _add(client, name)
    if not feeds:
        await _sweep_some(client, _SWEPT_IF_FULL)
        if not await _add(client, name):
            raise TooMany("feeds", client.settings.feeds.max_feeds, "feeds.max_feeds")
    elif feeds % _NOTES_PER_SWEEP == 0:
        await _sweep_some(client, _SWEPT_BY_THE_WAY)


async def _add(client: Client, name: str) -> int:
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
