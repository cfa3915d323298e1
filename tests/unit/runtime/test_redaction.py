"""Secrets out of errors: all spellings, nothing else, in linear time."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kit.secret_spellings import CANARY, ORDINARY, SPELLINGS, planted

from penstock.delivery.failures import Failure
from penstock.redaction import is_secret_name, redacted
from penstock.runtime.logs import cleaned

SIGNS = [*"=:;,.@/?&%\\ \n\t\"'`()[]{}<>-_…x7A", "://", '\\"', "\\n", "sk-", "eyJ", "AUTH ", "key"]
WORDS = ["password", "token", "api_key", "secret", "Authorization: Bearer ", "Cookie: ", "AKIA"]
WORDS += ["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "--password ", "http", "sig="]


@pytest.mark.parametrize("text", planted(), ids=SPELLINGS)
def test_a_secret_is_hidden_however_it_is_spelled(text):
    for written in (text, f"RuntimeError: {text}", repr(text), json.dumps({"error": text})):
        assert CANARY not in redacted(written)
        assert CANARY not in cleaned(written)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_readable(text):
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://app:s3cret@db:5432/shop?a=1", "postgresql://app:…@db:5432/shop?a=1"),
        ("Authorization: Bearer s3cretly, then", "Authorization: Bearer …, then"),
        ('{"password": "a\\"b", "user": "u"}', '{"password": "…", "user": "u"}'),
        ("password='x y' host=h", "password='…' host=h"),
        ("?a=1&key=k&b=2", "?a=1&key=…&b=2"),
        ("AccountName=n;AccountKey=k==;E=x", "AccountName=n;AccountKey=…;E=x"),
        ("AUTH default pw", "AUTH default …"),
        ("password=[1, 2], user=u", "password=[…], user=u"),
    ],
)
def test_what_stands_around_a_secret_stays(text, shown):
    assert redacted(text) == shown


@given(st.lists(st.sampled_from([*SIGNS, *WORDS, *SPELLINGS]), max_size=30).map("".join))
@example("password='\n\n\n'x'")
@example('password=["(')
def test_redacting_twice_changes_nothing_more(text):
    once = redacted(text)
    assert redacted(once) == once
    safe = cleaned(text)
    assert cleaned(safe) == safe


@given(st.text())
def test_any_text_is_redacted_without_an_error(text):
    assert isinstance(redacted(text), str)


@given(
    st.sampled_from(SPELLINGS[:4] + SPELLINGS[12:14]),
    st.text("abcXYZ0189-_.~$!*", min_size=8, max_size=30).filter(
        lambda text: (text[0] + text[-1]).isalnum()
    ),
)
def test_no_part_of_a_generated_secret_is_left(spelling, secret):
    around = redacted(spelling.replace("CANARY", "Placeh0lder"))
    assert redacted(spelling.replace("CANARY", secret)) == around


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "://a", "a://u:p@,", "://u:\n", "http://a@", "%3A%2F%2Fa%3A", "password=", "key"),
        *("password='", 'password="\\"\n', "password=[\n", "password=[ password='(", "password=\\"),
        *(
            'password=\\\\\\"\\"',
            "password=…",
            "password=)",
            "password=…",
            "password=,a",
            "password=a'b",
            "password='\n\n\n",
        ),
        *("sk-", "eyJa.", "AUTH a ", "-----BEGIN PRIVATE KEY-----", "-----", "--password ", "\\"),
        *(
            "'cookie: a",
            '"authorization: digest "',
            "://u:a '",
            "redis-cli ",
            "curl -u a",
            "sshpass",
        ),
        *(
            "password value",
            "password: |\n ",
            "&quot;",
            "hooks.slack.com/services/a",
            "<password a",
        ),
        *("Cookie: ", "(b'password',", "<password>", "bearer aaaaaa ", "SETUSER >", "İpassword="),
    ],
)
def test_a_megabyte_of_hostile_text_takes_linear_time(piece):
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    redacted(text)
    assert time.process_time() - started < 3


def test_a_usual_error_takes_little_time():
    text = (
        'connection to server at "db.internal" (10.0.0.5), port 5432 failed: timeout expired while '
        "waiting for row key=42 of table orders in transaction 17"
    )
    started = time.process_time()
    for _ in range(1_000):
        redacted(text)
    assert (time.process_time() - started) / 1_000 < 100e-6  # some 15 µs on an idle machine


@pytest.mark.parametrize("name", ["password", "DB_PASSWORD", "x-api-key", "access_token", "Cookie"])
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["password_file", "tokens", "key", "monkey", "author", "design"])
def test_names_of_no_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize("text", planted(), ids=SPELLINGS)
def test_a_stored_failure_has_no_secret_in_message_and_stack(text):
    failure = Failure.of(_raised(text), 1, 0)
    assert CANARY not in failure.message + failure.stack


def test_a_secret_that_would_be_cut_is_hidden_first():
    failure = Failure.of(_raised("x" * 990 + f" password={CANARY * 10}"), 1, 0)
    assert CANARY[:4] not in failure.message
    key = "-----BEGIN PRIVATE KEY-----\n" + f"{CANARY}\n" * 500 + "-----END PRIVATE KEY-----"
    assert CANARY not in Failure.of(_raised(key), 1, 0).stack


def test_a_failure_is_as_it_was_raised_if_that_is_asked_for():
    failure = Failure.of(_raised(f"password={CANARY}"), 1, 0, redacts=False)
    assert CANARY in failure.message
    assert CANARY in failure.stack


def test_the_fingerprint_of_a_bug_does_not_depend_on_redaction():
    shown = Failure.of(_raised("password=a1"), 1, 0)
    assert Failure.of(_raised("password=b2"), 1, 0, redacts=False).fingerprint == shown.fingerprint


def _raised(text: str) -> Exception:
    try:
        _fail(text)
    except RuntimeError as error:
        return error
    raise AssertionError


def _fail(text: str) -> None:
    raise RuntimeError(text)
