"""Signing keys: where they are read from, what is refused, and that no error shows them."""

import os
from base64 import b64encode
from pathlib import Path

import pytest
from tests.kit.signing import KEYS, NEW, OLD, signing

from penstock.delivery import signing as signatures
from penstock.delivery.signing import SigningKeys, add_key, read_keys
from penstock.errors import BadSignature, SettingError
from penstock.settings import Settings, SigningSettings

SECRET = "Q0FOQVJZ" * 6


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "signing.keys"

    def write(text, mode=0o600):
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write


def test_a_file_holds_one_key_per_line(keys_file):
    path = keys_file(f"# keys of the shop\n\n {OLD.replace('=', ' = ', 1)} \n{NEW}\n")
    assert read_keys(path) == {"old": b"o" * 32, "new": b"n" * 32}


def test_keys_are_made_in_a_file_for_its_owner_alone(tmp_path):
    path = str(tmp_path / "signing.keys")
    add_key(path, "k2026-11_18")
    assert Path(path).stat().st_mode & 0o777 == 0o600
    add_key(path, "second")
    keys = read_keys(path)
    assert list(keys) == ["k2026-11_18", "second"]
    assert {len(secret) for secret in keys.values()} == {32}
    assert len({*keys.values()}) == 2
    with pytest.raises(SettingError, match="an id that is not in"):
        add_key(path, "second")
    assert read_keys(path) == keys


def test_no_key_is_added_where_others_may_read_it(keys_file, tmp_path):
    path = keys_file(OLD, 0o644)
    with pytest.raises(SettingError, match="chmod 600"):
        add_key(path, "second")
    for place in (tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(SettingError):
            add_key(str(place), "second")


def test_a_new_key_goes_into_the_file_that_was_checked_alone(keys_file, tmp_path, monkeypatch):
    path, other = keys_file(OLD), tmp_path / "other"
    other.write_text("")
    parsed = signatures._parsed

    def exchanging(text, setting):
        other.replace(path)
        return parsed(text, setting)

    monkeypatch.setattr(signatures, "_parsed", exchanging)
    add_key(str(path), "later")
    assert not Path(path).read_text()


def test_keys_of_file_and_environment_are_used_together(keys_file):
    path = keys_file(OLD)
    settings = Settings.load(
        environ={
            "PENSTOCK_SIGNING_KEYS": NEW,
            "PENSTOCK_SIGNING_KEYS_FILE": path,
            "PENSTOCK_SIGNING_SIGN_WITH": "new",
            "PENSTOCK_SIGNING_SIGN": "mail, orders",
            "PENSTOCK_SIGNING_REQUIRE": "mail",
        }
    ).signing
    keys = SigningKeys.read(settings)
    by_old = SigningKeys.read(SigningSettings(keys=OLD, sign_with="old")).sign(b"x")
    for signature in (keys.sign(b"x"), by_old):
        keys.verify(signature, b"x", "it")
    with pytest.raises(BadSignature):
        keys.verify(keys.sign(b"x"), b"y", "it")
    assert [settings.signs(name) for name in ("mail", "orders", "other")] == [True, True, False]
    assert [settings.requires(name) for name in ("mail", "orders")] == [True, False]


def test_one_id_stands_for_one_secret(keys_file):
    path = keys_file(OLD)
    SigningKeys.read(SigningSettings(keys=OLD, keys_file=path, sign_with="old"))
    other = OLD.replace("b29v", "bm9v")
    for settings in (
        SigningSettings(keys=other, keys_file=path, sign_with="old"),
        SigningSettings(keys=f"{OLD},{other}", sign_with="old"),
    ):
        with pytest.raises(SettingError, match=r"signing\.keys") as refused:
            SigningKeys.read(settings)
        assert "b29v" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o620, 0o610])
def test_a_file_that_others_may_touch_is_refused_with_what_to_do(keys_file, mode):
    path = keys_file(OLD, mode)
    with pytest.raises(SettingError, match=f"chmod 600 {path}"):
        read_keys(path)


def test_a_file_of_another_user_is_refused(keys_file):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    path = keys_file(OLD)
    os.chown(path, 65534, 65534)
    with pytest.raises(SettingError, match="a file of this user"):
        read_keys(path)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    large = tmp_path / "large"
    large.touch(0o600)
    os.truncate(large, 1 << 30)
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "missing", large, "/dev/zero"):
        with pytest.raises(SettingError, match=r"signing\.keys_file"):
            read_keys(str(path))


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"id {SECRET}",
        f"={SECRET}",
        f"an id={SECRET}",
        f"é={SECRET}",
        f"../x={SECRET}",
        f"{'k' * 65}={SECRET}",
        f"short={SECRET[:40]}",
        f"id={SECRET}!",
        f"id={SECRET} {SECRET}",
        f"id={SECRET}\nid2",
        f"ok={SECRET},bad={SECRET}=",
    ],
)
def test_no_error_shows_a_secret(keys_file, text):
    path = keys_file(text)
    for settings in (
        SigningSettings(keys=text, sign_with="id"),
        SigningSettings(keys_file=path, sign_with="id"),
    ):
        with pytest.raises(SettingError) as refused:
            SigningKeys.read(settings)
        assert "Q0FO" not in str(refused.value)
        assert "Q0FO" not in repr(refused.value)


def test_no_text_shows_a_secret(tmp_path):
    settings = Settings(signing=SigningSettings(keys=f"id={SECRET}", sign_with="id", sign="all"))
    assert "Q0FO" not in repr(settings)
    assert "Q0FO" not in repr(SigningKeys.read(settings.signing))
    config = tmp_path / "penstock.toml"
    config.write_text(f'[signing]\nkeys = ["id={SECRET}"]\n')
    with pytest.raises(SettingError) as refused:
        Settings.load(config=config, environ={})
    assert "Q0FO" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"require": "mail"}, "signing.keys_file"),
        ({"sign": "mail", "sign_with": "old"}, "signing.keys_file"),
        ({"require": "mail", "keys": KEYS}, "signing.sign_with"),
        ({"require": "mail", "keys_file": "x"}, "signing.sign_with"),
    ],
)
def test_what_is_missing_to_sign_is_named(given, missing):
    with pytest.raises(SettingError) as refused:
        SigningSettings(**given)
    assert refused.value.name == missing


def test_the_key_that_signs_has_to_be_one_of_the_keys():
    with pytest.raises(SettingError, match=r"signing\.sign_with = 'third'"):
        SigningKeys.read(SigningSettings(**signing(sign_with="third")))


def test_keys_alone_sign_nothing():
    settings = SigningSettings(keys=b64encode(b"never read").decode())
    assert not settings.signs("mail")
    assert not settings.requires("mail")


@pytest.mark.parametrize("id_", ["", "a b", "a=b", "a:b", "a.b", "é", "x" * 65, "a\nb"])
def test_a_key_id_is_a_word(tmp_path, id_):
    with pytest.raises(SettingError):
        add_key(str(tmp_path / "signing.keys"), id_)
