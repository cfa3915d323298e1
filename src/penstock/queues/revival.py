"""Letters that become jobs again, or hold another job than before."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from penstock.delivery.retries import MOST_ATTEMPTS, DeathReason
from penstock.queues.items import UNREADABLE, Item, Meta, read_item, write_item
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
        fields: dict[str, object] = dict(_decode_fields(letter.data))
    except UNREADABLE:
        fields = {"reason": letter.reason}
    _, meta = _job_with_meta(letter, codec)
    item = read_item(job, codec)
    for name in ("data", "raw", "original_job"):
        fields.pop(name, None)
    # One value that no decoder takes would hide all the others.
    fields = {name: value for name, value in fields.items() if _is_readable(value)}
    fields = {**job_fields(job), **fields}
    fields |= {"id": item.id or letter.job_id, "task": item.task}
    fields["_penstock"] = msgspec.structs.replace(meta, id=item.id or letter.job_id, raw="")
    return _encode(fields)


def _is_readable(value: object) -> bool:
    if not isinstance(value, Raw):
        return True
    try:
        msgspec.json.decode(value)
    except UNREADABLE:
        return False
    return True


def _job_with_meta(letter: QueueLetter, codec: Codec) -> tuple[Item, Meta]:
    if letter.meta is None:
        item = read_item(letter.job, codec)
        return item, item.meta
    if letter.job.startswith(b"{") or letter.reason == DeathReason.UNDECODABLE:
        return read_item(letter.job, codec), letter.meta
    return Item(letter.job, body=letter.job), letter.meta
