"""A job as it stands on a list, in a worker's claims, or among those not yet due.

    {"id": "…", "task": "mail.welcome", "args": [42], "kwargs": {"lang": "de"}}      a task
    {"camera_id": "front_door", "file_path": "/…/image_001.jpg"}                     a raw job
    any other text                                                                   a raw job

Any program may push these. What Penstock has to remember about a job travels with it, as the last
member `_penstock` of the object; a text that is no object stands in there, too, as base64.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta as Bounds
from msgspec import Raw, Struct, field

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import DecodeError
from penstock.redis.codec import Codec, Form

__all__ = [
    "Item",
    "Meta",
    "Trouble",
    "id_ms",
    "new_id",
    "new_ids",
    "read_item",
    "task_item",
    "write_item",
]

MOST_ATTEMPTS: Final = 1_000
"""A job that says it was tried more often is not believed."""
LONGEST_ID: Final = 256
_EMPTY_LIST, _EMPTY_OBJECT, _NONE = Raw(b"[]"), Raw(b"{}"), Raw(b"")
_MEMBER = b',"_penstock":'
_PACKED = b"Z:"
# In place of base64: a job of no bytes at all is one, too.
_NOTHING = "="
_ID_DIGITS, _TIME_DIGITS = 32, 12
_NUMBERS = [f"{number:04x}" for number in range(4096)]

Count = Annotated[int, Bounds(ge=0, le=MOST_ATTEMPTS)]
Id = Annotated[str, Bounds(max_length=LONGEST_ID)]
"""Of what becomes part of a key. Meta that says otherwise was written by somebody else."""


class Trouble(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One failed attempt, in short: the last few travel with the job."""

    attempt: int
    at_ms: int
    error_class: str = ""
    message: str = ""
    fingerprint: str = ""


class Meta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Penstock remembers about a job, beside the job itself."""

    id: Id = ""
    """Of a raw job that has none of its own."""
    attempts: Count = 0
    """Attempts that count, all of them over."""
    crashes: Count = 0
    """How often its worker died while it was in hand."""
    begun: bool = False
    """Whether the attempt under way has really begun; noted only where it matters."""
    first_failed_ms: int = 0
    history: tuple[Trouble, ...] = ()
    unique: Id = ""
    """The unique key that it holds, as the user named it."""
    expires_ms: int = 0
    """Not to be begun after this time, in server ms."""
    max_attempts: Count = 0
    """As its sender wants it; 0 leaves it to the task."""
    group: str = ""
    replays: Count = 0
    """How often it came back from the dead letters."""
    parked_ms: int = 0
    """When a worker first met it that did not know its task."""
    tracked: bool = False
    """Whether it has a record."""
    headers: dict[str, str] = {}
    raw: str = ""
    """A job that is no JSON object, as base64."""


NO_META: Final = Meta()
"""Of a job about which there is nothing to remember."""


class _Stored(Struct):
    """A JSON object on a list. Other programs write it, so nothing is taken for granted."""

    task: Any = ""
    id: Any = ""
    job_id: Any = ""
    args: Raw = _EMPTY_LIST
    kwargs: Raw = _EMPTY_OBJECT
    retry_count: Any = None
    max_retries: Any = None
    meta: Raw = field(default=_NONE, name="_penstock")


_decode = msgspec.json.Decoder(_Stored).decode
_decode_meta = msgspec.json.Decoder(Meta).decode
_encode = msgspec.json.Encoder().encode


class Item(Struct):
    """A job as it was read. `fault` says why it cannot be; `data` is what was stored."""

    data: bytes
    id: str = ""
    """Empty for a raw job that nobody has named yet."""
    task: str = ""
    """Empty for a raw job."""
    args: Raw = _EMPTY_LIST
    kwargs: Raw = _EMPTY_OBJECT
    body: bytes = b""
    """The job itself, unpacked, without what Penstock remembers."""
    meta: Meta = NO_META
    asked_attempts: int = 0
    """How many attempts the job itself asks for; 0 if it does not say."""
    counts_retries: bool = False
    """Whether the job has a `retry_count` of its own, which is kept up to date."""
    fault: DecodeError | None = None


def new_id() -> str:
    """Return a job id: 12 hex digits of epoch ms, so that ids sort by time, and 20 at random."""
    return f"{SYSTEM_CLOCK.wall_ms():012x}{secrets.token_hex(10)}"


def new_ids(count: int) -> list[str]:
    """Return so many ids, in the order in which they sort: quicker than one by one."""
    begin = f"{SYSTEM_CLOCK.wall_ms():012x}{secrets.token_hex(6)}"
    ids: list[str] = []
    for block in range(-(-count // len(_NUMBERS))):
        head = f"{begin}{block:04x}"
        ids += [head + number for number in _NUMBERS[: count - len(ids)]]
    return ids


def id_ms(job_id: str) -> int | None:
    """Return when an id of `new_id` was made; None for any other id."""
    if len(job_id) != _ID_DIGITS:
        return None
    try:
        return int(job_id[:_TIME_DIGITS], 16)
    except ValueError:
        return None


def task_item(
    codec: Codec,
    *,
    id: str,  # noqa: A002  as it stands there
    task: str,
    args: bytes,
    kwargs: bytes,
    meta: Meta | None = None,
) -> bytes:
    """Return a task as it is stored; `args` and `kwargs` are JSON already."""
    data = b'{"id":%s,"task":%s,"args":%s,"kwargs":%s}' % (_encode(id), _encode(task), args, kwargs)
    return _packed(data if meta is None else _with_meta(data, meta), codec)


def read_item(data: bytes, codec: Codec) -> Item:
    """Read what stands on a list. Never raises: see `Item.fault`."""
    body = data
    if data.startswith(_PACKED):
        try:
            body = codec.decode(data, bytes, Form.TEXT)
        except DecodeError as error:
            return Item(data, body=data, fault=error)
    try:
        stored = _decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return Item(data, body=body)
    item = Item(data, args=stored.args, kwargs=stored.kwargs, body=body)
    if stored.meta is not _NONE:
        _take_meta(item, bytes(stored.meta))
    if type(stored.task) is str and stored.task:
        item.task = stored.task
        item.id = _as_id(stored.id) or item.meta.id
    else:
        item.id = item.meta.id or _as_id(stored.job_id)
    if stored.max_retries is not None and _is_count(stored.max_retries):
        item.asked_attempts = 1 + stored.max_retries
    if stored.retry_count is not None and _is_count(stored.retry_count):
        item.counts_retries = True
        if stored.meta is _NONE:
            item.meta = Meta(attempts=stored.retry_count)
    return item


def write_item(item: Item, meta: Meta, codec: Codec) -> bytes:
    """Return the job as it is to be stored with other things to remember about it."""
    body = item.body
    if item.counts_retries:
        job = msgspec.json.decode(body)
        job["retry_count"] = meta.attempts
        body = _encode(job)
    if not _is_object(body):
        raw = b64encode(body).decode() or _NOTHING
        return _packed(_with_meta(b"{}", msgspec.structs.replace(meta, raw=raw)), codec)
    return _packed(_with_meta(body.rstrip(), msgspec.structs.replace(meta, raw="")), codec)


def _take_meta(item: Item, told: bytes) -> None:
    """Split what Penstock remembers from the job itself."""
    try:
        item.meta = _decode_meta(told)
    except (msgspec.MsgspecError, ValueError):
        return  # written by somebody else, who means something of his own
    if item.meta.raw:
        try:
            raw = item.meta.raw
            item.body = b"" if raw == _NOTHING else b64decode(raw, validate=True)
        except ValueError:
            item.meta = NO_META
        return
    if item.body.endswith(told + b"}"):
        head = item.body[: -len(told) - 1]
        if head.endswith(_MEMBER):
            item.body = head[: -len(_MEMBER)] + b"}"
            return
    job = msgspec.json.decode(item.body)  # somebody wrote it anew, in an order of his own
    del job["_penstock"]
    item.body = _encode(job)


def _with_meta(data: bytes, meta: Meta) -> bytes:
    told = _encode(meta)
    if data[:-1].rstrip() == b"{":
        return b'{"_penstock":' + told + b"}"
    return data[:-1] + _MEMBER + told + b"}"


def _packed(data: bytes, codec: Codec) -> bytes:
    return data if len(data) <= codec.compress_above else codec.encode(data, Form.TEXT)


def _is_object(body: bytes) -> bool:
    try:
        _decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return True


def _as_id(value: object) -> str:
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_ID else ""


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_ATTEMPTS
