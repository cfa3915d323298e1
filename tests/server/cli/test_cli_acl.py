"""`penstock acl`: what it prints is taken by a server as it stands, and lets the program in."""

import hashlib
import shlex

import pytest
from tests.kit.acl_users import known_to
from tests.kit.shell import refused

from penstock.redis.address import parse_address
from penstock.redis.client import Client
from penstock.redis.keys.space import KeySpace
from penstock.settings import Settings

PASSWORD = "correct horse, battery: staple"


@pytest.fixture
def acl(open_shell, tmp_path):
    """`acl("--role", "reader")` runs the command beside a file `secret` with a password."""
    (tmp_path / "secret").write_text(f"{PASSWORD}\n")
    shell = open_shell()
    return lambda *options, **more: shell("acl", *options, **more)


def line_of(done):
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    return line.split(" ")


@pytest.mark.parametrize("role", ["producer", "worker", "operator", "reader"])
async def test_the_line_makes_a_user_that_a_program_connects_as(any_server, acl, namespace, role):
    name = f"{role}-{namespace}"
    known = known_to(any_server.binary)
    options = ("--role", role, "--user", name, "--password-file", "secret", "--server", known)
    assert any_server.command(*line_of(acl(*options))) == "OK"
    settings = Settings(
        url=f"redis://127.0.0.1:{any_server.port}",
        username=name,
        password=PASSWORD,
        namespace=namespace,
    )
    async with Client(settings) as client:
        assert await client.call("GET", f"{client.keys.prefix}key") is None
        assert await client.call("ACL", "WHOAMI") == name.encode()
    any_server.command("ACL", "DELUSER", name)


def test_without_a_password_an_existing_one_stays(valkey_server, acl, namespace):
    name = f"reader-{namespace}"
    options = ("--role", "reader", "--user", name)
    done = acl(*options)
    assert "no password yet" in done.stderr
    valkey_server.command("ACL", "SETUSER", name, ">earlier")
    assert valkey_server.command(*line_of(done)) == "OK"
    assert valkey_server.command("AUTH", name, "earlier") == "OK"
    with_other = acl(*options, "--password-file", "-", stdin="later")
    assert valkey_server.command(*line_of(with_other)) == "OK"
    assert valkey_server.command("AUTH", name, "later") == "OK"
    facts = valkey_server.command("ACL", "GETUSER", name)
    assert len(facts[facts.index("passwords") + 1]) == 1
    valkey_server.command("ACL", "DELUSER", name)


def test_a_line_of_an_acl_file_lets_a_server_start(start_server, acl, tmp_path):
    done = acl("--role", "worker", "--password-file", "secret", "--file")
    users = tmp_path / "users.acl"
    users.write_text(f"user default on nopass ~* &* +@all\n{' '.join(line_of(done))}\n")
    server = start_server("valkey", "--aclfile", str(users))
    assert server.command("AUTH", "penstock-worker", PASSWORD) == "OK"


def test_the_password_is_printed_as_its_digest_alone(acl):
    digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
    for form in ((), ("--file",), ("--json",)):
        done = acl("--role", "worker", "--password-file", "secret", *form)
        assert f"#{digest}" in done.stdout
        assert "horse" not in done.stdout + done.stderr


def test_a_password_file_is_read_as_programs_read_it(acl, tmp_path):
    path = tmp_path / "foreign"
    path.write_bytes(b"s3cret\r\n")
    credentials = parse_address("redis://cache", Settings(password_file=str(path))).credentials
    digest = hashlib.sha256(credentials.password.encode()).hexdigest()
    assert f"#{digest}" in line_of(acl("--role", "worker", "--password-file", "foreign"))


def test_the_namespace_is_that_of_the_settings_unless_another_is_given(acl, namespace):
    own = KeySpace(namespace).prefix
    assert f"~{own}*" in line_of(acl("--role", "reader"))
    other = acl("--role", "reader", "--namespace", "other")
    assert f"~{KeySpace('other').prefix}*" in line_of(other)
    assert "every key" not in other.stderr


def test_a_user_for_every_key_is_named_as_such(acl):
    done = acl("--role", "reader", "--namespace", "")
    assert "~*" in line_of(done)
    assert "every key" in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("", 2, "--role"),
        ("--role admin", 2, "producer"),
        ("--role worker --user default", 1, "everybody"),
        ("--role worker --user 'a b'", 1, "user name"),
        ("--role worker --namespace 'a*'", 1, "namespace"),
        ("--role worker --password-file nowhere", 2, "nowhere"),
        ("--role worker --password-file empty", 2, "not empty"),
        ("--role worker --server 5.0", 2, "6.2"),
    ],
)
def test_what_cannot_be_is_refused(acl, tmp_path, options, code, words):
    (tmp_path / "empty").touch()
    assert refused(acl(*shlex.split(options)), code, words)
