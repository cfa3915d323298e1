"""The job message of seed 002, written and read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import DocumentRefused
from penstock.errors.base import shown

__all__ = [
    "STATUS_FIELDS",
    "JobMessage",
    "JobOptions",
    "now_text",
    "read_message",
    "submitted_ms",
    "text_of",
]

VERSION = 1
STATUS_FIELDS = (
    *("rag_id", "filename", "source_path", "source_type", "submitted_by"),
    *("batch_id", "document", "digest", "target"),
)
"""What of the message is copied into the job's record."""

Text = Annotated[str, Meta(min_length=1, max_length=4_096)]


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    reindex: bool = False
    """Take the document in anew even if it has not changed."""
    skip_validation: bool = False
    """Go by a file's content where its name says otherwise."""
    preserve_metadata: bool = True
    """Keep metadata that the document has already, where this job brings none."""


class JobMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One document to take in. Fields from `v` on are ours: a message without them is as good."""

    job_id: Text
    rag_id: Annotated[str, Meta(min_length=1, max_length=64)]
    source_path: Text
    """Below the folder of all sources; an absolute path has to lead there."""
    source_type: Annotated[str, Meta(max_length=32)]
    filename: Annotated[str, Meta(min_length=1, max_length=1_024)]
    submitted_at: Annotated[str, Meta(max_length=64)]
    submitted_by: Annotated[str, Meta(max_length=100)] = "cli"
    options: JobOptions = JobOptions()
    retry_count: Annotated[int, Meta(ge=0, le=1_000)] = 0
    max_retries: Annotated[int, Meta(ge=0, le=3)] = 3
    v: int = VERSION
    document: Annotated[str, Meta(max_length=4_096)] = ""
    """Its id; by default the path below `incoming/`."""
    digest: Annotated[str, Meta(max_length=128)] = ""
    """SHA-256 of the file when it was submitted."""
    size: Annotated[int, Meta(ge=0)] | None = None
    batch_id: Annotated[str, Meta(max_length=128)] = ""
    source: Annotated[str, Meta(max_length=4_096)] = ""
    """The folder that it was copied from, for `sync`."""
    metadata: dict[str, Any] = {}
    target: Annotated[str, Meta(max_length=256)] = ""
    """The collection that is being rebuilt; empty for the one in use."""


def read_message(payload: object) -> JobMessage:
    """Check a message that anybody may have pushed; DocumentRefused with what is wrong in it."""
    if not isinstance(payload, dict):
        raise _refused(f"it is {shown(payload, 60)}, not a JSON object")
    told: dict[str, Any] = {str(name): value for name, value in payload.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    version = told.get("v", VERSION)
    if version != VERSION:
        raise _refused(f"version {shown(version, 20)} is not known here: expected {VERSION}")
    if isinstance(asked := told.get("max_retries"), int) and not isinstance(asked, bool):
        told["max_retries"] = min(max(asked, 0), 3)  # a producer may ask for fewer, not for more
    try:
        return msgspec.convert(told, JobMessage)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None


def now_text() -> str:
    """The present moment as messages have it, with milliseconds."""
    return text_of(SYSTEM_CLOCK.wall_ms())


def text_of(ms: int) -> str:
    """A moment in epoch ms as messages have it."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def submitted_ms(text: str) -> int:
    """When a message says that it was submitted, in epoch ms; 0 if it cannot be read."""
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
        ("See docs/contracts.md for what a message has to hold",),
    )
