"""A feed: numbered events that many read, each from where it was."""

from __future__ import annotations

from typing import Any, Literal, Self
from uuid import uuid4

from penstock.coordination.feeds.events import FeedSnapshot
from penstock.coordination.feeds.hub import FeedHub, FeedSource
from penstock.coordination.feeds.keys import FeedKeys
from penstock.coordination.feeds.reader import FeedReader
from penstock.coordination.feeds.registry import note_feed
from penstock.coordination.feeds.scripts import FeedScripts
from penstock.errors import InvalidItem
from penstock.errors.base import shown
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.codec.json_rules import encode_json
from penstock.redis.keys.space import NAMESPACE_END
from penstock.redis.retry import repeat_until_known

__all__ = ["Feed"]

_MOST_NAME = 200
_NO_FEED = -2

MirrorAs = Literal["event", "data"]
"""What is sent to a pub/sub channel: `{"type": …, "data": …}`, or the data alone."""


class Feed:
    """Events with numbers, of which about the latest 10,000 are kept (`feeds.cap`).

        feed = app.feed("upload-abc")
        await feed.publish("progress", {"percent": 50.0}, state={"status": "UPLOADING"})
        await feed.publish("done", {"percent": 100.0}, final=True)

        async for event in feed.read():              # a snapshot, then what comes
            print(event.number, event.type, event.data)
        async for event in feed.read(after=17):      # on from 18
            ...

    A reader gets every event after its starting point once and in order, whatever happens to its
    connection or the server. Where events are not kept any more it gets a snapshot that says how
    many it `missed`.
    """

    def __init__(self, client: Client, codec: Codec, hub: FeedHub, name: str) -> None:
        keys = FeedKeys.of(client.keys, name)
        self._client, self._codec, self._hub = client, codec, hub
        self._root = keys.root
        self._place = FeedSource(name, keys.events, keys.state)
        self._encode = codec.encoder(Any)

    @classmethod
    def at(
        cls, client: Client, codec: Codec, hub: FeedHub, *, name: str, events: str, state: str
    ) -> Self:
        """Return the feed that something else keeps in these keys, to read it."""
        feed = cls(client, codec, hub, name)
        feed._place = FeedSource(name, events, state)
        return feed

    @property
    def name(self) -> str:
        return self._place.name

    def __repr__(self) -> str:
        return f"Feed({self.name!r})"

    async def publish(
        self,
        type: str,  # noqa: A002  it is what the caller means
        data: Any = None,
        *,
        state: Any = None,
        final: bool = False,
        mirror: str | None = None,
        mirror_as: MirrorAs = "event",
        event_id: str | None = None,
    ) -> int:
        """Add an event and wake its readers; its number.

        - `data`: anything that is JSON.
        - `state`: how things stand after this event; who comes later begins with it.
        - `final`: nothing may come after it (`InvalidItem`); the feed is kept for a day
          (`feeds.keep_s`) from then on.
        - `mirror`: also send `{"type": …, "data": …}`, or with `mirror_as="data"` the data alone,
          to this pub/sub channel, for programs that only listen. Its name has no `::`, which ends
          a namespace.
        - `event_id`: if one of the latest 500 events had the same, nothing is added, and its number
          comes back. Without it, a repeat after a lost connection is recognised all the same.

        The first event of a feed takes some round trips more; TooMany if there are
        `feeds.max_feeds` already.
        """
        _check_name("type", type)
        if mirror is not None:
            _check_name("mirror", mirror)
            if NAMESPACE_END in mirror:
                raise InvalidItem(f"mirror = {shown(mirror)}: '{NAMESPACE_END}' ends a namespace")
        if mirror_as not in {"event", "data"}:
            raise InvalidItem(f"mirror_as = {shown(mirror_as)}: expected 'event' or 'data'")
        if event_id is not None:
            _check_name("event_id", event_id)
        settings = self._client.settings.feeds
        stored, copy = self._encode(data), b""
        if mirror is not None:
            message = {"type": type, "data": data} if mirror_as == "event" else data
            copy = encode_json(message)  # never compressed: others read it
        stored_state = b"" if state is None else self._encode(state)
        unique = f"u:{event_id}" if event_id is not None else uuid4().hex

        async def publish(may_make: bool) -> int:
            return await repeat_until_known(
                lambda: FeedScripts.of(self._client).publish_event(
                    events=self._place.events,
                    state=self._place.state,
                    kind=type,
                    data=stored,
                    snapshot=stored_state,
                    final=final,
                    cap=settings.cap,
                    keep_ms=round(settings.keep_s * 1000),
                    event_id=unique,
                    channel="" if mirror is None else self._root + mirror,
                    copy=copy,
                    may_make=may_make,
                )
            )

        number = await publish(may_make=not settings.max_feeds)
        if number == _NO_FEED:
            await note_feed(self._client, self.name)
            number = await publish(may_make=True)
        if number < 0:
            raise InvalidItem(f"feed {self.name!r} has had its final event")
        return number

    def read(self, after: int | None = None, *, snapshot: bool = True) -> FeedReader:
        """Return an iterator over the events; it ends after the final one.

        - `after=None`: first a snapshot (the state that was published last, or else the latest
          event), then what comes. With `snapshot=False` only what comes.
        - `after=17`: from event 18 on; 0 for all that are kept.

        A feed that does not exist yet is waited for. A reader for which more than `feeds.buffer`
        events wait is cut with `ReaderTooSlow`; it may resume after `error.last`.
        """
        if after is not None and (type(after) is not int or after < 0):
            raise InvalidItem(f"after = {shown(after)}: expected the number of an event, or None")
        return FeedReader(self._hub, self._place, after, snapshot=snapshot)

    async def snapshot(self) -> FeedSnapshot:
        """Ask where the feed stands; number 0 if nothing was ever published, or it is gone."""
        return await self._hub.look(self._place)


def _check_name(what: str, value: str) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_NAME:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"{what} = {shown(value)}: expected text of 1 to {_MOST_NAME} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidItem(f"{what} = {shown(value)}: half of a surrogate pair is no text") from None
