import base64
import math
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
import zstandard

from penstock.errors import DecodeError, EncodeError, InflationRefused
from penstock.redis.codec import Codec, Form
from penstock.redis.codec.json_rules import MAX_NESTING
from penstock.settings import CodecSettings

MAGIC = b"\x28\xb5\x2f\xfd"
FORMS = pytest.mark.parametrize("form", list(Form))
SECRET = "hunter2"


class Colour(StrEnum):
    RED = "red"


class Order(msgspec.Struct):
    id: str
    total: float
    colour: Colour = Colour.RED


class Ticket(msgspec.Struct):
    """Has no field that could hold a float."""

    id: int
    note: str | None = None


class PricedTicket(Ticket):
    price: float = 0.0


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: int = 0


class Envelope(msgspec.Struct):
    body: msgspec.Raw
    at: float | None = None


@dataclass
class Point:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(f"Expected better than {SECRET}")
        if self.x > 1000:
            raise KeyError(SECRET)


class User(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    name: str = pydantic.Field(alias="userName")
    score: float = 0.0


def make(**given: int) -> Codec:
    return Codec(CodecSettings(**given))


codec = make()


def words_only(parameter: object) -> str:
    return parameter if isinstance(parameter, str) and len(parameter) < 80 else ""


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


# ---- what cannot be stored


@FORMS
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "cannot store object: it holds a value or a key of type object"),
        ({"a": {object()}}, "cannot store dict: it holds a value or a key of type object"),
        (1j, "complex"),
        (int, "cannot store type"),
        (ValueError(SECRET), "ValueError"),
        ({(1, 2): 3}, "key of type tuple"),
        (circular(), "circular"),
        (nested(100_000), "nests"),
        (nested(MAX_NESTING + 1), f"nests deeper than {MAX_NESTING}"),
        (math.nan, "NaN"),
        ({"a": [None, math.inf]}, "NaN"),
        ({"a": {-math.inf}}, "NaN"),
        ((10**30, math.nan), "NaN"),
        (Order(id="a", total=math.nan), "cannot store Order: it holds NaN"),
        (PricedTicket(id=1, price=math.nan), "NaN"),
        (User(userName="a", score=math.inf), "NaN"),
        ([User(userName="a", score=math.inf)], "NaN"),
        (Envelope(msgspec.Raw(b"null"), math.nan), "NaN"),
        ([10**5000], "ValueError"),
        ("\ud800", "cannot store str: its text holds a lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
    ],
    ids=words_only,
)
def test_what_cannot_be_stored_is_refused_by_type(value: object, words: str, form: Form) -> None:
    with pytest.raises(EncodeError) as refused:
        codec.encode(value, form)
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_nan_in_a_subclass_of_the_declared_type_is_refused() -> None:
    encode = codec.encoder(Ticket)
    assert encode(Ticket(id=1)) == b'{"id":1,"note":null}'
    with pytest.raises(EncodeError, match="NaN"):
        encode(PricedTicket(id=1, price=math.nan))


def test_null_and_bytes_that_resemble_a_nan_are_no_nan() -> None:
    for value in (
        [None, 0xCB7FF8],
        [None, b"\xcb\x7f\xf8"],
        ["null"],
        [None, {1.5}],
        [None, 10**30],
    ):
        assert codec.encode(value)
    assert codec.encode(Envelope(msgspec.Raw(b'"null"'))) == b'{"body":"null","at":null}'


def test_a_value_of_another_type_than_the_declared_text_or_bytes_is_refused() -> None:
    with pytest.raises(EncodeError, match="cannot store int: text was declared"):
        codec.encoder(str)(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(EncodeError, match="cannot store int: bytes were declared"):
        codec.encoder(bytes)(5)  # pyright: ignore[reportArgumentType]


@FORMS
@pytest.mark.parametrize("value", ["a" * 101, b"a" * 101, ["a" * 97]])
def test_no_more_can_be_written_than_can_be_read(value: Any, form: Form) -> None:
    small = make(max_inflated=100, compress_above=10)
    with pytest.raises(EncodeError, match=r"it takes 101 bytes, .*max_inflated allows 100"):
        small.encode(value, form)
    with pytest.raises(DecodeError) as refused:
        small.decode(codec.encode(value, form), type(value), form)
    assert refused.value.raw == codec.encode(value, form)


@FORMS
@pytest.mark.parametrize("value", ["a" * 100, "Z:" * 50, MAGIC * 25, b"\xff" * 100, ["a" * 96]])
def test_all_that_the_limit_allows_can_be_written_and_read(value: Any, form: Form) -> None:
    small = make(max_inflated=100, compress_above=10)
    assert small.decode(small.encode(value, form), type(value), form) == value


def test_the_deepest_that_can_be_written_can_be_read() -> None:
    value = nested(MAX_NESTING)
    assert codec.decode(codec.encode(value), Any) == value


def test_brackets_within_strings_do_not_count_as_nesting() -> None:
    value = ["[" * 500, '\\"[' * 500, "\\", "{" * 500]
    assert codec.decode(codec.encode(value), Any) == value


# ---- what cannot be read


@pytest.mark.parametrize(
    ("data", "type_", "words"),
    [
        (b"", dict, "truncated"),
        (b"{", dict, "truncated"),
        (b'{"a":1,}', dict, "malformed"),
        (b"{} x", dict, "malformed"),
        (b"\xef\xbb\xbf{}", dict, "malformed"),
        ("{}".encode("utf-16"), dict, "malformed"),
        (b"hello", Any, "malformed"),
        (b"\x80\x04K\x01.", Any, "malformed"),
        (b"NaN", float, "malformed"),
        (b"-Infinity", float, "malformed"),
        (b'{"userName":"a","score":NaN}', User, "malformed"),
        (b"1e999", float, "out of range"),
        (b"1" * 5_000, int, "out of range"),
        (b"1" * 1_000_000, Any, "out of range"),
        (b'"\\ud800"', Any, "cannot read"),
        (b'"\\udc00x"', Any, "surrogate"),
        (b'"\xed\xa0\x80"', Any, "not UTF-8"),
        (b'{"a":"\xff"}', dict, "not UTF-8"),
        (b"\xff", str, "cannot read str: not UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, Any, "nests deeper"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, Any, "nests deeper"),
        (b'{"id":1,"x":' + b"[" * 100_000, Ticket, "nests deeper"),
        (b'["]",' * 100_000, Any, "too deep"),  # the strings hide the depth from a quick look
        (b'{"id":"1"}', Ticket, "cannot read Ticket: Expected `int`, got `str` - at `$.id`"),
        (b"[]", Ticket, "Expected `object`, got `array`"),
        (b"{}", Ticket, "missing required field `id`"),
        (b"true", int, "Expected `int`, got `bool`"),
        (b'"ada"', Annotated[str, msgspec.Meta(max_length=3)], "length <= 3"),
        (b'{"id":"a","total":1,"colour":"hunter2"}', Order, "not allowed - at `$.colour`"),
        (b'{"hunter2":1}', Strict, "not allowed"),
        (b'"hunter2"', uuid.UUID, "Invalid UUID"),
        (b'{"hunter2":"hunter2"}', dict[str, int], "at `$[...]`"),
        (b'{"x":-1}', Point, "ValueError in its own check"),
        (b'[{"x":-1}]', list[Point], "ValueError in its own check - at `$[0]`"),
        (b'{"x":1001}', Point, "KeyError in its own check"),
        (b'{"userName":5,"score":"hunter2"}', User, "2 invalid, first: string_type"),
        (b'[{"userName":"a","score":"hunter2"}]', list[User], "float_type at `score` - at `$[0]`"),
        (b'{"hunter2":1}', dict[str, User], "cannot read"),
    ],
    ids=words_only,
)
def test_what_cannot_be_read_is_refused_without_telling_its_content(
    data: bytes, type_: Any, words: str
) -> None:
    for form, stored in (
        (Form.TEXT, data),
        (Form.BINARY, data),
        (Form.BINARY, zstandard.compress(data)),
        (Form.TEXT, b"Z:" + base64.b64encode(zstandard.compress(data))),
    ):
        with pytest.raises(DecodeError) as refused:
            codec.decode(stored, type_, form)
        assert refused.value.raw == stored
        assert words in str(refused.value)
        assert SECRET not in str(refused.value)
        assert "\n" not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__ or refused.value.__context__ is None


@FORMS
def test_a_bomb_is_refused_in_both_forms(form: Form) -> None:
    stored = codec.encode(" " * 2_000_000, form)
    with pytest.raises(InflationRefused) as refused:
        make(max_inflated=1_000_000).decode(stored, str, form)
    assert refused.value.raw == stored


def test_base64_longer_than_any_allowed_frame_is_not_decoded() -> None:
    stored = b"Z:KLUv/" + b"*" * 10_000
    with pytest.raises(InflationRefused, match="base64"):
        make(max_inflated=1000).decode(stored, str, Form.TEXT)


def test_running_out_of_memory_is_not_a_bad_payload() -> None:
    @dataclass
    class Hungry:
        x: int

        def __post_init__(self) -> None:
            raise MemoryError

    with pytest.raises(MemoryError):
        codec.decode(b'{"x":1}', Hungry)


def test_a_type_that_cannot_be_read_is_a_type_error_when_asked_for() -> None:
    with pytest.raises(TypeError):
        codec.decoder(Order | Ticket)
