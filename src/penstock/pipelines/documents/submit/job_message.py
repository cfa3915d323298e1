"""The job message of a document: fields, reading, and sending to the queue."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.app import Penstock
from penstock.clock import SYSTEM_CLOCK
from penstock.delivery.retries import RetryPolicy
from penstock.errors import DocumentRefused
from penstock.errors.base import shown
from penstock.queues.options import Gate, Priority
from penstock.queues.queue import Queue

__all__ = ["QUEUE", "STATUS_FIELDS", "DocumentJob", "JobMessage", "JobOptions", "ingest_queue"]
__all__ += ["new_batch_id", "new_job_id", "now_text", "read_message", "send", "submitted_ms"]
__all__ += ["text_of", "unique_key"]

VERSION = 1
STATUS_FIELDS = (
    *("rag_id", "filename", "source_path", "source_type", "submitted_by"),
    *("batch_id", "document", "digest", "target"),
)
"""Fields of the message that are copied into the job's record."""
Text = Annotated[str, Meta(min_length=1, max_length=4_096)]


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    reindex: bool = False
    """Index the document also if it is unchanged."""
    skip_validation: bool = False
    """Go by a file's content where its extension disagrees."""
    preserve_metadata: bool = True
    """Keep the document's present metadata beside that of this job."""
    require_fences: bool = False
    """Read it behind all fences or not at all: for files that came over a network."""


class JobMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A document to index. The fields from `v` on are optional for other producers."""

    job_id: Text
    rag_id: Annotated[str, Meta(min_length=1, max_length=64)]
    source_path: Text
    """Path below `sources_root`; an absolute path must lead there."""
    source_type: Annotated[str, Meta(max_length=32)]
    filename: Annotated[str, Meta(min_length=1, max_length=1_024)]
    submitted_at: Annotated[str, Meta(max_length=64)]
    submitted_by: Annotated[str, Meta(max_length=100)] = "cli"
    options: JobOptions = JobOptions()
    retry_count: Annotated[int, Meta(ge=0, le=1_000)] = 0
    max_retries: Annotated[int, Meta(ge=0, le=3)] = 3
    v: int = VERSION
    document: Annotated[str, Meta(max_length=4_096)] = ""
    """Document id; by default the path below `incoming/`."""
    digest: Annotated[str, Meta(max_length=128)] = ""
    """SHA-256 of the file when it was submitted."""
    size: Annotated[int, Meta(ge=0)] | None = None
    batch_id: Annotated[str, Meta(max_length=128)] = ""
    source: Annotated[str, Meta(max_length=4_096)] = ""
    """Folder that the file was copied from, for `sync`."""
    metadata: dict[str, Any] = {}
    target: Annotated[str, Meta(max_length=256)] = ""
    """Collection of a rebuild; empty for the one in use."""


def read_message(payload: object) -> JobMessage:
    """Validate a message of any producer; DocumentRefused with the mistake in it."""
    if not isinstance(payload, dict):
        raise _refused(f"it is {shown(payload, 60)}, not a JSON object")
    fields: dict[str, Any] = {str(name): value for name, value in payload.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    version = fields.get("v", VERSION)
    if version != VERSION:
        raise _refused(f"version {shown(version, 20)} is not supported: expected {VERSION}")
    if isinstance(asked := fields.get("max_retries"), int) and not isinstance(asked, bool):
        fields["max_retries"] = min(max(asked, 0), 3)  # producers may only lower it
    try:
        return msgspec.convert(fields, JobMessage)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None


def now_text() -> str:
    """The present time in the format of messages, with milliseconds."""
    return text_of(SYSTEM_CLOCK.wall_ms())


def text_of(ms: int) -> str:
    """A time in epoch ms in the format of messages."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def submitted_ms(text: str) -> int:
    """The `submitted_at` of a message in epoch ms; 0 if it is invalid."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _refused(why: str) -> DocumentRefused:
    return DocumentRefused(
        f"the job message cannot be used: {why}",
        "ERR_MESSAGE_INVALID",
        ("See docs/contracts.md for the fields of a message",),
    )


def new_job_id(rag_id: str) -> str:
    """`rag-<rag_id>-<unix time>-<8 hex digits>`."""
    return f"rag-{rag_id}-{SYSTEM_CLOCK.wall_ms() // 1000}-{secrets.token_hex(4)}"


def new_batch_id(rag_id: str) -> str:
    return f"batch-{rag_id}-{SYSTEM_CLOCK.wall_ms() // 1000}-{secrets.token_hex(4)}"


def unique_key(*parts: str) -> str:
    """Unique key of the queue for a combination of parts."""
    text = "\0".join(parts).encode(errors="surrogatepass")
    return blake2b(text, digest_size=16).hexdigest()


QUEUE = "rag:ingest:queue"
RETRY = RetryPolicy(max_attempts=4, backoff=(5, 10, 30), give_up_on=(DocumentRefused,))
"""Three retries after 5, 10 and 30 seconds: part of the contract with other programs."""
_AT_ONCE = 100


class DocumentJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a submission."""

    job_id: str
    document: str
    created: bool
    """False if a job for the same file is queued or running; `job_id` is that job."""


def ingest_queue(app: Penstock, gate: Gate) -> Queue:
    """The ingest queue, in the format that other producers and monitors use."""
    if QUEUE in app.registry.queues:
        return app.registry.queues[QUEUE]
    return app.queue(
        QUEUE,
        push="left",
        status=True,
        status_fields=STATUS_FIELDS,
        retry=RETRY,
        concurrency=app.settings.documents.concurrency,
        max_size=0,
        gate=gate,
    )


async def send(
    queue: Queue, messages: Sequence[JobMessage], priority: Priority | None = None
) -> list[DocumentJob]:
    """Queue jobs in the lane of their RAG, or in that of the priority."""
    sent: list[DocumentJob] = []
    for first in range(0, len(messages), _AT_ONCE):
        some = messages[first : first + _AT_ONCE]
        sent += await asyncio.gather(*(_send_one(queue, message, priority) for message in some))
    return sent


async def _send_one(queue: Queue, message: JobMessage, priority: Priority | None) -> DocumentJob:
    result = await queue.push(
        msgspec.to_builtins(message),
        job_id=message.job_id,
        priority=priority,
        group=message.rag_id if priority is None else None,
        unique=unique_key(message.rag_id, message.target, message.document, message.digest),
    )
    return DocumentJob(job_id=result.job_id, document=message.document, created=result.created)
