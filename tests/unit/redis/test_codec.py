import base64
import contextlib
import datetime as dt
import hashlib
import runpy
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NewType

import msgspec
import pydantic
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.redis.codec import Codec, Form
from penstock.settings import CodecSettings

MAGIC = b"\x28\xb5\x2f\xfd"
FORMS = pytest.mark.parametrize("form", list(Form))


class Colour(StrEnum):
    RED = "red"


class Order(msgspec.Struct):
    id: str
    total: float
    tags: list[str] = []
    note: str | None = None
    colour: Colour = Colour.RED


class Ticket(msgspec.Struct):
    id: int
    note: str | None = None


@dataclass
class Point:
    x: int
    y: int = 0


class Address(pydantic.BaseModel):
    street: str
    since: dt.date


class User(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    name: str = pydantic.Field(alias="userName", max_length=20)
    score: float = 0.0
    address: Address | None = None

    @pydantic.computed_field
    @property
    def initial(self) -> str:
        return self.name[:1]


USER = User(userName="ada", address=Address(street="a", since=dt.date(2024, 2, 29)))


def make(**given: int) -> Codec:
    return Codec(CodecSettings(**given))


codec = make()


# ---- values come back


@FORMS
@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (Order(id="a", total=1.5, tags=["x"]), Order),
        (Ticket(id=1), Ticket),
        ([Ticket(id=1), Ticket(id=2)], list[Ticket]),
        (Point(1, 2), Point),
        (USER, User),
        ([USER], list[User]),
        ({"boss": USER}, dict[str, User]),
        ({"a": [1, None, True, 2.5, "ü"]}, dict),
        ({"a": 1}, Any),
        ([1, "b"], list),
        (12, int),
        (10**30, int),
        (True, bool),
        (None, None),
        (1.5, float),
        (Colour.RED, Colour),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime),
        (uuid.UUID(int=7), uuid.UUID),
        ("grüße", str),
        ("", str),
        (b"\x00\xff", bytes),
        (b"", bytes),
        (bytearray(b"\xfe"), bytearray),
        (memoryview(b"\xfe"), memoryview),
        ("ada", NewType("Name", str)),
        ("ada", Annotated[str, msgspec.Meta(max_length=3)]),
        ("ada", Annotated[str, {"unhashable": "note"}]),
        (7, Annotated[int, {"unhashable": "note"}]),
    ],
)
def test_a_value_comes_back_as_its_type(value: Any, type_: Any, form: Form) -> None:
    assert codec.decode(codec.encode(value, form), type_, form) == value
    assert codec.decode(codec.encoder(type_, form)(value), type_, form) == value


@FORMS
def test_a_type_that_allows_text_among_others_is_json_on_both_sides(form: Form) -> None:
    stored = codec.encoder(str | None, form)("null")
    assert stored == b'"null"'
    assert codec.decode(stored, str | None, form) == "null"


def test_text_and_bytes_are_stored_as_they_are() -> None:
    assert codec.encode("123", Form.TEXT) == b"123"
    assert codec.encode(b"\x80\x04K\x01.") == b"\x80\x04K\x01."  # a pickle is bytes like others
    assert codec.decode(b"123", str) == "123"
    assert codec.decode(b"123", Any) == 123


def test_a_pydantic_model_is_stored_under_its_aliases_and_without_computed_fields() -> None:
    assert codec.decode(codec.encode(USER), dict) == {
        "userName": "ada",
        "score": 0.0,
        "address": {"street": "a", "since": "2024-02-29"},
    }


def test_an_older_record_without_new_fields_decodes() -> None:
    assert codec.decode(b'{"id": "a", "total": 1, "gone": 2}', Order) == Order(id="a", total=1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),  # noqa: E501
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)  # fmt: skip
small_codecs = st.sampled_from([make(compress_above=size) for size in (0, 1, 40, 1024)])
texts = st.text() | st.text().map("Z:".__add__) | st.text("aZ:KLUv/Q=").map("Z:KLUv/".__add__)
blobs = st.binary() | st.binary().map(MAGIC.__add__) | texts.map(str.encode)


@settings(deadline=None)
@given(codec=small_codecs, form=st.sampled_from(Form), value=json_values, times=st.integers(1, 50))
def test_any_json_value_survives(codec: Codec, form: Form, value: Any, times: int) -> None:
    value = [value] * times
    assert codec.decode(codec.encode(value, form), Any, form) == value


@settings(deadline=None)
@given(codec=small_codecs, form=st.sampled_from(Form), value=texts, times=st.integers(1, 50))
def test_any_text_survives(codec: Codec, form: Form, value: str, times: int) -> None:
    value *= times
    assert codec.decode(codec.encode(value, form), str, form) == value


@settings(deadline=None)
@given(codec=small_codecs, form=st.sampled_from(Form), value=blobs, times=st.integers(1, 50))
def test_any_bytes_survive(codec: Codec, form: Form, value: bytes, times: int) -> None:
    value *= times
    assert codec.decode(codec.encode(value, form), bytes, form) == value


@settings(deadline=None)
@given(form=st.sampled_from(Form), data=st.binary())
def test_any_stored_bytes_decode_or_are_refused(form: Form, data: bytes) -> None:
    for mark in (b"", MAGIC, b"Z:KLUv/"):
        for type_ in (Any, Order, User, str, bytes):
            with contextlib.suppress(DecodeError):
                codec.decode(mark + data, type_, form)


# ---- compression


@FORMS
def test_only_more_than_the_threshold_is_compressed(form: Form) -> None:
    assert codec.encode("a" * 1024, form) == b"a" * 1024
    packed = codec.encode("a" * 1025, form)
    assert packed.startswith(b"Z:KLUv/" if form is Form.TEXT else MAGIC)
    assert len(packed) < 100


def test_what_compression_does_not_shrink_is_left_alone() -> None:
    noise = hashlib.shake_256(b"noise").digest(3000)
    assert codec.encode(noise, Form.BINARY) == noise
    text = base64.b64encode(noise)
    assert codec.encode(text, Form.TEXT) == text
    assert codec.encode(text, Form.BINARY) != text


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give the readers that the documentation offers to those who do not use Penstock."""
    page = Path(__file__).parents[3] / "docs" / "explanation" / "payloads.md"
    program = tmp_path_factory.mktemp("docs") / "readers.py"
    program.write_text(page.read_text().split("```python\n")[1].split("```")[0])
    return runpy.run_path(str(program))


@settings(deadline=None, max_examples=50)
@given(value=texts | blobs, times=st.integers(1, 2000))
def test_other_readers_need_to_know_only_how_compressed_values_begin(
    documented: dict[str, Any], value: str | bytes, times: int
) -> None:
    value *= times
    plain = value.encode() if isinstance(value, str) else value
    assert documented["read_text"](codec.encode(value, Form.TEXT)) == plain
    assert documented["read_binary"](codec.encode(value, Form.BINARY)) == plain
    codec.encode(value, Form.TEXT).decode()  # the text form is text


def test_a_text_that_looks_compressed_is_stored_compressed() -> None:
    stored = codec.encode("Z:hello", Form.TEXT)
    assert stored.startswith(b"Z:KLUv/")
    assert codec.decode(stored, str, Form.TEXT) == "Z:hello"
    assert codec.encode("Z:hello", Form.BINARY) == b"Z:hello"


def test_bytes_that_look_like_a_frame_are_stored_within_a_frame() -> None:
    frame = zstandard.compress(b"mine")
    stored = codec.encode(frame)
    assert zstandard.decompress(stored) == frame
    assert codec.decode(stored, bytes) == frame


def test_bytes_that_are_not_text_are_compressed_in_the_text_form() -> None:
    assert codec.encode(b"\xff", Form.TEXT).startswith(b"Z:KLUv/")
    assert codec.encode("ü".encode(), Form.TEXT) == "ü".encode()


def test_a_foreign_text_with_the_prefix_but_no_frame_is_plain_text() -> None:
    assert codec.decode(b"Z:hello", str, Form.TEXT) == "Z:hello"
    with pytest.raises(DecodeError, match="malformed"):
        codec.decode(b"Z:hello", dict, Form.TEXT)


@pytest.mark.parametrize(
    "stored",
    [
        b"Z:KLUv/",
        b"Z:KLUv/*not base64*",
        b"Z:KLUv/SAA",
        b"Z:" + base64.b64encode(zstandard.compress(b"{}")) + b"\n",
        b"Z:" + base64.b64encode(zstandard.compress(b"{}"))[:-4],
        b"Z:" + base64.b64encode(zstandard.compress(b"{}") + b"x"),
        b"Z:" + base64.urlsafe_b64encode(zstandard.compress(b"{}")),
    ],
)
@pytest.mark.parametrize("type_", [dict, str, bytes])
def test_damaged_compressed_text_is_refused_whatever_it_is_read_as(
    stored: bytes, type_: type
) -> None:
    if stored.startswith(b"Z:KLUv/"):
        with pytest.raises(DecodeError) as refused:
            codec.decode(stored, type_, Form.TEXT)
        assert refused.value.raw == stored
    else:
        assert stored.startswith(b"Z:KLUv_")  # the other alphabet: plain text to us


def test_threads_share_a_codec() -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        for round_ in range(50):
            value = f"{number}-{round_} " * 2000
            if codec.decode(codec.encode(value), str) != value:
                failures.append((number, round_))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_small_payloads_load_neither_zstd_nor_pydantic() -> None:
    program = """
import sys
from penstock.redis.codec import Codec
from penstock.settings import CodecSettings
codec = Codec(CodecSettings())
assert codec.decode(codec.encode({"a": None}), dict) == {"a": None}
assert not {"zstandard", "pydantic"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
