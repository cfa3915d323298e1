"""The command line as a person or a script meets it: through a real process."""

import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kit.patience import patient
from tests.kit.shell import Shell

from penstock.redis.embedded.binary import find_jemalloc
from penstock.redis.embedded.server import Embedded
from penstock.redis.keys.space import KeySpace
from penstock.runtime.keys import WorkersKeys
from penstock.settings import EmbeddedSettings
from penstock.testing.processes import frozen, processes_in
from penstock.testing.resp import RespClient
from penstock.testing.servers import free_port, wait_until

SECRET = "s3cr3t-w0rd"
MODULE = [sys.executable, "-m", "penstock"]
SCRIPT = [str(Path(sys.executable).with_name("penstock"))]


@pytest.fixture
def penstock(nursery, home, tmp_path):
    """`penstock("health", "--json")` runs the command in an empty folder and returns its end."""
    shell = Shell(nursery, tmp_path, "")
    shell.env = environment(home)

    def run(*arguments, program=None, stdin="", traceback=False, **environ):
        began = time.monotonic()
        if program is None:
            done = shell(*arguments, stdin=stdin, traceback=traceback, **environ)
        else:
            done = subprocess.run(
                [*program, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                cwd=tmp_path,
                timeout=60,
                env=environment(home) | environ,
                check=False,
            )
        done.took_s = time.monotonic() - began
        assert ("Traceback" in done.stderr) == traceback
        assert SECRET not in done.stdout + done.stderr
        return done

    return run


def environment(home):
    return {name: value for name, value in os.environ.items() if "PENSTOCK" not in name} | {
        "PENSTOCK_HOME": str(home),
        "PENSTOCK_EMBEDDED_LINGER_S": "0.1",
        "PENSTOCK_HEALTH_TIMEOUT_S": "5",
    }


WARNED = (
    "penstock: warning: every user of this machine can read the password in --url; put it into a "
    "file, and its path into PENSTOCK_PASSWORD_FILE"
)


def refused(done, code, *words):
    """One line on standard error that says what is wrong, nothing else, and the documented code."""
    assert done.stdout == ""
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line != WARNED]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("penstock: ")
    for word in words:
        assert word in done.stderr
    return True


# What works


@pytest.mark.parametrize("program", [MODULE, SCRIPT], ids=["module", "script"])
def test_health_says_healthy_on_the_embedded_server(penstock, home, program):
    done = penstock("health", program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"healthy  unix://{home}/valkey.sock\n")


def test_health_in_json(penstock):
    found = json.loads(penstock("health", "--json").stdout)
    assert found["status"] == "healthy"
    assert found["connected"] is True


def test_doctor_is_content_with_the_embedded_server(penstock):
    done = penstock("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok       eviction: nothing is evicted (noeviction)" in done.stdout
    found = json.loads(penstock("doctor", "--json").stdout)
    assert found["sound"] is True


def test_doctor_finds_fault_and_says_what_to_type(penstock, start_server):
    server = start_server("valkey", "--maxmemory-policy", "allkeys-lru", "--maxmemory", "64mb")
    done = penstock("--url", server.url, "doctor")
    assert done.returncode == 1
    assert "FAILURE  eviction" in done.stdout
    typed = f"redis-cli -h 127.0.0.1 -p {server.port} CONFIG SET maxmemory-policy noeviction"
    assert f"mend it: {typed}\n" in done.stdout
    as_json = penstock("--url", server.url, "doctor", "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["sound"] is False


def test_health_of_a_server_that_takes_no_writes(penstock, start_server):
    server = start_server("valkey", "--min-replicas-to-write", "1")
    done = penstock("--url", server.url, "health")
    assert done.returncode == 1
    assert done.stdout.startswith("unhealthy")


def test_no_workers(penstock):
    assert penstock("workers").stdout == "no workers\n"
    assert json.loads(penstock("workers", "--json").stdout) == []


def test_the_server_by_hand(penstock, home):
    before = penstock("server", "status", "--json")
    assert before.returncode == 1
    assert json.loads(before.stdout)["running"] is False
    assert not home.exists()
    started = penstock("server", "start")
    assert started.stdout.splitlines() == [
        "running",
        f"  data    {home}",
        f"  socket  {home}/valkey.sock",
        "  in use  no",
        f"  memory  {'jemalloc' if find_jemalloc() else 'libc'}",
        "  stays   until it is stopped",
    ]
    assert json.loads(penstock("server", "start", "--json").stdout)["pinned"] is True
    assert penstock("server", "status").returncode == 0
    assert penstock("server", "stop").stdout == "stopped\n"
    assert penstock("server", "stop").stdout == "it was not running\n"
    assert json.loads(penstock("server", "stop", "--json").stdout) == {"stopped": False}
    assert penstock("server", "status").stdout.startswith("not running\n")


def test_a_server_in_use_is_not_stopped_without_force(penstock, home):
    user = Embedded(home, EmbeddedSettings(linger_s=0))
    user.attach()
    assert refused(penstock("server", "stop"), 1, "in use (--force stops it)")
    assert penstock("server", "stop", "--force").stdout == "stopped\n"
    user.detach()


def test_help_needs_no_valid_configuration(penstock, tmp_path):
    (tmp_path / "penstock.toml").write_text("this is not TOML")
    for arguments in (["--help"], ["health", "-h"], ["server", "stop", "--help"], ["--version"]):
        done = penstock(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
    assert penstock("--help").stdout.count("\n") > 10


def test_arguments_win_over_the_environment_and_that_over_the_file(
    penstock, tmp_path, start_server
):
    server = start_server()
    (tmp_path / "penstock.toml").write_text('url = "redis://127.0.0.1:1"')
    (tmp_path / "other.toml").write_text(f'url = "{server.url}"')
    assert penstock("health").returncode == 4
    assert penstock("health", PENSTOCK_URL=server.url).returncode == 0
    assert penstock("--config", "other.toml", "health").returncode == 0
    assert penstock("health", PENSTOCK_CONFIG="other.toml").returncode == 0
    closed = {"PENSTOCK_URL": "redis://127.0.0.1:1"}
    assert penstock("--url", server.url, "health", **closed).returncode == 0


# Bad input


def test_no_command_shows_the_help_and_asks_which(penstock):
    done = penstock()
    assert (done.returncode, done.stderr) == (2, "penstock: which command?\n")
    assert "Usage: " in done.stdout
    assert "health" in done.stdout


def all_refused(penstock, code, cases):
    """Many short commands; each case is arguments, environment and the words."""
    return all(
        refused(penstock(*arguments, **environ), code, words) for arguments, environ, words in cases
    )


def test_wrong_usage(penstock):
    cases = [
        (["helth"], "No such command 'helth'"),
        (["server", "explode"], "No such command 'explode'"),
        (["--colour"], "No such option '--colour'"),
        (["health", "--yaml"], "No such option '--yaml'"),
        (["health", "now"], "unexpected extra argument"),
        (["--url"], "requires an argument"),
        (["--", "--url"], "'--url'"),
    ]
    assert all_refused(penstock, 2, [(arguments, {}, words) for arguments, words in cases])


def test_an_address_that_cannot_be_read(penstock):
    cases = [
        (f"http://user:{SECRET}@host", "http:// is not one of redis"),
        (f"{SECRET}", "no scheme is not one of redis"),
        ("", "no scheme"),
        ("redis://", "expected host:port"),
        (f"redis://:{SECRET}@host:99999", "expected host:port"),
        (f"redis://:{SECRET}@host/abc", "a database number"),
        (f"redis://:{SECRET}#x@host", "%23"),
        (f"redis://:{SECRET}@[::1", "server address"),
        (f"unix://:{SECRET}@relative/path", "absolute path"),
        ("redis+sentinel://host", "names the service"),
        ("redis://a,b", "several hosts"),
    ]
    cases = [(["health"], {"PENSTOCK_URL": url}, words) for url, words in cases]
    assert all_refused(penstock, 3, cases)


def test_an_address_on_the_command_line_that_cannot_be_read(penstock):
    assert refused(penstock("--url", f"http://:{SECRET}@host", "workers"), 3, "is not one of")


def test_a_closed_port(penstock):
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}"
    assert refused(penstock("--url", url, "doctor"), 4, "127.0.0.1")
    done = penstock("--url", url, "health", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["status"] == "unhealthy"


def test_a_wrong_password(penstock, start_server):
    server = start_server(password="right")
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}"
    assert refused(penstock("--url", url, "workers"), 4, "WRONGPASS")
    assert refused(penstock("--url", f"redis://127.0.0.1:{server.port}", "doctor"), 4, "NOAUTH")


def test_a_password_on_the_command_line_is_warned_of_once(penstock, start_server):
    server = start_server(password=SECRET)
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}"
    done = penstock("--url", url, "workers", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert done.stderr == f"{WARNED}\n"
    assert penstock("workers", PENSTOCK_URL=url).stderr == ""


def test_a_password_is_not_sent_to_the_address_of_a_found_file(penstock, tmp_path, start_server):
    server = start_server()
    (tmp_path / "penstock.toml").write_text(f'url = "{server.url}"')
    done = penstock("health", PENSTOCK_PASSWORD=SECRET)
    assert refused(done, 3, "password is not sent to the url of", "name the file with --config")
    (tmp_path / "penstock.toml").chmod(0o666)
    assert refused(penstock("health"), 3, f"chmod go-w {tmp_path}/penstock.toml")


def test_a_file_with_a_password_that_all_can_read_is_warned_of(penstock, tmp_path, start_server):
    server = start_server(password=SECRET)
    path = tmp_path / "penstock.toml"
    path.write_text(f'url = "redis://127.0.0.1:{server.port}"\npassword = "{SECRET}"')
    path.chmod(0o644)
    done = penstock("workers")
    assert (done.returncode, done.stdout) == (0, "no workers\n")
    assert done.stderr.startswith(f"penstock: warning: configuration file {path} has secrets")
    assert f"chmod 600 {path}" in done.stderr
    assert SECRET not in done.stderr
    path.chmod(0o600)
    assert penstock("workers").stderr == ""


def test_tls_where_there_is_none_and_the_other_way_round(penstock, valkey_server, tls_proxy):
    hurried = {"PENSTOCK_TIMEOUTS_CONNECT_S": "1"}
    plain = f"rediss://:{SECRET}@127.0.0.1:{valkey_server.port}"
    assert refused(penstock("--url", plain, "doctor", **hurried), 4)
    proxy = tls_proxy(valkey_server)
    tls = f"redis://127.0.0.1:{proxy.address[1]}"
    assert refused(penstock("--url", tls, "doctor", **hurried), 4)
    untrusted = f"rediss://127.0.0.1:{proxy.address[1]}"
    assert refused(penstock("--url", untrusted, "doctor", **hurried), 4)


def test_something_else_on_the_port(penstock):
    with socket.create_server(("127.0.0.1", 0)) as other:
        subprocess_url = f"redis://127.0.0.1:{other.getsockname()[1]}"
        done = penstock("--url", subprocess_url, "doctor", PENSTOCK_TIMEOUTS_CONNECT_S="0.5")
        assert refused(done, 4, "no answer within 0.5 s")


def test_a_file_that_is_not_toml(penstock, tmp_path):
    (tmp_path / "penstock.toml").write_text(f'password = "{SECRET}')
    assert refused(penstock("health"), 3, "penstock.toml", "not valid TOML")
    (tmp_path / "penstock.toml").write_bytes(b"\xff\xfe")
    assert refused(penstock("health"), 3, "not valid TOML")
    assert refused(
        penstock("--config", "missing.toml", "health"), 3, "missing.toml", "No such file"
    )
    assert refused(penstock("--config", str(tmp_path), "health"), 3, "Is a directory")


def test_an_unknown_setting(penstock, tmp_path):
    assert refused(
        penstock("health", PENSTOCK_PASWORD=SECRET), 3, "did you mean PENSTOCK_PASSWORD?"
    )
    (tmp_path / "penstock.toml").write_text("[pools]\ncachee = 3")
    assert refused(penstock("health"), 3, "pools.cachee", "did you mean pools.cache?")


def test_a_setting_out_of_its_range(penstock):
    done = penstock("health", PENSTOCK_POOLS_CACHE="0")
    assert refused(done, 3, "setting pools.cache = '0': expected a whole number from 1 to 10000")


def test_a_data_directory_that_cannot_be_used(penstock, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        done = penstock("--home", place, "doctor")
        assert refused(done, 4, f"data directory {tmp_path}/{place}")
    health = penstock("--home", "file", "health")
    assert health.returncode == 4
    assert "StartFailed" in health.stdout


def test_a_data_directory_that_is_not_ours_to_write(penstock, tmp_path):
    place = tmp_path / "not ours"
    place.mkdir(mode=0o500)
    if os.getuid() == 0:
        pytest.skip("root may write everywhere; test_embedded_faults gives up root first")
    assert refused(penstock("--home", str(place), "doctor"), 4, "Permission denied")


APPLICATIONS = {
    "good.py": "from penstock import Penstock\napp = Penstock()\n",
    "number.py": "app = 7\n",
    "other.py": "from penstock.sync import Penstock\nshop = Penstock()\nkind = Penstock\n",
    "needy.py": "import no_such_thing_at_all\n",
    "broken.py": "\n\nraise ImportError('half\\ndone')\n",
    "slips.py": "None.attribute\n",
    "typo.py": "def app(:\n",
    "twice.py": (
        "from penstock import Penstock\napp = Penstock()\n"
        "for _ in range(2):\n    def one(): ...\n    app.task(name='one')(one)\n"
    ),
    "unset.py": "from penstock import Penstock\napp = Penstock('nonsense://')\n",
}


def test_an_application_that_cannot_be_had(penstock, tmp_path):
    for name, text in APPLICATIONS.items():
        (tmp_path / name).write_text(text)
    cases = [
        ("good", "expected MODULE:NAME, as in shop:app"),
        (":app", "expected MODULE:NAME"),
        ("good:", "expected MODULE:NAME"),
        ("good.py", "'good.py': write it as a module, good:app"),
        ("./good.py:application", "write it as a module, good:application"),
        ("nowhere:app", f"there is no module 'nowhere' in {tmp_path}"),
        ("good.deeper:app", "there is no module 'good.deeper'"),
        ("good:application", "module 'good' has no 'application'; there is good:app"),
        ("number:app", "'number:app' is of type int, not a Penstock application; expected"),
        ("other:app", "module 'other' has no 'app'; there is other:shop"),
        ("other:kind", "'other:kind' is a class, not a Penstock application; there is other:shop"),
    ]
    cases = [(["worker", application], {}, words) for application, words in cases]
    assert all_refused(penstock, 3, cases)


@pytest.mark.parametrize(
    ("module", "line", "words"),
    [
        ("needy", 1, "No module named 'no_such_thing_at_all'"),
        ("broken", 3, "ImportError: half"),
        ("slips", 1, "AttributeError: 'NoneType' object has no attribute 'attribute'"),
        ("unset", 2, "nonsense:// is not one of"),
        ("twice", 5, "there are two tasks 'one'"),
    ],
)
def test_what_goes_wrong_in_the_users_module_is_shown_with_its_place(
    penstock, tmp_path, module, line, words
):
    (tmp_path / f"{module}.py").write_text(APPLICATIONS[f"{module}.py"])
    done = penstock("worker", f"{module}:app", traceback=True)
    assert done.returncode == 3
    assert f'File "{tmp_path}/{module}.py", line {line}' in done.stderr
    assert words in done.stderr
    assert done.stderr.splitlines()[-1].startswith("penstock: ")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "importlib" not in done.stderr
    assert "penstock/interfaces" not in done.stderr


# What may happen meanwhile


def test_health_answers_within_its_time_on_a_frozen_server(penstock, start_server):
    server = start_server()
    server.pause()
    done = penstock("--url", server.url, "health", PENSTOCK_HEALTH_TIMEOUT_S="0.5")
    server.resume()
    assert done.returncode == 4
    assert "no answer within 0.5 s" in done.stdout
    assert done.took_s < patient(4)


def test_health_answers_within_its_time_on_a_frozen_embedded_server(penstock, home):
    assert penstock("server", "start").returncode == 0
    [server] = processes_in(home, "valkey-server")
    with frozen(server):
        done = penstock("health", PENSTOCK_HEALTH_TIMEOUT_S="0.5")
        assert done.returncode == 4
        assert "no answer within 0.5 s" in done.stdout
        assert done.took_s < patient(4)
        assert json.loads(penstock("server", "status", "--json").stdout)["running"] is False
    assert penstock("health").returncode == 0


def test_a_start_that_takes_too_long(penstock, home):
    assert penstock("server", "start").returncode == 0
    [server] = processes_in(home, "valkey-server")
    with frozen(server):
        done = penstock("doctor", PENSTOCK_EMBEDDED_START_TIMEOUT_S="0.5")
        assert refused(done, 4, "did not answer in time")


def test_a_stop_that_takes_too_long(penstock, home, tmp_path):
    """The time-out of `server stop` is long; the code is what counts."""
    script = (
        "import functools, sys\n"
        "from penstock.redis.embedded.server import Embedded\n"
        "from penstock.interfaces.cli.main import main\n"
        "Embedded.stop = functools.partialmethod(Embedded.stop, timeout_s=0.5)\n"
        "main()\n"
    )
    assert penstock("server", "start").returncode == 0
    [server] = processes_in(home, "valkey-server")
    with frozen(server):
        done = penstock("server", "stop", program=[sys.executable, "-c", script])
        assert refused(done, 5, "did not end within 0.5 s")


def test_a_reader_that_leaves_is_no_error(penstock, home, tmp_path):
    for command in (["doctor"], ["health", "--json"]):
        process = subprocess.Popen(
            [*MODULE, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(home),
            cwd=tmp_path,
        )
        process.stdout.close()
        _, complaint = process.communicate()
        assert (process.returncode, complaint) == (0, "")


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(home, tmp_path, closing):
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m penstock health {closing}"],
        env=environment(home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_ends_it_with_130(start_server, home, tmp_path):
    server = start_server()
    server.pause()
    process = subprocess.Popen(
        [*MODULE, "--url", server.url, "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        cwd=tmp_path,
    )
    wait_until(lambda: connects(process.pid), what="its connection")
    process.send_signal(signal.SIGINT)
    shown = process.communicate(timeout=60)
    server.resume()
    assert process.returncode == 130
    assert "".join(shown).strip() == ""


def connects(pid):
    """Whether a process has a socket open, apart from its loop's own pair."""
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists()]
    return sum(link.startswith("socket:") for link in links) > 2


@pytest.mark.parametrize(
    "locale", [{"LANG": "C", "LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}]
)
def test_any_locale_will_do(penstock, home, locale):
    place = home / "日本 ☃"
    done = penstock("--home", str(place), "server", "start", **locale)
    assert (done.returncode, done.stderr) == (0, "")
    done = penstock("--home", str(place), "--help", **locale)
    assert (done.returncode, done.stderr) == (0, "")
    assert penstock("--home", str(place), "server", "stop").stdout == "stopped\n"


def test_a_file_name_that_is_not_text(penstock, home):
    place = str(home / os.fsdecode(b"\xff\xfe"))
    assert penstock("--home", place, "health").returncode == 0
    assert penstock("--home", place, "server", "stop").returncode == 0


def terminal_output(arguments, env, cwd):
    """Run a command on a terminal of its own and return what it wrote there."""
    ours, theirs = pty.openpty()
    done = subprocess.run(arguments, stdout=theirs, stdin=theirs, env=env, cwd=cwd, check=False)
    os.close(theirs)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_NONBLOCK)
    try:
        return done.returncode, os.read(ours, 65536)
    finally:
        os.close(ours)


def test_colour_is_for_terminals_that_want_it(home, tmp_path):
    env = environment(home) | {"TERM": "xterm"}
    env.pop("NO_COLOR", None)
    command = [*MODULE, "server", "status"]
    assert b"\x1b[1m" in terminal_output(command, env, tmp_path)[1]
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert b"\x1b" not in terminal_output(command, env | plain, tmp_path)[1]


def test_control_characters_in_data_are_shown_and_not_obeyed(penstock, home):
    embedded = Embedded(home, EmbeddedSettings(linger_s=0.1))
    embedded.attach()
    with RespClient(embedded.socket) as client:
        workers = WorkersKeys.of(KeySpace("")).heartbeats
        client.call("ZADD", workers, 1, "\x1b]0;owned\x07\n\u202e", 2, b"\xff\xfe")
    done = penstock("workers")
    as_json = penstock("workers", "--json")
    embedded.detach()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 2
    assert r"dead       \x1b]0;owned\x07\n\u202e  last beat" in done.stdout
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)
    assert len(json.loads(as_json.stdout)) == 2


def test_a_worker_stops_at_the_end_of_its_input(penstock):
    done = penstock("worker", "--stop-on-eof", stdin="some words\n" * 1000)
    assert done.returncode == 0
    assert "stopped" in done.stderr
    done = penstock("worker", "--stop-on-eof", "--json")
    assert done.returncode == 0
    assert all(json.loads(line)["message"] for line in done.stderr.splitlines())


def test_a_worker_with_input_that_cannot_be_polled_stops_as_well(home, tmp_path):
    with Path(os.devnull).open() as empty:
        done = subprocess.run(
            [*MODULE, "worker", "--stop-on-eof"],
            stdin=empty,
            env=environment(home),
            cwd=tmp_path,
            timeout=60,
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0


def test_a_users_application_gets_what_was_given_on_the_command_line(penstock, tmp_path):
    (tmp_path / "good.py").write_text(APPLICATIONS["good.py"])
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}"
    done = penstock("--url", url, "worker", "good:app")
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("penstock: 127.0.0.1:")
    done = penstock("worker", "good:app", "--stop-on-eof")
    assert done.returncode == 0


def test_two_commands_at_once_get_along(home, tmp_path):
    commands = [
        subprocess.Popen(
            [*MODULE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(home),
            cwd=tmp_path,
        )
        for arguments in (["server", "start"], ["health"], ["server", "start"], ["doctor"])
    ]
    for command in commands:
        command.communicate()
        assert command.returncode == 0
    assert len(processes_in(home, "valkey-server")) == 1


def test_the_console_script_is_installed():
    assert shutil.which("penstock", path=str(Path(sys.executable).parent))
