"""Turning dead letters back into jobs: one atomic step each, so that none is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from penstock.delivery.retries import MOST_ATTEMPTS, DeathReason
from penstock.errors import InvalidName
from penstock.queues.dead_letters.letter import HISTORY, QueueLetter, job_fields
from penstock.queues.dead_letters.reader import PlacedLetter
from penstock.queues.dead_letters.views import QueueReplayed
from penstock.queues.storage.admin_scripts import QueueAdminScripts
from penstock.queues.storage.job_signatures import JobSignatures
from penstock.queues.storage.keys import PRIORITIES, QueueKeyring, lane_name
from penstock.queues.storage.stored_job import (
    NO_META,
    UNREADABLE,
    Item,
    Meta,
    encode_meta,
    is_readable,
    job_names,
    new_id,
    read_item,
    trimmed,
    write_item,
)
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.keys.names import decode_id
from penstock.redis.wire import Argument

__all__ = ["LETTERS_PER_CALL", "LetterReplay", "edited_letter", "replayed_item"]

LETTERS_PER_CALL: Final = 50
"""Letters that one script takes out of a list: more would block the server for too long."""

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class LetterReplay:
    """One call that replays letters, and its result."""

    def __init__(
        self,
        client: Client,
        codec: Codec,
        keys: QueueKeyring,
        letters: str,
        who: str,
        detail: str,
    ) -> None:
        self.matched = self.replayed = 0
        self.complete = True
        self._client, self._codec, self._keys, self._letters = client, codec, keys, letters
        self._who, self._detail = who, detail
        self._signatures = JobSignatures.of(client, keys.queue)
        self._missed = 0
        self._skipped: dict[str, str] = {}

    def result(self, missing: int) -> QueueReplayed:
        return QueueReplayed(
            matched=self.matched,
            replayed=self.replayed,
            missing=missing + self._missed,
            skipped=self._skipped,
            complete=self.complete,
        )

    def examine(self, letters: Sequence[PlacedLetter]) -> list[Argument]:
        """Return the script's arguments for letters that hold a job; count the others."""
        arguments: list[Argument] = []
        for place, letter in letters:
            self.matched += 1
            try:
                item, data = replayed_item(letter, self._codec, self._signatures)
            except ValueError as reason:
                self._skipped[letter.id] = str(reason)
                continue
            lane = _lane_of(letter.lane, item.meta.group)
            arguments += (letter.data, place, data, lane, *job_names(self._keys, item))
        return arguments

    async def send(self, letters: Sequence[PlacedLetter]) -> int:
        """Replay letters, and return how many of them stay on the list. One round trip."""
        skipped_before = len(self._skipped)
        arguments = self.examine(letters)
        if arguments:
            moved = await QueueAdminScripts.of(self._client).replay_letters(
                keys=self._keys,
                letters=self._letters,
                who=self._who,
                detail=self._detail,
                jobs=arguments,
            )
            self.replayed += sum(moved)
            self._missed += len(moved) - sum(moved)
        return len(self._skipped) - skipped_before


def replayed_item(
    letter: QueueLetter, codec: Codec, signatures: JobSignatures | None = None
) -> tuple[Item, bytes]:
    """Return the job of a letter, and its stored form for a replay: no attempts, history kept.

    Its signature stays as it is. ValueError if the letter holds no job, or if it may not be changed
    as a replay does.
    """
    if letter.fault:
        raise ValueError(letter.fault)
    item, meta = _job_with_meta(letter, codec)
    own_id, item.id = item.id, item.id or letter.job_id
    if item.fault is not None:
        return item, letter.job  # nothing can be added to what cannot be decompressed
    # A job that was moved aside has its metadata with it, and perhaps its id only there.
    named = meta.id if letter.meta is None else ""
    if meta.signature and meta.expires_ms:
        meta = _without_expiry(item, meta, signatures)
    item.meta = msgspec.structs.replace(
        meta,
        id=named or ("" if own_id else item.id),
        attempts=0,
        crashes=0,
        unbegun=0,
        begun=False,
        parked_ms=0,
        expires_ms=0,  # a replay is meant to run
        replays=min(max(letter.replays, meta.replays) + 1, MOST_ATTEMPTS),
        history=letter.history[-HISTORY:] or meta.history,
        raw="",
    )
    return item, write_item(item, item.meta, codec)


def edited_letter(
    letter: QueueLetter, job: bytes, codec: Codec, signatures: JobSignatures | None = None
) -> bytes:
    """Return the letter with another job in it, its other fields unchanged.

    The job is signed. Of one that was not, what else its sender chose is dropped: its signature
    would cover headers that the editor has not seen.
    """
    try:
        stored = _decode_fields(letter.data)
    except UNREADABLE:
        stored = {"reason": Raw(_encode(letter.reason))}
    old, meta = _job_with_meta(letter, codec)
    item = read_item(job, codec)
    if signatures is not None:
        item, meta = _signed_edit(old, meta, item, letter.job_id, signatures)
        job = item.body
    for name in ("data", "raw", "original_job"):
        stored.pop(name, None)
    # One value that no decoder accepts would hide all the others.
    kept = {name: value for name, value in stored.items() if is_readable(value)}
    fields: dict[str, object] = {**job_fields(job), **kept}
    fields |= {"id": item.id or letter.job_id, "task": item.task}
    meta = msgspec.structs.replace(meta, id=item.id or letter.job_id, raw="")
    fields["_penstock"] = Raw(encode_meta(meta, letter.later))
    return _encode(fields)


def _without_expiry(item: Item, meta: Meta, signatures: JobSignatures | None) -> Meta:
    """Sign a job again that a replay lets run after its time."""
    signed = msgspec.structs.replace(item, meta=meta)
    if signatures is None or signatures.refusal(signed) is not None:
        raise ValueError(
            "it expires, and its signature covers that: replay it where the keys of signing.* are"
        )
    return signatures.signed_item(item, msgspec.structs.replace(meta, expires_ms=0))


def _signed_edit(
    old: Item, meta: Meta, item: Item, job_id: str, signatures: JobSignatures
) -> tuple[Item, Meta]:
    old = msgspec.structs.replace(old, id=old.id or job_id, meta=meta)
    if signatures.refusal(old) is not None:
        meta = NO_META
    item = msgspec.structs.replace(item, id=item.id or job_id or new_id(), body=trimmed(item.body))
    return item, signatures.signed_item(item, meta)


def _job_with_meta(letter: QueueLetter, codec: Codec) -> tuple[Item, Meta]:
    if letter.meta is None:
        item = read_item(letter.job, codec)
        return item, item.meta
    if letter.job.startswith(b"{") or letter.reason == DeathReason.UNDECODABLE:
        item = read_item(letter.job, codec)
    else:
        item = Item(letter.job, body=letter.job)
    item.later = letter.later
    return item, letter.meta


def _lane_of(lane: str, group: str) -> str:
    """Return the lane that a job goes back to; validated, because other programs write letters."""
    if lane in PRIORITIES:
        return lane
    try:
        if group:
            return lane_name(group)
        return lane if lane and lane_name(decode_id(lane)) == lane else ""
    except InvalidName:
        return ""
