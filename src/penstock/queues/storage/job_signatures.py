"""Signatures of jobs: what of a job they cover, and where they are.

The signature is a member of the job's metadata. It covers the namespace, the queue, the id, the
task, every byte of the job itself as it was before compression, and of the metadata what its sender
chose. What changes while the job is retried is left out: its attempts, errors and replays, and the
value of a `retry_count` in the job itself.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from penstock.delivery.signing import Signer
from penstock.errors import BadSignature
from penstock.queues.storage.json_members import find_member, replace_value
from penstock.queues.storage.stored_job import NO_META, UNREADABLE, Item, Meta
from penstock.redis.client import Client

__all__ = ["JobSignatures"]


class _Chosen(Struct, omit_defaults=True):
    """Members of the metadata that are covered."""

    unique: str = ""
    expires_ms: int = 0
    max_attempts: int = 0
    group: str = ""
    headers: dict[str, str] = {}


class _Call(Struct):
    """Members of a job that decide what runs."""

    task: str = ""
    args: Raw = Raw(b"[]")
    kwargs: Raw = Raw(b"{}")


_encode: Final = msgspec.json.Encoder().encode
_decode_call: Final = msgspec.json.Decoder(_Call).decode


class JobSignatures:
    """Signs the jobs of one queue, and verifies them."""

    def __init__(self, client: Client, queue: str) -> None:
        self._signer = Signer(client, "queue", queue)

    @classmethod
    def of(cls, client: Client, queue: str) -> JobSignatures | None:
        """Those of a queue; None if its jobs are not signed."""
        return cls(client, queue) if client.settings.signing.signs(queue) else None

    @classmethod
    def required_of(cls, client: Client, queue: str) -> JobSignatures | None:
        """Those that workers of a queue demand; None if a job may be without."""
        return cls(client, queue) if client.settings.signing.requires(queue) else None

    def signed_call(self, job_id: str, task: str, body: bytes, meta: Meta | None) -> Meta:
        """Metadata of a call of a task with its signature."""
        meta = meta or NO_META
        signature = self._signer.sign(*_covered(job_id, task, body, meta))
        return msgspec.structs.replace(meta, signature=signature)

    def signed_item(self, item: Item, meta: Meta) -> Meta:
        """Metadata of a job with its id and signature."""
        signature = self._signer.sign(*_covered(item.id, item.task, _steady(item), meta))
        return msgspec.structs.replace(meta, id=item.id, signature=signature)

    def refusal(self, item: Item) -> BadSignature | None:
        """Why the job may not run; None if it is signed as it is."""
        covered = _covered(item.id, item.task, _steady(item), item.meta)
        try:
            self._signer.verify(item.id, item.meta.signature, *covered)
        except BadSignature as error:
            return error
        if item.task and not _is_what_runs(item):
            return BadSignature("altered", "what is signed is not what would run")
        return None


def _covered(id_: str, task: str, body: bytes, meta: Meta) -> tuple[bytes, ...]:
    chosen = _Chosen(meta.unique, meta.expires_ms, meta.max_attempts, meta.group, meta.headers)
    return id_.encode(), task.encode(), body, _encode(chosen)


def _steady(item: Item) -> bytes:
    """The job itself, with a count of attempts that workers keep up to date as it began."""
    if item.counts_retries and (count := find_member(item.body, "retry_count")) is not None:
        return replace_value(item.body, count, b"0")
    return item.body


def _is_what_runs(item: Item) -> bool:
    """Whether the signed bytes alone hold the call that was read beside the metadata."""
    try:
        call = _decode_call(item.body)
    except UNREADABLE:
        return False
    return (call.task, bytes(call.args), bytes(call.kwargs)) == (
        item.task,
        bytes(item.args),
        bytes(item.kwargs),
    )
