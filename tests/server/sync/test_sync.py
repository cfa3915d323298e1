"""The blocking façade: the same answers, from any thread, in any process."""

import asyncio
import concurrent.futures
import gc
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.kit.patience import patient

import penstock
from penstock import sync
from penstock.errors import NotOpen, PenstockError, ServerError, Unreachable
from penstock.redis.node import Role
from penstock.settings import Settings, TimeoutSettings
from penstock.testing.servers import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def app(valkey_server):
    with sync.Penstock(valkey_server.url) as app:
        yield app


def portal_threads():
    return [thread for thread in threading.enumerate() if thread.name == "penstock"]


def echoes_itself(app, times=50):
    """Whether every answer belongs to its question."""
    for _ in range(times):
        nonce = secrets.token_bytes(8)
        if app.redis.call("ECHO", nonce) != nonce:
            return False
    return True


# The same as the asynchronous one


COMMANDS = [
    ("SET", "{}:text", "värde"),
    ("GET", "{}:text"),
    ("GET", "{}:missing"),
    ("RPUSH", "{}:list", "a", b"\x00\xff", 3),
    ("LRANGE", "{}:list", 0, -1),
    ("INCR", "{}:text"),
    ("LPUSH", "{}:text", 1),
    ("NOSUCHCOMMAND",),
]


def spelled(command, namespace):
    return tuple(a.format(namespace) if isinstance(a, str) else a for a in command)


def outcome(call):
    try:
        return call()
    except PenstockError as error:
        return type(error), str(error)


def outcome_of_each(replies):
    return [(type(r), str(r)) if isinstance(r, ServerError) else r for r in replies]


def test_calls_end_as_they_do_with_await(app, valkey_server, namespace):
    async def awaited():
        async with penstock.Penstock(valkey_server.url) as other:
            ends = []
            for command in COMMANDS:
                try:
                    ends.append(await other.redis.call(*spelled(command, f"{namespace}:a")))
                except PenstockError as error:
                    ends.append((type(error), str(error)))
            return ends

    blocking = [
        outcome(lambda command=command: app.redis.call(*spelled(command, f"{namespace}:b")))
        for command in COMMANDS
    ]
    assert blocking == asyncio.run(awaited())


def test_pipelines_end_as_they_do_with_await(app, valkey_server, namespace):
    async def awaited():
        async with penstock.Penstock(valkey_server.url) as other:
            return await other.redis.pipeline([spelled(c, f"{namespace}:a") for c in COMMANDS])

    blocking = app.redis.pipeline([spelled(c, f"{namespace}:b") for c in COMMANDS])
    assert outcome_of_each(blocking) == outcome_of_each(asyncio.run(awaited()))


def test_health_and_doctor_answer(app, valkey_server):
    assert app.health().status == "healthy"
    assert app.doctor().address == f"redis://127.0.0.1:{valkey_server.port}"


TYPED = """
from typing import assert_type
from penstock.redis import Health
from penstock.inspector.doctor import Diagnosis
from penstock.sync import Penstock

with Penstock() as app:
    assert_type(app.health(), Health)
    assert_type(app.doctor(), Diagnosis)
    app.redis.call("GET", "key", timeout_s=1.0)
    app.redis.call("GET", "key", timeout_s="1")
"""


def test_a_type_checker_sees_through_the_facade(tmp_path):
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("pyright is not installed")
    (tmp_path / "typed.py").write_text(TYPED)
    checked = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable, str(tmp_path / "typed.py")],
        capture_output=True,
        check=False,
    )
    found = json.loads(checked.stdout)["generalDiagnostics"]
    assert [(each["rule"], each["range"]["start"]["line"]) for each in found] == [
        ("reportArgumentType", 10)
    ], "the last line only"


# Threads and loops


def test_many_threads_share_one_object(app, namespace):
    def work(_):
        for _ in range(25):
            app.redis.call("INCR", f"{namespace}:n")
        return echoes_itself(app)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert app.redis.call("GET", f"{namespace}:n") == b"200"
    assert len(portal_threads()) == 1


def test_many_threads_may_open_it(valkey_server):
    app = sync.Penstock(valkey_server.url)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: echoes_itself(app, 5), range(8)))
    assert len(portal_threads()) == 1
    app.close()


async def test_it_works_where_a_loop_is_running_already(app):
    assert echoes_itself(app)


def test_a_blocking_call_on_its_own_loop_is_refused(app):
    portal, _ = app.reach()

    async def wait_for_oneself():
        app.redis.call("PING")

    with pytest.raises(NotOpen, match="would wait for itself"):
        portal.run(wait_for_oneself())
    assert echoes_itself(app)


# Opening and closing


def test_it_opens_at_its_first_use_and_closes_twice(valkey_server):
    app = sync.Penstock(valkey_server.url)
    assert app.redis.call("PING") == b"PONG"
    app.close()
    app.close()
    assert not portal_threads()
    assert app.redis.call("PING") == b"PONG"
    app.close()


def test_closing_before_any_use_is_allowed():
    sync.Penstock("redis://127.0.0.1:1").close()


def test_a_failed_opening_leaves_nothing_behind_and_may_be_repeated(start_server):
    server = start_server()
    app = sync.Penstock(server.url)
    server.kill()
    with pytest.raises(Unreachable):
        app.open()
    assert not portal_threads()
    server.restart()
    assert app.redis.call("PING") == b"PONG"
    app.close()


def test_closing_ends_the_calls_of_other_threads(start_server):
    server = start_server()
    app = sync.Penstock(settings=Settings(url=server.url, timeouts=TimeoutSettings(command_s=1)))
    app.open()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        blocked = [
            pool.submit(app.redis.call, "BLPOP", "empty", 0, role=Role.QUEUE, timeout_s=60)
            for _ in range(2)
        ]
        wait_until(lambda: server.info("clients")["blocked_clients"] == "2", what="both calls")
        app.close()
        for call in blocked:
            with pytest.raises(ServerError):
                call.result(timeout=5)


def test_closing_and_calling_at_the_same_time_never_hangs(app):
    """Each call ends with its answer or with an error of ours."""
    done = threading.Event()

    def call():
        answers = 0
        while not done.is_set():
            try:
                answers += echoes_itself(app, 1)
            except PenstockError:
                continue
        return answers

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call) for _ in range(3)]
        for _ in range(30):
            app.close()
        app.open()
        wait_until(lambda: echoes_itself(app), what="an answer")
        done.set()
        for each in calls:
            each.result(timeout=10)


def test_an_object_nobody_holds_any_more_ends_its_thread(valkey_server):
    app = sync.Penstock(valkey_server.url)
    app.open()
    del app
    gc.collect()
    assert not portal_threads()


def test_an_interrupt_cancels_the_call(start_server):
    server = start_server()

    def interrupt():
        wait_until(lambda: server.info("clients")["blocked_clients"] == "1", what="the call")
        os.kill(os.getpid(), signal.SIGINT)

    with sync.Penstock(server.url) as app:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            app.redis.call("BLPOP", "empty", 0, role=Role.QUEUE, timeout_s=60)
        wait_until(lambda: server.info("clients")["blocked_clients"] == "0", what="the call's end")
        assert echoes_itself(app)


# Processes


def in_child(work):
    """Fork, do the work in the child and return whether it said yes."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return child


def ended_well(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_parent_and_child_get_their_own_answers_after_a_fork(app):
    client_id = app.redis.call("CLIENT", "ID")

    def work():
        return app.redis.call("CLIENT", "ID") != client_id and echoes_itself(app, 200)

    children = [in_child(work) for _ in range(3)]
    assert echoes_itself(app, 200)
    assert [ended_well(child) for child in children] == [True] * 3
    assert app.redis.call("CLIENT", "ID") == client_id, "the parent kept its connection"
    assert echoes_itself(app)


def test_a_fork_in_the_midst_of_other_threads_calls_harms_nobody(app):
    done = threading.Event()

    def call():
        while not done.is_set():
            if not echoes_itself(app, 5):
                return False
        return True

    def work():
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            return all(pool.map(lambda _: echoes_itself(app, 20), range(3)))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call) for _ in range(4)]
        for _ in range(5):
            assert ended_well(in_child(work))
        done.set()
        assert all(each.result(timeout=10) for each in calls)


def test_a_fork_during_the_opening_harms_nobody(valkey_server, fault_proxy):
    proxy = fault_proxy(valkey_server)
    proxy.latency(0.05)
    app = sync.Penstock(f"redis://127.0.0.1:{proxy.address[1]}")
    opening = threading.Thread(target=app.open)
    opening.start()
    wait_until(lambda: proxy.attempts, what="the opening")
    assert ended_well(in_child(lambda: echoes_itself(app, 2)))
    opening.join()
    assert echoes_itself(app, 2)
    app.close()


def test_a_grandchild_works_too(app):
    assert ended_well(
        in_child(
            lambda: (
                echoes_itself(app, 5)
                and ended_well(in_child(lambda: echoes_itself(app, 5)))
                and echoes_itself(app, 5)
            )
        )
    )
    assert echoes_itself(app)


def test_a_child_that_closes_leaves_its_parent_alone(app):
    client_id = app.redis.call("CLIENT", "ID")

    def work():
        app.close()
        used = echoes_itself(app, 5)
        app.close()
        return used

    assert ended_well(in_child(work))
    assert app.redis.call("CLIENT", "ID") == client_id


def _pooled(times):
    return echoes_itself(_shared["app"], times)


_shared = {}


def test_forked_pools_work(app):
    _shared["app"] = app
    try:
        with multiprocessing.get_context("fork").Pool(3) as pool:
            assert all(pool.map(_pooled, [20] * 6))
    finally:
        _shared.clear()
    assert echoes_itself(app)


# The end of the program


def program(code, **environ):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environ,
        check=False,
    )
    assert time.monotonic() - began < patient(10)
    return done.returncode, done.stdout, done.stderr


OPENED = """
import os, sys, threading
from penstock.sync import Penstock
app = Penstock()
print(app.redis.call("PING"))
"""


CALLING = """
def call():
    try:
        app.redis.call("BLPOP", "x", 0, timeout_s=60)
    except Exception:
        pass  # whoever calls at the end has to expect it
threading.Thread(target=call, daemon=True).start()
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "del app",
        "other = Penstock(); other.open()",
        CALLING,
        "if not os.fork(): sys.exit(app.redis.call('PING') != b'PONG')\nelse: os.wait()",
    ],
    ids=["falls off", "exits", "forgets it", "has two", "calls at the end", "forks"],
)
def test_a_program_that_does_not_close_ends_quietly(end, start_server):
    server = start_server()
    assert program(OPENED + end, PENSTOCK_URL=server.url) == (0, "b'PONG'\n", "")


def test_a_program_on_the_embedded_server_ends_quietly(tmp_path):
    environ = {"PENSTOCK_HOME": str(tmp_path / "home"), "PENSTOCK_EMBEDDED_LINGER_S": "0"}
    assert program(OPENED, **environ) == (0, "b'PONG'\n", "")
    shutil.rmtree(tmp_path / "home")
