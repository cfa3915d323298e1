"""The error tree: drawn, exported, honest about the outcome, able to travel between processes."""

import inspect
import pickle
import re

import pytest

from penstock import errors
from penstock.errors import Outcome, OutcomeUnknown, PenstockError, Rejected, ServerError
from penstock.interfaces.cli.output import ExitCode, exit_code

CLASSES = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, PenstockError)
]


def drawn_tree():
    """Each error class with its parent, as the drawing at the top of the module has them."""
    parents = {}
    line_of = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s|$)", line)
        if not found or (not found[1] and found[2] != "PenstockError"):
            continue
        depth, name = len(found[1]) // 4, found[2]
        line_of[depth:] = [name]
        parents[name] = line_of[depth - 1] if depth else None
    return parents


def test_the_drawing_shows_every_error_under_its_parent():
    drawn = drawn_tree()
    assert set(drawn) == {member.__name__ for member in CLASSES}
    for member in CLASSES:
        if parent := drawn[member.__name__]:
            assert member.__bases__[0].__name__ == parent


def test_every_error_is_exported_by_its_module():
    assert {member.__name__ for member in CLASSES} <= set(errors.__all__)


def test_every_error_names_the_module_that_it_is_imported_from():
    kinds = [getattr(errors, name) for name in errors.__all__]
    assert {kind.__module__ for kind in kinds} == {"penstock.errors"}
    assert pickle.loads(pickle.dumps(kinds)) == kinds  # noqa: S301


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, Rejected)])
def test_a_rejection_says_that_nothing_happened(kind):
    assert kind("why").outcome is Outcome.REJECTED


def test_an_unknown_outcome_is_not_a_rejection():
    assert OutcomeUnknown("lost").outcome is Outcome.UNKNOWN
    assert not issubclass(OutcomeUnknown, Rejected)
    assert issubclass(OutcomeUnknown, ServerError)


@pytest.mark.parametrize(
    "error",
    [
        errors.SettingError("pools.cache", 0, "a whole number from 1"),
        errors.InvalidName("topic", "a:b", "':' is not allowed"),
        errors.DecodeError("not JSON", b"\xff"),
        errors.OutOfMemory("OOM command not allowed"),
        errors.TooMany("feeds", 10, "feeds.most"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_with_their_facts(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert str(copy) == str(error)


def test_a_long_name_is_shortened_in_the_message():
    message = str(errors.InvalidName("topic", "x" * 70_000, "too long"))
    assert len(message) < 200


def test_a_decode_error_keeps_the_bytes_but_shows_them_nowhere():
    error = errors.InflationRefused("too large", b"canary-4711")
    assert error.raw == b"canary-4711"
    assert "canary" not in f"{error} {error!r}"


def test_too_many_says_what_is_limited_and_by_which_setting():
    error = errors.TooMany("feeds", 10, "feeds.most")
    assert (error.what, error.limit, error.setting) == ("feeds", 10, "feeds.most")
    assert "at most 10 feeds" in str(error)
    assert "feeds.most" in str(error)
    assert exit_code(error) is ExitCode.FOUND
