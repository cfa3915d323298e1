"""How dead letters become jobs again: in one step each, so that none is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidName
from penstock.queues.items import Item
from penstock.queues.letter_walk import Seen
from penstock.queues.revival import requeued_item
from penstock.queues.views import Requeued
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys import QueueKeyring
from penstock.redis.keys.names import decode_id
from penstock.redis.keys.queues import PRIORITIES
from penstock.redis.wire import Argument

__all__ = ["AT_ONCE", "Requeue", "job_names", "lane_of", "unique_of"]

AT_ONCE: Final = 50
"""Items that one script takes out of a list: more would keep others waiting."""


class Requeue:
    """One call that queues letters again."""

    def __init__(
        self,
        client: Client,
        codec: Codec,
        keys: QueueKeyring,
        letters: str,
        who: str,
        detail: str,
    ) -> None:
        self.matched = self.requeued = 0
        self.complete = True
        self._client, self._codec, self._keys, self._letters = client, codec, keys, letters
        self._who, self._detail = who, detail
        self._missed = 0
        self._skipped: dict[str, str] = {}

    def result(self, missing: int) -> Requeued:
        return Requeued(
            matched=self.matched,
            requeued=self.requeued,
            missing=missing + self._missed,
            skipped=self._skipped,
            complete=self.complete,
        )

    def examine(self, letters: Sequence[Seen]) -> list[Argument]:
        """Find out what can be queued, as the script is told, and count what cannot."""
        told: list[Argument] = []
        for place, letter in letters:
            self.matched += 1
            try:
                item, data = requeued_item(letter, self._codec)
            except ValueError as reason:
                self._skipped[letter.id] = str(reason)
                continue
            lane = lane_of(self._keys, letter.lane, item.meta.group)
            told += (letter.data, place, data, lane, *job_names(self._keys, item))
        return told

    async def send(self, letters: Sequence[Seen]) -> int:
        """Queue letters; how many of them stay where they are. One round trip."""
        skipped_before = len(self._skipped)
        told = self.examine(letters)
        if told:
            found = await self._client.scripts.requeue_letters(
                keys=self._keys,
                letters=self._letters,
                who=self._who,
                detail=self._detail,
                jobs=told,
            )
            self.requeued += sum(found)
            self._missed += len(found) - sum(found)
        return len(self._skipped) - skipped_before


def job_names(keys: QueueKeyring, item: Item) -> tuple[str, str, str, str, str]:
    """How scripts are told of a job: its record's name, id, task, '1' if tracked, unique key."""
    try:
        name = keys.record_name(item.id) if item.id else ""
    except InvalidName:
        name = ""
    return (name, item.id, item.task, "1" if item.meta.tracked else "", unique_of(keys, item))


def unique_of(keys: QueueKeyring, item: Item) -> str:
    """Key of what a job holds until its end; empty if it holds nothing."""
    try:
        return keys.unique(item.meta.unique) if item.meta.unique else ""
    except InvalidName:
        return ""


def lane_of(keys: QueueKeyring, lane: str, group: str) -> str:
    """The lane that a job goes back to. A letter's word is checked: anybody may write letters."""
    if lane in PRIORITIES:
        return lane
    try:
        if group:
            return keys.lane(group)
        return lane if lane and keys.lane(decode_id(lane)) == lane else ""
    except InvalidName:
        return ""
