"""JSON as it is stored: what msgspec cannot write, wrongly accepts, or reveals in its errors.

Pydantic models come in through two hooks. Pydantic is never imported here: a value or a type can
only be one of its models if someone else has imported it.
"""

from __future__ import annotations

import re
import sys
from itertools import accumulate
from json import JSONDecoder
from math import isfinite
from typing import Any, cast

import msgspec
from msgspec import inspect

__all__ = [
    "MAX_NESTING",
    "NEVER_TOO_DEEP",
    "decode_reason",
    "encode_json",
    "encode_reason",
    "holds_no_floats",
    "is_finite",
    "json_decoder",
    "nests_too_deep",
    "repeats_a_member",
]

MAX_NESTING = 128
"""Arrays and objects within each other. Python's own limit varies with version and call stack."""

NEVER_TOO_DEEP = 2 * MAX_NESTING
"""JSON of so few bytes cannot nest deeper: each level takes two brackets."""


class _Refused(ValueError):
    """Its message holds nothing of the payload."""


def _is_model(type_: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and pydantic.BaseModel in getattr(type_, "__mro__", ())


def _to_builtins(value: Any) -> object:
    """Take apart what msgspec does not know."""
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, msgspec.Raw):
        return None  # JSON already; asked only when looking for NaN
    name = type(value).__qualname__
    raise _Refused(f"it holds a value or a key of type {name}, for which JSON has no form")


def _from_builtins(type_: Any, value: object) -> object:
    """Build what msgspec does not know."""
    if not _is_model(type_):
        return value  # msgspec then says what it expected instead
    # As JSON: a strict model takes a date from a JSON string, but not from a Python one.
    data = msgspec.json.encode(value)
    try:
        return type_.model_validate_json(data)
    except sys.modules["pydantic"].ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = first["loc"][0] if first["loc"] else None
        # Other places are keys of the payload.
        where = f" at `{place}`" if place in type_.model_fields else ""
        raise _Refused(f"{error.error_count()} invalid, first: {first['type']}{where}") from None


encode_json = msgspec.json.Encoder(enc_hook=_to_builtins).encode
_encode_msgpack = msgspec.msgpack.Encoder(enc_hook=_to_builtins).encode


def json_decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder that checks against `type_`; TypeError if msgspec cannot."""
    return msgspec.json.Decoder(type_, dec_hook=_from_builtins)


# Depth. msgspec raises RecursionError, at a depth that is not the same for writer and reader.

_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def nests_too_deep(json: bytes) -> bool:
    """Whether there are more than MAX_NESTING levels."""
    if len(json) <= NEVER_TOO_DEEP or json.count(b"[") + json.count(b"{") <= MAX_NESTING:
        return False
    if _depth(json) <= MAX_NESTING:
        return False
    # Brackets within strings count for nothing; leaving the strings out is slow, so it comes last.
    bare = json.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _depth(b"".join(bare.split(b'"')[::2])) > MAX_NESTING


def _depth(json: bytes) -> int:
    """Return the most brackets open at once: a running sum of +1 and -1 as signed bytes."""
    return max(accumulate(memoryview(json.translate(_STEPS, _NO_BRACKETS)).cast("b")), default=0)


# Names that an object has twice. Decoders take the last of them, others the first: what one program
# has checked is not what the next one does.

_decode_any = msgspec.json.Decoder().decode
_encode_any = msgspec.json.Encoder().encode


def repeats_a_member(json: bytes) -> bool:
    """Whether an object in `json`, at any depth, has two members of one name.

    JSON as msgspec and most other encoders write it costs a third of a microsecond for 100 bytes,
    any other ten times as much. What cannot be checked counts as repeating one.
    """
    try:
        again = _encode_any(_decode_any(json))
        if again == json or again == msgspec.json.format(json, indent=-1):
            return False
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        pass  # a number or text that only a lenient decoder reads
    try:
        _visit_objects(json.decode(errors="surrogateescape"))
    except (ValueError, RecursionError):
        return True
    return False


def _without_repeats(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _Refused("it has two members of one name")


_visit_objects = JSONDecoder(
    object_pairs_hook=_without_repeats, parse_int=len, parse_float=len, strict=False
).decode


# NaN and the infinities. msgspec writes them as null, so only JSON with a null can hold one.

_find_non_finite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search
"""In msgpack: the mark of a float, then an exponent of all ones."""


def is_finite(value: object) -> bool:
    """Whether no number in `value` is NaN or infinite; `value` is known to be encodable."""
    try:
        if not _find_non_finite(_encode_msgpack(value)):
            return True
    except OverflowError:
        pass  # an int of more than 64 bits, which msgpack lacks
    # The bytes may also have been part of something else.
    return _is_finite_throughout(msgspec.to_builtins(value, enc_hook=_to_builtins))


def _is_finite_throughout(value: object) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite_throughout, cast("dict[object, object]", value).values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_finite_throughout, cast("list[object]", value)))
    return True


_FLOAT_FREE = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.UUIDType,
    inspect.EnumType,
    inspect.LiteralType,
)


def holds_no_floats(type_: Any) -> bool:
    """Whether a Struct or dataclass of exactly this type has no room for a NaN.

    A field that is itself a Struct may hold a subclass with more fields, so it counts as room.
    """
    try:
        info = inspect.type_info(type_)
    except Exception:  # noqa: BLE001  what msgspec cannot describe may hold anything
        return False
    if not isinstance(info, inspect.StructType | inspect.DataclassType):
        return False
    return all(_is_float_free(field.type) for field in info.fields)


def _is_float_free(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return all(map(_is_float_free, info.types))
    if isinstance(info, inspect.CollectionType):
        return _is_float_free(info.item_type)
    if isinstance(info, inspect.DictType):
        return _is_float_free(info.key_type) and _is_float_free(info.value_type)
    return isinstance(info, _FLOAT_FREE)


# Reasons. They name types and places, never what the payload holds: they end up in logs.

_SAFE_WORDS = re.compile(
    r"Expected |Object missing |(Number|Integer value|Duration is|Timestamp is) out of range|"
    r"Only units |Invalid (RFC3339|ISO8601|UUID|base64|decimal|epoch)\b"
)
_PLACE = re.compile(r" - at `[\w.$\[\]]*`\Z")


def encode_reason(error: Exception) -> str:
    """Say in one line why a value could not be encoded. MemoryError is raised again."""
    match error:
        case MemoryError():
            raise error
        case _Refused():
            return str(error)
        case RecursionError():
            return "it is circular or nests too deep"
        case UnicodeEncodeError():
            return "its text holds a lone surrogate"
        case _:
            return f"{type(error).__name__} while encoding"


def decode_reason(error: Exception) -> str:
    """Say in one line why bytes could not be decoded. MemoryError is raised again."""
    match error:
        case MemoryError():
            raise error
        case msgspec.ValidationError():
            return _validation_reason(error)
        case msgspec.DecodeError():
            return str(error)
        case RecursionError():
            return "JSON nests too deep"
        case UnicodeDecodeError():
            return "not UTF-8"
        case _:
            return f"{type(error).__name__} in its own check"


def _validation_reason(error: msgspec.ValidationError) -> str:
    text, cause = str(error), error.__cause__
    if cause is None and _SAFE_WORDS.match(text):
        return text
    if cause is None:
        words = "a value or a field that is not allowed"
    elif isinstance(cause, _Refused):
        words = str(cause)
    else:
        words = f"{type(cause).__name__} in its own check"
    place = _PLACE.search(text)
    return words + (place[0] if place else "")
