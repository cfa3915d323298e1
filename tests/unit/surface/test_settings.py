"""Settings: one order, checked where they are made, refused with name, value and range."""

import dataclasses
import os
import pickle
import re
from pathlib import Path

import pytest

import penstock
from penstock.errors import ConfigError, SettingError
from penstock.settings import PoolSettings, Settings
from penstock.settings.reading import is_secret, names_of


def load(tmp_path, *, toml="", environ=None, **arguments):
    path = tmp_path / "penstock.toml"
    path.write_text(toml)
    named = {name.replace("__", "."): value for name, value in arguments.items()}
    return Settings.load(named, config=path, environ=environ or {})


def test_defaults_are_the_documented_ones():
    settings = Settings()
    pools = settings.pools
    assert (pools.cache, pools.queue, pools.pubsub, pools.ratelimit) == (20, 15, 10, 10)
    assert (settings.retry.base_s, settings.retry.max_s, settings.retry.tries) == (1.0, 30.0, 3)


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path):
    toml = "[pools]\ncache = 1\nqueue = 1\nratelimit = 1\n"
    environ = {"PENSTOCK_POOLS_CACHE": "2", "PENSTOCK_POOLS_QUEUE": "2"}
    settings = load(tmp_path, toml=toml, environ=environ, pools__cache=3)
    assert (settings.pools.cache, settings.pools.queue, settings.pools.ratelimit) == (3, 2, 1)


def test_an_argument_of_none_counts_as_not_given(tmp_path):
    assert load(tmp_path, environ={"PENSTOCK_URL": "redis://a"}, url=None).url == "redis://a"


def test_the_file_named_by_the_environment_is_read(tmp_path):
    path = tmp_path / "other.toml"
    path.write_text('namespace = "shop"\n')
    assert Settings.load(environ={"PENSTOCK_CONFIG": str(path)}).namespace == "shop"


def test_a_file_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "penstock.toml").write_text("[retry]\ntries = 9\n")
    monkeypatch.chdir(tmp_path)
    assert Settings.load(environ={}).retry.tries == 9


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("pools.cache", 0, "a whole number from 1 to 10000"),
        ("pools.cache", 1.5, "a whole number from 1 to 10000"),
        ("pools.cache", True, "a whole number from 1 to 10000"),
        ("pools.cache", "many", "a whole number from 1 to 10000"),
        ("timeouts.connect_s", 0, "a number above 0 to 86400"),
        ("timeouts.connect_s", "nan", "a number above 0 to 86400"),
        ("embedded.port", 65536, "a whole number from 0 to 65535"),
        ("embedded.maxmemory", "lots", "a text like"),
        ("log.level", "loud", "one of debug, info, warning, error"),
        ("log.format", "", "one of human, json"),
        ("tls.check_hostname", "perhaps", "true or false"),
        ("worker.heartbeat_s", 20, "less than worker.heartbeat_ttl_s (15.0)"),
        ("retry.base_s", 31, "at most retry.max_s (30.0)"),
        ("namespace", 5, "a text"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_the_value_and_the_range(
    tmp_path, name, value, expected
):
    with pytest.raises(SettingError) as refused:
        load(tmp_path, **{name.replace(".", "__"): value})
    assert refused.value.name == name
    assert repr(value) in str(refused.value) or float(value) == float(refused.value.value)
    assert expected in str(refused.value)


def test_groups_check_themselves_without_a_loader():
    with pytest.raises(SettingError, match=r"pools\.cache = -1"):
        PoolSettings(cache=-1)


@pytest.mark.parametrize(
    ("arguments", "environ", "hint"),
    [
        ({"pools__cahce": 1}, {}, "did you mean pools.cache?"),
        ({}, {"PENSTOCK_POOLS_CAHCE": "1"}, "did you mean PENSTOCK_POOLS_CACHE?"),
        ({"nonsense": 1}, {}, "a known setting"),
    ],
)
def test_an_unknown_setting_is_refused_with_a_suggestion(tmp_path, arguments, environ, hint):
    with pytest.raises(SettingError) as refused:
        load(tmp_path, environ=environ, **arguments)
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("pools = ", "not valid TOML"),
        ("[pools]\ncache = 1\ncache = 2\n", "not valid TOML"),
        ("[nowhere]\nx = 1\n", "nowhere.x"),
        ("[pools.deeper]\nx = 1\n", "pools.deeper"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, toml, words):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, toml=toml)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_that_was_named_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        Settings.load(config=tmp_path / "absent.toml", environ={})


def test_secrets_are_in_no_repr_and_no_error(tmp_path):
    secret = "canary-4711"
    settings = load(tmp_path, url=f"redis://u:{secret}@h", password=secret)
    assert secret not in repr(settings)
    for name in ("url", "password", "sentinel_password"):
        with pytest.raises(SettingError) as refused:
            load(tmp_path, **{name: [secret]})
        assert secret not in str(refused.value)
    with pytest.raises(SettingError, match="sentinel_password") as refused:
        load(tmp_path, toml=f'sentinel_paswword = "{secret}"')
    assert secret not in str(refused.value)


def test_every_setting_is_read_somewhere():
    src = Path(penstock.__file__).parent
    modules = [path for path in src.rglob("*.py") if "settings" not in path.parts]
    attributes = set(re.findall(r"\.(\w+)", "\n".join(map(Path.read_text, modules))))
    for group in dataclasses.fields(Settings):
        default = getattr(Settings(), group.name)
        names = dataclasses.fields(default) if dataclasses.is_dataclass(default) else [group]
        if group.name != "pools":  # read by the names of roles
            assert {one.name for one in names} <= attributes, group.name


def test_settings_are_values():
    made = Settings(pools=PoolSettings(cache=3))
    assert made == Settings(pools=PoolSettings(cache=3)) != Settings()
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))  # noqa: S301
    assert dataclasses.replace(made, url="redis://a").pools.cache == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.url = "redis://b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.pools
    with pytest.raises(TypeError, match="PoolSettings has no setting 'cahce'"):
        PoolSettings(cahce=3)


# ---- secrets


SECRET_LIKE = re.compile(r"password|secret|token|api_?key|credential|(^|\.)url$", re.IGNORECASE)


def test_every_setting_with_the_name_of_a_secret_is_one_by_type():
    named = {name for name in names_of(Settings) if SECRET_LIKE.search(name)} - {"password_file"}
    assert named <= {name for name, kind in names_of(Settings).items() if is_secret(kind)}


@pytest.mark.parametrize("value", [123_456_789, ["C4nary", ["C4nary"]], {"a": "C4nary"}, 4.5, True])
def test_no_error_shows_a_value_of_a_secret_setting(value):
    for name, kind in names_of(Settings).items():
        if is_secret(kind):
            with pytest.raises(SettingError) as refused:
                Settings.load({name: value}, environ={})
            for text in (str(refused.value), repr(refused.value)):
                assert repr(value) not in text
                assert "C4nary" not in text


def test_no_repr_shows_a_value_of_a_secret_setting():
    secrets = {
        name: f"C4nary{name}" for name, kind in names_of(Settings).items() if is_secret(kind)
    }
    assert "C4nary" not in repr(Settings.load(secrets, environ={}))


# ---- a file that was found in the working directory


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "penstock.toml").write_text('url = "redis://127.0.0.1:1"\n')
    (tmp_path / "penstock.toml").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("part", "mode"), [(".", 0o777), (".", 0o770), ("penstock.toml", 0o622)])
def test_a_file_that_others_can_write_is_refused_with_what_to_type(folder, part, mode):
    (folder / part).chmod(mode)
    changed = folder if part == "." else folder / part
    with pytest.raises(ConfigError, match=f"chmod go-w {changed}, or name it with --config"):
        Settings.load(environ={})
    assert Settings.load(config="penstock.toml", environ={}).url
    assert Settings.load(environ={"PENSTOCK_CONFIG": "penstock.toml"}).url


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("part", [".", "penstock.toml"])
def test_a_file_of_another_user_is_refused(folder, part):
    os.chown(folder / part, 65534, 65534)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid 65534\); if it is meant"):
        Settings.load(environ={})


def test_a_link_into_a_folder_that_others_can_write_is_refused(folder):
    shared = folder / "shared"
    shared.mkdir()
    (folder / "penstock.toml").rename(shared / "theirs.toml")
    (folder / "penstock.toml").symlink_to(shared / "theirs.toml")
    assert Settings.load(environ={}).url
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match=f"other users can write {shared}"):
        Settings.load(environ={})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_fifo_of_another_user_is_refused_without_waiting_for_its_writer(folder):
    (folder / "penstock.toml").unlink()
    os.mkfifo(folder / "penstock.toml")
    os.chown(folder / "penstock.toml", 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        Settings.load(environ={})


def test_a_link_to_nowhere_is_refused_like_a_file_that_cannot_be_read(folder):
    (folder / "penstock.toml").unlink()
    (folder / "penstock.toml").symlink_to(folder / "gone")
    with pytest.raises(ConfigError, match="No such file"):
        Settings.load(environ={})


def test_the_use_of_a_found_file_is_logged_once(folder, caplog):
    caplog.set_level("INFO", "penstock.settings")
    Settings.load(environ={})
    Settings.load(environ={})
    Settings.load(config="penstock.toml", environ={})
    (line,) = caplog.messages
    assert line == f"settings come from {folder}/penstock.toml, the file of the working directory"


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        ({}, {"PENSTOCK_PASSWORD": "C4nary"}),
        ({}, {"PENSTOCK_PASSWORD_FILE": "/etc/penstock/password"}),
        ({}, {"PENSTOCK_SENTINEL_PASSWORD": "C4nary"}),
        ({"password": "C4nary"}, {}),
    ],
)
def test_a_password_is_not_sent_to_the_address_of_a_found_file(folder, arguments, environ):
    with pytest.raises(ConfigError, match="is not sent to the url of") as refused:
        Settings.load(arguments, environ=environ)
    assert "C4nary" not in str(refused.value)
    assert Settings.load(arguments, config="penstock.toml", environ=environ).url
    assert Settings.load({**arguments, "url": "redis://x"}, environ=environ).url == "redis://x"
    (folder / "penstock.toml").write_text('namespace = "shop"\n')
    assert Settings.load(arguments, environ=environ).namespace == "shop"


def test_an_api_key_is_not_sent_to_the_address_of_a_found_file(folder):
    (folder / "penstock.toml").write_text('[vectors]\nurl = "http://127.0.0.1:1"\n')
    with pytest.raises(ConfigError, match=r"vectors\.api_key is not sent to the vectors\.url of"):
        Settings.load(environ={"PENSTOCK_VECTORS_API_KEY": "k"})


def test_a_file_with_its_own_password_counts_as_a_whole(folder):
    (folder / "penstock.toml").write_text('url = "redis://127.0.0.1:1"\npassword = "p"\n')
    assert Settings.load(environ={}).password == "p"


@pytest.mark.parametrize("named", ["/etc/shadow", "../id_rsa", "link"])
def test_the_contents_of_any_file_are_not_sent_to_the_address_of_a_found_file(folder, named):
    found = folder / "penstock.toml"
    (folder / "link").symlink_to(folder.parent / "id_rsa")
    found.write_text(f'url = "redis://127.0.0.1:1"\npassword_file = "{named}"\n')
    with pytest.raises(ConfigError, match="password_file is not sent to the url of"):
        Settings.load(environ={})
    assert Settings.load(config=found, environ={}).password_file == named
    assert Settings.load(environ={"PENSTOCK_URL": "redis://x"}).password_file == named
    found.write_text('url = "redis://127.0.0.1:1"\npassword_file = "secret/password"\n')
    assert Settings.load(environ={}).password_file == "secret/password"


@pytest.mark.parametrize("line", ['password = "p"', 'url = "redis://u:p@h"', "vectors.api_key = 1"])
def test_a_file_with_a_secret_is_for_its_user_alone(tmp_path, caplog, line):
    path = tmp_path / "own.toml"
    path.write_text(f"{line}\n")
    path.chmod(0o646)
    with pytest.raises(ConfigError, match=f"every user can write it: chmod 600 {path}"):
        Settings.load(config=path, environ={})
    path.chmod(0o644)
    try:
        Settings.load(config=path, environ={})
    except SettingError:
        assert "api_key" in line
    assert f"every user can read it: chmod 600 {path}" in caplog.text
    assert "redis://" not in caplog.text


def test_a_file_without_a_secret_may_be_read_by_all(tmp_path, caplog):
    path = tmp_path / "own.toml"
    path.write_text('url = "redis://h"\n')
    path.chmod(0o644)
    assert Settings.load(config=path, environ={}).url == "redis://h"
    assert not caplog.records
