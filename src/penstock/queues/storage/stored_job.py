"""The stored form of a job, on a list, in a worker's claims, or delayed.

    {"id": "…", "task": "mail.welcome", "args": [42], "kwargs": {"lang": "de"}}      a task
    {"camera_id": "front_door", "file_path": "/…/image_001.jpg"}                     a raw job
    any other text                                                                   a raw job

Any program may push these. Penstock's metadata travels with the job as the last member `_penstock`
of the object; a text that is not an object is part of it, as base64. The bytes of the job itself
are never decoded and encoded again.
"""

from __future__ import annotations

import secrets
import time
from base64 import b64decode, b64encode
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta as Bounds
from msgspec import Raw, Struct, field

from penstock.delivery.retries import MOST_ATTEMPTS
from penstock.errors import DecodeError, EncodeError, InvalidName
from penstock.queues.storage.json_members import (
    find_member,
    is_only_member,
    replace_value,
    without_member,
)
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.codec import Codec, Form
from penstock.redis.codec.json_rules import repeats_a_member
from penstock.redis.keys.names import MAX_ID

__all__ = [
    "NO_META",
    "Item",
    "Meta",
    "Trouble",
    "encode_meta",
    "id_ms",
    "is_readable",
    "job_names",
    "new_id",
    "new_ids",
    "read_claimed",
    "read_item",
    "read_meta",
    "task_body",
    "task_item",
    "trimmed",
    "unique_of",
    "write_item",
]

LONGEST_ID: Final = 256
LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: later times are invalid."""
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)
"""What decoding JSON of any origin may raise."""
_EMPTY_LIST, _EMPTY_OBJECT, _NONE = Raw(b"[]"), Raw(b"{}"), Raw(b"")
_NAME: Final = "_penstock"
_MEMBER = b',"_penstock":'
_QUOTED_NAME: Final = b'"_penstock"'
_PACKED = b"Z:"
# In place of base64: a job of no bytes at all is one, too.
_NOTHING = "="
_ID_DIGITS, _TIME_DIGITS = 32, 12
_EMPTY = len(b"{}")
_FRAME = len('{"id":"","task":"","args":,"kwargs":}')
_LONGEST_HISTORY: Final = 100
_NUMBERS = [f"{number:04x}" for number in range(4096)]

# Metadata beyond these bounds was written by another program, and is left alone as its own.
Count = Annotated[int, Bounds(ge=0, le=MOST_ATTEMPTS)]
Ms = Annotated[int, Bounds(ge=0, le=LATEST_MS)]
Id = Annotated[str, Bounds(max_length=LONGEST_ID)]
"""Of what becomes part of a key."""
Lane = Annotated[str, Bounds(max_length=MAX_ID)]


class Trouble(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One failed attempt, in short: the last few travel with the job.

    It gets no further members: a worker of an earlier version would drop them. Later versions add
    theirs to `Meta`.
    """

    attempt: Count
    at_ms: Ms
    error_class: str = ""
    message: str = ""
    fingerprint: str = ""


class Meta(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Metadata of a job.

    A member of the same name never gets another type: an earlier version would take the whole for
    another program's. Members that a later version has added are kept beside: see `read_meta`.
    """

    id: Id = ""
    """Of a raw job that has none of its own."""
    attempts: Count = 0
    """Attempts that count, all of them over."""
    crashes: Count = 0
    """How often its worker died while it ran the job."""
    unbegun: Count = 0
    """How many workers have died since with the job claimed but not started."""
    begun: bool = False
    """Whether the attempt under way has really begun; noted only where it matters."""
    first_failed_ms: Ms = 0
    history: Annotated[tuple[Trouble, ...], Bounds(max_length=_LONGEST_HISTORY)] = ()
    unique: Id = ""
    """The unique key that it holds, as the user named it."""
    expires_ms: Ms = 0
    """Not to be begun after this time, in server ms."""
    max_attempts: Count = 0
    """As its sender wants it; 0 leaves it to the task."""
    group: Lane = ""
    replays: Count = 0
    """How often it came back from the dead letters."""
    parked_ms: Ms = 0
    """When a worker first met it whose program has no such task, or one with other arguments."""
    tracked: bool = False
    """Whether it has a record."""
    headers: dict[str, str] = {}
    signature: str = ""
    """See `job_signatures`."""
    raw: str = ""
    """A job that is no JSON object, as base64."""


NO_META: Final = Meta()
"""Of a job without metadata."""


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
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_KNOWN: Final = frozenset(Meta.__struct_encode_fields__)
_encode = msgspec.json.Encoder().encode


class Item(Struct):
    """A decoded job. `data` is its stored form, `fault` why it cannot be decoded."""

    data: bytes
    id: str = ""
    """Empty for a raw job without an id."""
    task: str = ""
    """Empty for a raw job."""
    args: Raw = _EMPTY_LIST
    kwargs: Raw = _EMPTY_OBJECT
    body: bytes = b""
    """The job itself, decompressed, without metadata."""
    meta: Meta = NO_META
    later: bytes = b""
    """Members of the metadata that a later version has written, each with a comma before it."""
    asked_attempts: int = 0
    """How many attempts the job itself asks for; 0 if it does not say."""
    counts_retries: bool = False
    """Whether the job has a `retry_count` of its own, which is kept up to date."""
    fault: DecodeError | None = None


def new_id() -> str:
    """Return a job id: 12 hex digits of epoch ms, so that ids sort by time, and 20 at random."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def new_ids(count: int) -> list[str]:
    """Return so many ids, in the order in which they sort: quicker than one by one."""
    begin = f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"
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
    id: str,  # noqa: A002  its name in the stored form
    task: str,
    args: bytes,
    kwargs: bytes,
    meta: Meta | None = None,
) -> bytes:
    """Return a task as it is stored; `args` and `kwargs` are JSON already."""
    data = task_body(id=id, task=task, args=args, kwargs=kwargs)
    return _packed(data if meta is None else _with_meta(data, meta), codec)


def task_body(*, id: str, task: str, args: bytes, kwargs: bytes) -> bytes:  # noqa: A002  as stored
    """The same without metadata and compression."""
    return b'{"id":%s,"task":%s,"args":%s,"kwargs":%s}' % (_encode(id), _encode(task), args, kwargs)


def read_item(data: bytes, codec: Codec) -> Item:
    """Decode a stored job. Never raises: see `Item.fault`.

    No object in it may have two members of one name: other programs may have read the first.
    """
    item = read_claimed(data, codec)
    if item.task and item.fault is None:
        args, kwargs = bytes(item.args), bytes(item.kwargs)
        if repeats_a_member(args) or repeats_a_member(kwargs):
            item.fault = _repeating(item)
    return item


def read_claimed(data: bytes, codec: Codec) -> Item:
    """The same for a worker, quicker: the arguments of a task are left to what decodes them."""
    body = data
    if data.startswith(_PACKED):
        try:
            body = codec.decode(data, bytes, Form.TEXT)
        except DecodeError as error:
            return Item(data, body=data, fault=error)
    try:
        stored = _decode(body)
    except UNREADABLE:
        return Item(data, body=body)
    args, kwargs, id_, task = stored.args, stored.kwargs, stored.id, stored.task
    item = Item(data, args=args, kwargs=kwargs, body=body)
    if stored.meta is not _NONE:
        _take_meta(item, bytes(stored.meta))
        if item.meta.raw:
            item.id = item.meta.id
            if _is_object(item.body) and repeats_a_member(item.body):
                item.fault = _repeating(item)
            return item
    if type(task) is str and task:
        item.task = task
        item.id = id_ if type(id_) is str and len(id_) <= LONGEST_ID else ""
        # Four members take no less room: where it is no more, there are no others.
        room = _FRAME + len(item.id) + len(task) + len(args) + len(kwargs)
        is_given = item.id and args is not _EMPTY_LIST and kwargs is not _EMPTY_OBJECT
        if is_given and room == len(item.body):
            return item
        item.id = item.id or item.meta.id
    else:
        item.id = item.meta.id or _as_id(stored.job_id)
    _take_other_members(item, stored)
    return item


def _take_other_members(item: Item, stored: _Stored) -> None:
    if _is_count(stored.max_retries):
        item.asked_attempts = 1 + stored.max_retries
    if _is_count(stored.retry_count):
        item.counts_retries = True
        if item.meta is NO_META:
            item.meta = Meta(attempts=stored.retry_count)
    if _repeats_a_member(item, stored):
        item.fault = _repeating(item)


def _repeats_a_member(item: Item, stored: _Stored) -> bool:
    """Whether an object in the job, at any depth, has two members of one name."""
    body = item.body
    if repeats_a_member(body):
        return True
    if (
        stored.meta is _NONE
        or body is item.data
        or (_QUOTED_NAME not in body and b"\\" not in body)
    ):
        return False
    # One is another program's own; two of ours are one too many.
    left = find_member(body, _NAME)
    return left is not None and read_meta(body[left.value : left.end]) is not None


def _repeating(item: Item) -> DecodeError:
    return DecodeError("an object in it has two members of one name", item.body)


def write_item(item: Item, meta: Meta, codec: Codec) -> bytes:
    """Return the job as it is to be stored with other metadata. Never raises.

    Of the job itself only the count of its attempts is rewritten, where it has one.
    """
    body = item.body
    if not _is_object(body):
        raw = b64encode(body).decode() or _NOTHING
        meta = msgspec.structs.replace(meta, raw=raw)
        return _packed(_with_meta(b"{}", meta, item.later), codec)
    if item.counts_retries and (count := find_member(body, "retry_count")) is not None:
        body = replace_value(body, count, b"%d" % meta.attempts)
    return _packed(_with_meta(body, msgspec.structs.replace(meta, raw=""), item.later), codec)


def read_meta(stored: bytes) -> tuple[Meta, bytes] | None:
    """Read the metadata of a job; None for what another program wrote under that name.

    So is what has two members of one name: it stays in the job, which is at fault then.

    The second value are members that a later version has added, in the form of `Item.later`: they
    are kept when the job is rewritten.
    """
    try:
        meta = _decode_meta(stored)
    except UNREADABLE:
        meta = None
    if (meta is None or _encode(meta) != stored) and repeats_a_member(stored):
        return None
    if meta is not None:
        return meta, b""
    try:
        members = _decode_members(stored)
        known = {name: value for name, value in members.items() if name in _KNOWN}
        if len(known) == len(members):
            return None
        meta = _decode_meta(_encode(known))
    except UNREADABLE:
        return None
    later = b""
    for name, value in members.items():
        if name not in known and is_readable(value):
            later += b",%b:%b" % (_encode(name), bytes(value))
    return meta, later


def encode_meta(meta: Meta, later: bytes) -> bytes:
    """Return metadata as JSON, with the members that a later version has added."""
    data = _encode(meta)
    if not later:
        return data
    return data[:-1] + (later if len(data) > _EMPTY else later[1:]) + b"}"


def is_readable(value: Raw) -> bool:
    """Whether a part of a JSON text that was not validated can be decoded."""
    try:
        msgspec.json.decode(value)
    except UNREADABLE:
        return False
    return True


def trimmed(body: bytes) -> bytes:
    """A job without blanks around it if it is an object: letters drop them."""
    return body.strip() if _is_object(body) else body


def job_names(keys: QueueKeyring, item: Item) -> tuple[str, str, str, str, str]:
    """Script arguments that identify a job: id in keys, id, task, "1" if tracked, unique key."""
    try:
        name = keys.record_name(item.id) if item.id else ""
    except InvalidName:
        name = ""
    return (name, item.id, item.task, "1" if item.meta.tracked else "", unique_of(keys, item))


def unique_of(keys: QueueKeyring, item: Item) -> str:
    """Key that the job holds until its end; empty if there is none."""
    try:
        return keys.unique(item.meta.unique) if item.meta.unique else ""
    except InvalidName:
        return ""


def _take_meta(item: Item, stored: bytes) -> None:
    """Split Penstock's metadata from the job itself."""
    if (read := read_meta(stored)) is None:
        return  # another program's own member of this name
    meta, later = read
    if meta.raw:
        _take_raw(item, meta, later)
        return
    item.meta, item.later = meta, later
    body, tail = item.body, _MEMBER + stored + b"}"
    if body.endswith(tail):
        item.body = body[: -len(tail)] + b"}"
        return
    # Another program has written the object in an order of its own, or it has no other members.
    if (member := find_member(item.body, _NAME)) is not None:
        item.body = without_member(item.body, member)


def _take_raw(item: Item, meta: Meta, later: bytes) -> None:
    """Unwrap a job that is no object; other members beside it say that it is not one of these."""
    member = find_member(item.body, _NAME)
    if member is None or not is_only_member(item.body, member):
        return
    try:
        item.body = b"" if meta.raw == _NOTHING else b64decode(meta.raw, validate=True)
    except ValueError:
        return
    item.meta, item.later = meta, later


def _with_meta(data: bytes, meta: Meta, later: bytes = b"") -> bytes:
    """Add the metadata as the last member of an object; blanks around it stay."""
    end = data.rindex(b"}")
    head, tail = data[:end], data[end:]
    member = _MEMBER if head.strip() != b"{" else _MEMBER[1:]
    return head + member + encode_meta(meta, later) + tail


def _packed(data: bytes, codec: Codec) -> bytes:
    if len(data) <= codec.compress_above:
        return data
    try:
        return codec.encode(data, Form.TEXT)
    except EncodeError:  # larger than may be unpacked again, so it stays as it is
        return data


def _is_object(body: bytes) -> bool:
    try:
        _decode(body)
    except UNREADABLE:
        return False
    return True


def _as_id(value: object) -> str:
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_ID else ""


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_ATTEMPTS
