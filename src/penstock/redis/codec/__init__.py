"""Payloads as bytes, in one of two stored forms.

What is stored follows from the type that is written or asked for, never from the bytes:

    bytes, bytearray, memoryview    the bytes themselves
    str                             the text in UTF-8, without quotes
    everything else                 JSON, checked against the type when it is read

Above a size it is compressed, if that makes it smaller:

    Form.TEXT      list queues     `Z:` and the zstd frame in base64
    Form.BINARY    elsewhere       the zstd frame itself

A payload that could be mistaken for a compressed one is compressed whatever its size.

Compressing megabytes takes longer than an event loop may be held up. There, what `begin` returns as
`Unpacked` is completed by `finish`, and what `is_large` is decoded by `decode_large`: in a thread.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, NewType, TypeVar, final, get_origin, overload

import msgspec

from penstock.errors import DecodeError, EncodeError, InflationRefused
from penstock.redis.codec import json_rules
from penstock.redis.codec.off_loop import LARGE, off_loop
from penstock.redis.codec.zstd import MAGIC, Zstd, declared_size
from penstock.settings import CodecSettings

__all__ = ["SURELY_SMALL", "Codec", "Form", "Unpacked", "bare_type"]

T = TypeVar("T")

_TEXT_PREFIX = b"Z:"
_TEXT_MARK = b"Z:KLUv/"
"""How every compressed text begins: `KLUv/` is the frame's magic number in base64."""
_TYPES_KEPT = 1024
_RAW_TYPES: tuple[type[Any], ...] = (bytes, bytearray, memoryview)
SURELY_SMALL = 16 * 1024
"""Stored payloads of so few bytes are decoded on the spot, without a look at them."""
_LARGE_INFLATED = 4 * LARGE
"""Unpacking is several times as quick as packing."""
_HEADER_TEXT = 2 + 24
"""So much of a compressed text has the whole header of its frame."""


class Form(StrEnum):
    """Where a payload is stored, which decides what its compressed form looks like."""

    TEXT = "text"
    BINARY = "binary"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Unpacked:
    """A large payload that is encoded, and still to be compressed: see `Codec.finish`."""

    value: object
    data: bytes
    form: Form
    escape: bool


_Pack = Callable[..., Any]


class Codec:
    """Turns values into stored bytes and back; usable from several threads at once.

    `encode` and `decode` suit most callers. A hot loop asks once for `encoder(type)` and
    `decoder(type)`, which cost little more than msgspec itself:

        decode = codec.decoder(Order)
        order = decode(data)
    """

    def __init__(self, settings: CodecSettings) -> None:
        self.compress_above = settings.compress_above
        self._max_bytes = settings.max_inflated
        self._zstd = Zstd(settings.max_inflated)
        self._cached_encoder = lru_cache(_TYPES_KEPT)(self._make_encoder)
        self._cached_decoder = lru_cache(_TYPES_KEPT)(self._make_decoder)
        self._cached_reader = lru_cache(_TYPES_KEPT)(self._make_reader)

    def encode(self, value: object, form: Form = Form.BINARY) -> bytes:
        """Return the stored form, or raise EncodeError. The value's own type reads it back."""
        return self._cached_encoder(type(value), form)(value)

    @overload
    def decode(self, data: bytes, type_: type[T], form: Form = Form.BINARY) -> T: ...
    @overload
    def decode(self, data: bytes, type_: Any, form: Form = Form.BINARY) -> Any: ...
    def decode(self, data: bytes, type_: Any, form: Form = Form.BINARY) -> Any:
        """Return the stored value, checked against `type_`, or raise DecodeError.

        `Any` is JSON of any shape; what was stored as text or bytes needs `str` or `bytes`.
        """
        return self.decoder(type_, form)(data)

    @overload
    def encoder(self, type_: type[T], form: Form = Form.BINARY) -> Callable[[T], bytes]: ...
    @overload
    def encoder(self, type_: Any, form: Form = Form.BINARY) -> Callable[[Any], bytes]: ...
    def encoder(self, type_: Any, form: Form = Form.BINARY) -> Callable[[Any], bytes]:
        """Return `encode` for values declared as `type_`; what it writes, `decoder(type_)` reads.

        Matters for types such as `str | None`, which are JSON although a lone str is plain text.
        """
        make = self._cached_encoder if _is_hashable(type_) else self._make_encoder
        return make(type_, form)

    @overload
    def decoder(self, type_: type[T], form: Form = Form.BINARY) -> Callable[[bytes], T]: ...
    @overload
    def decoder(self, type_: Any, form: Form = Form.BINARY) -> Callable[[bytes], Any]: ...
    def decoder(self, type_: Any, form: Form = Form.BINARY) -> Callable[[bytes], Any]:
        """Return `decode` for one type. A type that msgspec does not support is a TypeError."""
        make = self._cached_decoder if _is_hashable(type_) else self._make_decoder
        return make(type_, form)

    # ---- in an event loop

    def beginner(self, type_: Any, form: Form = Form.BINARY) -> Callable[[Any], bytes | Unpacked]:
        """Return `encoder(type_)` for an event loop: of large payloads `finish` does the rest."""
        make = self._cached_encoder if _is_hashable(type_) else self._make_encoder
        return make(type_, form, self._pack_small)

    def begin(self, value: object, form: Form = Form.BINARY) -> bytes | Unpacked:
        """As `encode`, for an event loop: of a large payload `finish` does the rest."""
        return self._cached_encoder(type(value), form, self._pack_small)(value)

    async def finish(self, large: Unpacked) -> bytes:
        """Compress a large payload in a thread."""
        return await off_loop(self._pack, large.value, large.data, large.form, escape=large.escape)

    def is_large(self, data: bytes, form: Form = Form.BINARY) -> bool:
        """Whether decoding this takes so long that `decode_large` should do it."""
        if len(data) <= SURELY_SMALL or not data.startswith(_mark(form)):
            return False
        return len(data) > LARGE or self._inflated_size(data, form) > _LARGE_INFLATED

    async def decode_large(self, data: bytes, type_: Any, form: Form = Form.BINARY) -> Any:
        """As `decode`; what is compressed is unpacked in a thread."""
        make = self._cached_reader if _is_hashable(type_) else self._make_reader
        return make(type_)(await off_loop(self._unpack, data, form), data)

    def _inflated_size(self, data: bytes, form: Form) -> int:
        if form is Form.BINARY:
            return declared_size(data[:_HEADER_TEXT])
        try:
            head = binascii.a2b_base64(data[len(_TEXT_PREFIX) : _HEADER_TEXT])
        except binascii.Error:
            return 0
        return declared_size(head)

    # ---- writing

    def _make_encoder(
        self, type_: Any, form: Form, pack: _Pack | None = None
    ) -> Callable[[Any], Any]:
        pack = pack or self._pack
        bare = bare_type(type_)
        if bare is str:
            return lambda value: self._encode_text(value, form, pack)
        if bare in _RAW_TYPES:
            return lambda value: self._encode_raw(value, form, pack)
        return self._make_json_encoder(type_, form, pack)

    def _make_json_encoder(self, type_: Any, form: Form, pack: _Pack) -> Callable[[Any], Any]:
        encode_json, is_finite = json_rules.encode_json, json_rules.is_finite
        finish = self._finish_json
        as_it_is = min(json_rules.NEVER_TOO_DEEP, self.compress_above, self._max_bytes)

        def encode(value: Any) -> Any:
            try:
                data = encode_json(value)
            except Exception as error:  # noqa: BLE001  a model's own code may run
                raise _cannot_store(value, json_rules.encode_reason(error)) from None
            # msgspec writes NaN as null; of all ways to look for that, rfind is the quickest
            if len(data) <= as_it_is and (data.rfind(b"null") < 0 or is_finite(value)):
                return data
            return finish(value, data, form, pack)

        def encode_without_floats(value: Any) -> Any:
            try:
                data = encode_json(value)
            except Exception as error:  # noqa: BLE001  as above
                raise _cannot_store(value, json_rules.encode_reason(error)) from None
            if len(data) <= as_it_is and type(value) is type_:
                return data
            return finish(value, data, form, pack)

        return encode_without_floats if json_rules.holds_no_floats(type_) else encode

    def _finish_json(self, value: object, data: bytes, form: Form, pack: _Pack) -> Any:
        if json_rules.nests_too_deep(data):
            raise _cannot_store(value, f"it nests deeper than {json_rules.MAX_NESTING}")
        if data.rfind(b"null") >= 0 and not json_rules.is_finite(value):
            raise _cannot_store(value, "it holds NaN or an infinite number")
        return pack(value, data, form, escape=False)

    def _encode_text(self, value: object, form: Form, pack: _Pack) -> Any:
        if not isinstance(value, str):
            raise _cannot_store(value, "text was declared")
        try:
            data = value.encode()
        except UnicodeEncodeError as error:
            raise _cannot_store(value, json_rules.encode_reason(error)) from None
        return pack(value, data, form, escape=_looks_packed(data, form))

    def _encode_raw(self, value: Any, form: Form, pack: _Pack) -> Any:
        if not isinstance(value, _RAW_TYPES):
            raise _cannot_store(value, "bytes were declared")
        data = bytes(value)
        escape = _looks_packed(data, form) or (form is Form.TEXT and not _is_text(data))
        return pack(value, data, form, escape=escape)

    def _pack_small(
        self, value: object, data: bytes, form: Form, *, escape: bool
    ) -> bytes | Unpacked:
        if LARGE < len(data) <= self._max_bytes and (escape or len(data) > self.compress_above):
            return Unpacked(value, data, form, escape)
        return self._pack(value, data, form, escape=escape)

    def _pack(self, value: object, data: bytes, form: Form, *, escape: bool) -> bytes:
        if len(data) > self._max_bytes:
            limit = f"codec.max_inflated allows {self._max_bytes}"
            raise _cannot_store(value, f"it takes {len(data)} bytes, {limit}")
        if len(data) <= self.compress_above and not escape:
            return data
        packed = self._zstd.pack(data)
        if form is Form.TEXT:
            packed = _TEXT_PREFIX + binascii.b2a_base64(packed, newline=False)
        return packed if escape or len(packed) < len(data) else data

    # ---- reading

    def _make_decoder(self, type_: Any, form: Form) -> Callable[[bytes], Any]:
        read = self._cached_reader(type_) if _is_hashable(type_) else self._make_reader(type_)
        bare = bare_type(type_)
        if bare is str or bare in _RAW_TYPES:
            return lambda data: read(self._unpack(data, form), data)
        return self._make_json_decoder(type_, form, read)

    def _make_reader(self, type_: Any) -> Callable[[bytes, bytes], Any]:
        """Return what reads an unpacked payload; beside it stands what was stored, for errors."""
        bare = bare_type(type_)
        if bare is str or bare in _RAW_TYPES:
            return lambda payload, data: self._read_plain(payload, data, type_, bare)
        decode_json = json_rules.json_decoder(type_).decode

        def read(payload: bytes, data: bytes) -> Any:
            if json_rules.nests_too_deep(payload):
                raise DecodeError(f"JSON nests deeper than {json_rules.MAX_NESTING}", data)
            try:
                return decode_json(payload)
            except Exception as error:  # noqa: BLE001  a type's own checks may run
                raise _cannot_read(type_, json_rules.decode_reason(error), data) from None

        return read

    def _make_json_decoder(
        self, type_: Any, form: Form, read: Callable[[bytes, bytes], Any]
    ) -> Callable[[bytes], Any]:
        decode_json = json_rules.json_decoder(type_).decode
        unpack, mark = self._unpack, _mark(form)
        as_it_is = min(json_rules.NEVER_TOO_DEEP, self._max_bytes)

        def decode(data: bytes) -> Any:
            if len(data) <= as_it_is:
                try:
                    return decode_json(data)
                except Exception as error:  # noqa: BLE001  a type's own checks may run
                    if not data.startswith(mark):
                        raise _cannot_read(type_, json_rules.decode_reason(error), data) from None
            return read(unpack(data, form), data)

        return decode

    def _read_plain(self, payload: bytes, data: bytes, type_: Any, bare: Any) -> Any:
        try:
            value = payload.decode() if bare is str else bare(payload)
            return value if type_ is bare else msgspec.convert(value, type_)
        except ValueError as error:
            raise _cannot_read(type_, json_rules.decode_reason(error), data) from None

    def _unpack(self, data: bytes, form: Form) -> bytes:
        """Undo `_pack`."""
        if not data.startswith(_mark(form)):
            if len(data) > self._max_bytes:
                raise DecodeError(f"{len(data)} bytes, {self._max_bytes} are allowed", data)
            return data
        if form is Form.BINARY:
            return self._zstd.unpack(data, data)
        if len(data) * 3 // 4 > self._zstd.largest_frame:
            raise InflationRefused(f"{len(data)} bytes of base64 are more than is allowed", data)
        try:
            frame = binascii.a2b_base64(data[len(_TEXT_PREFIX) :], strict_mode=True)
        except binascii.Error:
            raise DecodeError("begins like compressed text, but is not base64", data) from None
        return self._zstd.unpack(frame, data)


def _mark(form: Form) -> bytes:
    return _TEXT_MARK if form is Form.TEXT else MAGIC


def _looks_packed(data: bytes, form: Form) -> bool:
    """Whether a reader could take it for compressed; older ones look at `Z:` alone."""
    return data.startswith(_TEXT_PREFIX if form is Form.TEXT else MAGIC)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def bare_type(type_: Any) -> Any:
    """The type under NewType and Annotated."""
    while True:
        if get_origin(type_) is Annotated:
            type_ = type_.__origin__
        elif isinstance(type_, NewType):
            type_ = type_.__supertype__
        else:
            return type_


def _is_hashable(type_: Any) -> bool:
    try:
        hash(type_)
    except TypeError:  # Annotated with a mutable note
        return False
    return True


def _name(type_: Any) -> str:
    return getattr(type_, "__qualname__", None) or str(type_)


def _cannot_store(value: object, reason: str) -> EncodeError:
    return EncodeError(f"cannot store {_name(type(value))}: {reason}")


def _cannot_read(type_: Any, reason: str, raw: bytes) -> DecodeError:
    return DecodeError(f"cannot read {_name(type_)}: {reason}", raw)
