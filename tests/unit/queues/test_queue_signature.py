"""Arguments of tasks: checked when sent, typed when received, and the same at both ends."""

import dataclasses
import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, NewType
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from penstock.delivery.injected import INJECTED, Depends
from penstock.errors import ConfigError, DecodeError, InvalidJob
from penstock.queues.signature import Signature, encode_value
from penstock.queues.worker.job_context import JobContext

Cents = NewType("Cents", int)


class Order(msgspec.Struct):
    number: int
    tags: list[str] = []


@dataclasses.dataclass
class Place:
    city: str


class Person(pydantic.BaseModel):
    name: str


def of(function: Callable[..., Any]) -> Signature:
    return Signature(function, "tests.task")


def there_and_back(signature, *args, **kwargs):
    sent = signature.encode(args, kwargs)
    return signature.decode(*map(Raw, sent))


def kinds(a, /, b: int, *rest: int, c: str, d: float = 1.0, **extra: bool):
    return a, b, rest, c, d, extra


def test_every_kind_of_parameter_comes_back_as_it_was_sent():
    args, kwargs = there_and_back(of(kinds), "x", 2, 3, 4, c="c", e=True)
    assert kinds(*args, **kwargs) == ("x", 2, (3, 4), "c", 1.0, {"e": True})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("x",), {"c": "c"}),
        (("x", 2), {}),
        (("x", 2), {"c": "c", "a": 1, "b": 5}),
        ((), {"a": 1, "b": 2, "c": "c"}),
    ],
)
def test_what_the_function_could_not_be_called_with_is_refused_at_both_ends(args, kwargs):
    with pytest.raises(InvalidJob, match=r"tests\.task"):
        of(kinds).check(args, kwargs)
    with pytest.raises(DecodeError):
        of(kinds).decode(Raw(encode_value(args)), Raw(encode_value(kwargs)))


def typed(
    order: Order,
    place: Place,
    person: Person,
    when: datetime,
    key: UUID,
    price: Cents,
    raw: bytes,
    maybe: str | None = None,
    pair: tuple[int, str] = (1, ""),
): ...


def test_values_are_built_as_the_annotations_say():
    sent = (
        Order(1, ["a"]),
        Place("Rome"),
        Person(name="Ada"),
        datetime(2026, 1, 1, tzinfo=UTC),
        UUID(int=5),
        Cents(3),
        b"\x00\xff",
        None,
        (4, "x"),
    )
    assert there_and_back(of(typed), *sent) == (sent, {})
    names = [field for field in typed.__annotations__ if field != "return"]
    by_name = dict(zip(names, sent, strict=True))
    assert there_and_back(of(typed), **by_name) == ((), by_name)


def annotated(count: Annotated[int, msgspec.Meta(ge=0)], names: list[str]): ...


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (b"[-1,[]]", b"{}"),
        (b'["1",[]]', b"{}"),
        (b"[true,[]]", b"{}"),
        (b"[1]", b'{"names":[1]}'),
        (b"[1,[]]", b'{"other":1}'),
        (b"[1,[],2]", b"{}"),
        (b"{}", b"{}"),
        (b"[1,[]]", b"[]"),
        (b"null", b"{}"),
        (b"[1,[]", b"{}"),
        (b"[1,[]]x", b"{}"),
        (b"[NaN,[]]", b"{}"),
        (b"\xff", b"{}"),
        (b"[1,[]]", b'{"names":["secret"]}'),
        (b"[" * 100_000, b"{}"),
        (b"[" + b"[" * 1000 + b"]" * 1000 + b",[]]", b"{}"),
        (b"[1]", b'{"names":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    ],
)
def test_what_others_wrote_is_read_or_refused_and_never_shown(args, kwargs):
    with pytest.raises(DecodeError) as refused:
        of(annotated).decode(Raw(args), Raw(kwargs))
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_the_number_of_arguments_may_change_from_job_to_job():
    def many(*numbers: int): ...

    signature = of(many)
    for count in (3, 0, 5, 100, 3, 40, 1):
        assert there_and_back(signature, *range(count)) == (tuple(range(count)), {})
    with pytest.raises(DecodeError):
        signature.decode(Raw(b'["a"]'), Raw(b"{}"))
    with pytest.raises(DecodeError):
        signature.decode(Raw(b"[" + b"1," * 99 + b'"a"]'), Raw(b"{}"))


def test_defaults_are_the_functions_own_business():
    def greet(name: str, lang: str = "en"): ...

    assert there_and_back(of(greet), "Ada") == (("Ada",), {})
    assert there_and_back(of(greet), "Ada", lang="de") == (("Ada",), {"lang": "de"})


# ---- what is handed in


def get_db() -> str:
    return "db"


def with_context_first(job: JobContext, a: int, b: int = 2): ...


def with_context_last(a: int, b: int = 2, *, job: JobContext): ...


def with_context_between(a: int, job: JobContext, b: int = 2): ...


def with_db(a: int, db: Annotated[str, Depends(get_db)] = INJECTED): ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (with_context_first, ((), {"a": 1, "b": 3})),
        (with_context_last, ((1, 3), {})),
        (with_context_between, ((1,), {"b": 3})),
    ],
)
def test_a_job_context_is_not_sent_wherever_it_stands(function, expected):
    signature = of(function)
    assert signature.context == "job"
    assert there_and_back(signature, 1, 3) == expected
    args, kwargs = there_and_back(signature, 1, 3)
    function(*args, **kwargs, job=None)
    with pytest.raises(InvalidJob):
        signature.check((1,), {"job": 1})


def test_what_is_made_for_the_function_is_not_sent():
    signature = of(with_db)
    assert signature.injected == {"db"}
    assert there_and_back(signature, 1) == ((1,), {})
    with pytest.raises(InvalidJob):
        signature.check((1, "mine"), {})


def test_an_optional_context_is_one_too():
    def maybe(a: int, job: JobContext | None = None): ...

    assert of(maybe).context == "job"


def test_functions_that_nobody_could_call_by_a_queue_are_refused_when_declared():
    def two(a: JobContext, b: JobContext): ...
    def only_by_place(job: JobContext, /): ...
    def rest_after(job: JobContext, *rest: int): ...
    def unknown_type(a: Order | Place): ...
    def generator():
        yield

    async def async_generator():
        yield

    for function in (two, only_by_place, rest_after, unknown_type, generator, async_generator, 5):
        with pytest.raises((ConfigError, TypeError)):
            of(function)


def test_annotations_that_cannot_be_read_are_told():
    def later(a: "NotThere"): ...  # noqa: F821  that is the point

    with pytest.raises(ConfigError, match="NotThere"):
        of(later)


def test_partials_and_objects_have_signatures_as_well():
    class Greeter:
        async def __call__(self, name: str) -> str:
            return name

    signature = of(Greeter())
    assert signature.is_async
    assert signature.result_type is str
    assert there_and_back(signature, "a") == (("a",), {})
    bound = of(functools.partial(kinds, "x", c="c"))
    assert there_and_back(bound, 2) == ((2,), {})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=20,
)


def anything(*args, **kwargs): ...


@given(st.lists(json_values, max_size=10), st.dictionaries(st.text("abcxyz"), json_values))
def test_any_json_comes_back_as_it_was(args, kwargs):
    assert there_and_back(of(anything), *args, **kwargs) == (tuple(args), kwargs)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_arguments_or_a_decode_error(args, kwargs):
    try:
        values, named = of(kinds).decode(Raw(args), Raw(kwargs))
    except DecodeError:
        return
    of(kinds).check(values, named)


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], object(), {1: {object()}}, "\ud800", {"a": {2j}}]
)
def test_what_json_has_no_form_for_is_refused(value):
    with pytest.raises(InvalidJob):
        encode_value([value])


def test_what_nests_too_deep_is_refused():
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(InvalidJob, match="nest"):
        encode_value(deep)


# ---- members of one name


def untyped(value, other=None, third=None, *, named=None): ...
def of_order(value: Order, other: Any = None): ...
def place(value: Place): ...
def model(value: Person): ...
def lists(value: list[Order]): ...
def between(value: Order, job: JobContext, last: int = 1): ...


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (untyped, b'[{"a":1,"b":[{"a":2}]}]', b'[{"a":1,"b":[{"a":2,"a":3}]}]'),
        (untyped, b'[ {"a" : 1.50} ]', b'[ {"a" : 1.50, "a": 1.5} ]'),
        (untyped, b'["a:b:c",{"a":1},{"a":2}]', b'["a:b:c",{"a":1,"\\u0061":2}]'),
        (of_order, b'[{"number":1,"tags":["a:b"]}]', b'[{"number":1,"number":2}]'),
        (of_order, b'[{"number":1}]', b'[{"number":1,"other":1,"other":1}]'),
        (place, b'[{"city":"Oslo"}]', b'[{"city":"Oslo","city":"Rome"}]'),
        (model, b'[{"name":"Ada"}]', b'[{"name":"Bob","name":"Ada"}]'),
        (lists, b'[[{"number":1},{"number":2}]]', b'[[{"number":1},{"number":2,"number":3}]]'),
        (between, b'[{"number":1},2]', b'[{"number":0,"number":1},2]'),
    ],
)
def test_no_arguments_hide_a_second_member_of_one_name(function, good, bad):
    signature = of(function)
    first = signature.decode(good, Raw(b"{}"))
    for _ in range(3):  # a usual call is read in a way of its own
        with pytest.raises(DecodeError, match="two members of one name"):
            signature.decode(bad, Raw(b"{}"))
        assert signature.decode(good, Raw(b"{}")) == first
    with pytest.raises(DecodeError):
        of(function).decode(bad, Raw(b"{}"))


def test_no_named_argument_hides_a_second_member_of_one_name():
    signature = of(untyped)
    for kwargs in (b'{"named":1,"named":2}', b'{"named":{"a":1,"a":2}}'):
        with pytest.raises(DecodeError, match="two members of one name"):
            signature.decode(b"[1]", Raw(kwargs))


def test_a_call_that_is_at_fault_does_not_slow_down_the_usual_ones():
    signature = of(of_order)
    good, nothing = b'[{"number":1,"tags":[]}]', Raw(b"{}")
    signature.decode(good, nothing)
    usual = signature._read_usual
    with pytest.raises(DecodeError):
        signature.decode(b'[{"number":"one"}]', nothing)
    assert signature._read_usual is usual is not None


@pytest.mark.parametrize("args", [b"[]", b"[1,2,3]"])
def test_a_usual_call_with_other_values_than_it_takes_is_refused(args):
    signature = of(of_order)
    signature.decode(b'[{"number":1}]', Raw(b"{}"))
    with pytest.raises(DecodeError):
        signature.decode(args, Raw(b"{}"))
