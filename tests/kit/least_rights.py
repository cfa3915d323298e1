"""Runs tests with the rights that `penstock acl` prints: `pytest --as-role worker`.

The servers of the test kit then have a user for each role, and their `url` names the one that is
due; `command()` and `connect()` stay with the default user, who may do everything. A command that a
test itself sends through a client of Penstock (`await app.redis.call("FLUSHALL")`) and that is
refused is sent again by the default user. So Penstock has the rights of its role, and tests all.

Within a test that has a `namespace` only keys and channels of that one are allowed. The tables
below name the tests that have more rights than that, and why.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any
from weakref import WeakSet

import hiredis
import pytest
from tests.kit.acl_users import PASSWORD, known_to, with_user

from penstock.errors import ServerError
from penstock.inspector.rights import Role, acl_user
from penstock.redis.client import Client
from penstock.redis.error_mapping import is_forbidden
from penstock.testing.cluster import ClusterProcess
from penstock.testing.proxy import FaultProxy
from penstock.testing.sentinel import SentinelProcess, SentinelSetup
from penstock.testing.servers import ServerProcess

TESTS = str(Path(__file__).parents[1])

OPERATORS = (
    # They rename keys.
    *("tests/server/app/test_repairs.py", "tests/server/queues/admin/test_queue_key_reports.py"),
    *("tests/server/cli/", "tests/server/queues/storage/test_queue_foreign_keys.py"),
    "tests/server/queues/storage/test_queue_odd_lanes.py",
)
"""Tests of what only an operator may do."""

ALL_KEYS = (
    "tests/server/app/test_doctor.py::test_what_grows_without_a_bound",
    "tests/server/app/test_repairs.py::test_records_of_another_type",
    "tests/server/coordination/limits/test_hourly_limit.py::test_the_script_itself",
    "tests/server/coordination/test_wakeups.py",
    "tests/server/redis/test_client.py::test_the_stock_client",
)
"""Tests that use other keys or channels than those of their namespace."""

ALL_RIGHTS = (
    # They make users of their own, or judge servers that have none.
    "tests/server/redis/test_unprotected_servers.py",
    "tests/server/app/test_doctor.py::test_a_port_without_a_password",
    "tests/server/coordination/test_coordination_other_servers.py::test_nobody_waits",
    "tests/server/coordination/test_slots.py::test_a_user_who_may_not_publish",
    "tests/server/queues/producer/test_job_waiting.py::test_a_full_server_and_one",
    # They send commands of any kind over connections that they hold.
    "tests/server/coordination/limits/test_hourly_limit.py::test_a_server_that_forgot",
    "tests/server/queues/producer/test_queue_submit.py::test_a_forgotten_script",
    "tests/server/redis/test_client.py::test_no_place_is_ever_lost",
    "tests/server/redis/test_client.py::test_scripts_are_found_again",
    # They work in two namespaces, or rename the keys of one.
    "tests/server/app/test_namespaces.py",
    "tests/server/queues/worker/test_signed_jobs.py::test_a_signed_job_of_another_queue",
    "tests/server/topics/consumer/test_signed_messages.py::test_a_signed_message_of_another",
    "tests/server/sync/test_sync.py",
    # The commands that they log are run as they are, and name no password.
    "tests/server/runtime/test_failure_logs.py",
    # CONFIG GET shows what they are about.
    "tests/server/app/test_doctor.py::test_a_server_that_persists_nothing",
    "tests/server/topics/producer/test_topic_durability.py::test_a_server_that_cannot_tell",
)
"""Tests that connect as the default user."""


class LeastRights:
    """The users of all servers of this process, and which of them is due."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._due: Role | None = role
        self._namespace = ""
        self._servers: WeakSet[ServerProcess] = WeakSet()
        self._change_servers()
        for name in ("call", "run_script", "pipeline"):
            setattr(Client, name, _with_all_rights_for_tests(getattr(Client, name)))

    def begin(self, item: pytest.Item) -> None:
        """Choose the user of a test, before its fixtures are made."""
        if _is_among(item, ALL_RIGHTS):
            self._due = None
        else:
            self._due = "operator" if _is_among(item, OPERATORS) else self._role

    def restrict(self, request: pytest.FixtureRequest) -> None:
        """Allow a test the keys of its namespace, on all servers; all keys if it has none."""
        is_free = "namespace" not in request.fixturenames or _is_among(request.node, ALL_KEYS)
        namespace = "" if is_free else request.getfixturevalue("namespace")
        if namespace == self._namespace:
            return
        self._namespace = namespace
        for server in list(self._servers):
            if server.is_running and not server.is_paused:
                with suppress(OSError, hiredis.ReplyError):
                    for command in self._commands(server):
                        server.command(*command)

    def _commands(self, server: ServerProcess) -> list[list[str]]:
        """`ACL SETUSER` for each role."""
        users = [
            acl_user(role, self._namespace, password=PASSWORD, server=known_to(server.binary))
            for role in {self._role, "operator"}
        ]
        return [user.command.split(" ") for user in users]

    def _change_servers(self) -> None:
        rights, command_line = self, ServerProcess._command_line

        def with_users(server: ServerProcess) -> list[str]:
            line = command_line(server)
            rights._servers.add(server)
            if server.password is None:
                for _, _, *user in rights._commands(server):
                    line += ["--user", *user]
            return line

        ServerProcess._command_line = with_users
        for kind in (ServerProcess, ClusterProcess, SentinelSetup, FaultProxy):
            for name in ("url", "unix_url"):
                if isinstance(plain := vars(kind).get(name), property):
                    setattr(
                        kind, name, property(lambda place, p=plain: self._with_user(p.fget(place)))
                    )
        SentinelProcess.url = property(lambda place: f"redis://127.0.0.1:{place.port}")

    def _with_user(self, url: str) -> str:
        if self._due is None or "@" in url:
            return url
        return with_user(url, f"penstock-{self._due}")


def _is_among(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return item.nodeid.startswith(places)


def _with_all_rights_for_tests(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A method of `Client` that repeats a test's own call as the default user if it is refused."""

    @wraps(method)
    def called(client: Client, *args: Any, **options: Any) -> Awaitable[Any]:
        if not sys._getframe(1).f_code.co_filename.startswith(TESTS):
            return method(client, *args, **options)
        return call_again(client, *args, **options)

    async def call_again(client: Client, *args: Any, **options: Any) -> Any:
        try:
            replies = await method(client, *args, **options)
        except ServerError as error:
            if not is_forbidden(error) or PASSWORD not in str(client.settings.url):
                raise
        else:
            refused = isinstance(replies, list) and any(
                isinstance(reply, ServerError) and is_forbidden(reply) for reply in replies
            )
            if not refused or PASSWORD not in str(client.settings.url):
                return replies
        url = re.sub("//.*@", "//", str(client.settings.url))
        async with Client(replace(client.settings, url=url)) as again:
            return await method(again, *args, **options)

    return called
