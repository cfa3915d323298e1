"""Letters that become jobs again, or hold another job than before."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from penstock.delivery.retries import MOST_ATTEMPTS, DeathReason
from penstock.queues.items import (
    UNREADABLE,
    Item,
    Meta,
    encode_meta,
    is_readable,
    read_item,
    write_item,
)
from penstock.queues.letters import HISTORY, QueueLetter, job_fields
from penstock.redis.codec import Codec

__all__ = ["edited_letter", "requeued_item"]

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def requeued_item(letter: QueueLetter, codec: Codec) -> tuple[Item, bytes]:
    """Return the job of a letter, and how it is to be queued again: untried, its history kept.

    ValueError if the letter holds no job.
    """
    if letter.fault:
        raise ValueError(letter.fault)
    item, meta = _job_with_meta(letter, codec)
    own_id, item.id = item.id, item.id or letter.job_id
    if item.fault is not None:
        return item, letter.job  # nothing can be added to what cannot be unpacked
    item.meta = msgspec.structs.replace(
        meta,
        id="" if own_id else item.id,
        attempts=0,
        crashes=0,
        unbegun=0,
        begun=False,
        parked_ms=0,
        expires_ms=0,  # whoever queues it again wants it to run
        replays=min(max(letter.replays, meta.replays) + 1, MOST_ATTEMPTS),
        history=letter.history[-HISTORY:] or meta.history,
        raw="",
    )
    return item, write_item(item, item.meta, codec)


def edited_letter(letter: QueueLetter, job: bytes, codec: Codec) -> bytes:
    """Return the letter with another job in it, else as it was."""
    try:
        stored = _decode_fields(letter.data)
    except UNREADABLE:
        stored = {"reason": Raw(_encode(letter.reason))}
    _, meta = _job_with_meta(letter, codec)
    item = read_item(job, codec)
    for name in ("data", "raw", "original_job"):
        stored.pop(name, None)
    # One value that no decoder takes would hide all the others.
    kept = {name: value for name, value in stored.items() if is_readable(value)}
    fields: dict[str, object] = {**job_fields(job), **kept}
    fields |= {"id": item.id or letter.job_id, "task": item.task}
    meta = msgspec.structs.replace(meta, id=item.id or letter.job_id, raw="")
    fields["_penstock"] = Raw(encode_meta(meta, letter.later))
    return _encode(fields)


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
