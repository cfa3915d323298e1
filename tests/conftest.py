"""What all tests share; see docs/how-to/test-your-code.md for the servers."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from bench.figures import Figure
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from tests.kit.least_rights import LeastRights
from tests.kit.patience import WAIT_S
from tests.kit.script_headers import check_prepared_calls
from tests.kit.settings import QUICK_TOPICS, settings_of

from penstock import Penstock
from penstock.errors import BinaryMissing
from penstock.inspector.rights import ROLES
from penstock.redis.address import Endpoint
from penstock.redis.client import Client
from penstock.redis.embedded.server import Embedded
from penstock.redis.wire import Wire
from penstock.settings import EmbeddedSettings, Settings
from penstock.testing import eventually, plugin
from penstock.testing.binaries import SERVER_NAMES, find_binary
from penstock.testing.cluster import ClusterProcess
from penstock.testing.processes import all_gone
from penstock.testing.proxy import FaultProxy
from penstock.testing.servers import ServerProcess

pytest_plugins = ["penstock.testing.plugin", "tests.kit.durations"]

# How long an example takes says something about the machine, not about the code.
hypothesis_settings.register_profile(
    "penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
hypothesis_settings.load_profile("penstock")


@pytest.fixture(scope="session")
def required_servers() -> frozenset[str]:
    """Both come with the development dependencies, so here their absence is a failure."""
    return frozenset({"valkey", "redis62"})


_least_rights = pytest.StashKey[LeastRights]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--as-role", choices=ROLES, help="Rights of applications: see least_rights.py")


def pytest_configure(config: pytest.Config) -> None:
    """Check prepared calls of scripts; wait patiently; take Ctrl-C as a terminal gives it.

    A shell starts its background jobs with it ignored.
    """
    check_prepared_calls()
    eventually.WITHIN_S = WAIT_S
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if role := config.getoption("--as-role"):
        config.stash[_least_rights] = LeastRights(role)


def pytest_report_header() -> list[str]:
    """Say which servers the tests run against."""
    lines: list[str] = []
    for name in SERVER_NAMES:
        try:
            version = ".".join(map(str, find_binary(name).version))
        except BinaryMissing as missing:
            version = f"missing ({missing})"
        lines.append(f"{name}: {version}")
    return lines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of tests/faults and tests/cluster are fault tests; elsewhere a mark says so."""
    folders = {Path(__file__).parent / "faults", Path(__file__).parent / "cluster"}
    for item in items:
        if folders & set(item.path.parents):
            item.add_marker(pytest.mark.faults)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """With `--as-role`: choose the user of the servers before fixtures ask for their addresses."""
    if rights := item.config.stash.get(_least_rights, None):
        rights.begin(item)


@pytest.fixture(autouse=True)
def least_rights(request: pytest.FixtureRequest) -> None:
    """With `--as-role`: the users of the servers may use the keys of the test's namespace only."""
    if rights := request.config.stash.get(_least_rights, None):
        rights.restrict(request)


@pytest.fixture(scope="module", autouse=True)
def closed_applications() -> Iterator[None]:
    """A blocking application left open would be found by the next file that counts threads."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock"]


@pytest.fixture(scope="session")
def shared_server(required_servers: frozenset[str]) -> Iterator[Callable[[str], ServerProcess]]:
    """`shared_server("redis62")` is one server for the session; a missing kind skips the test."""
    running: dict[str, ServerProcess] = {}
    with ExitStack() as started:

        def share(name: str) -> ServerProcess:
            if name not in running:
                server = ServerProcess(plugin._found(name, required_servers))
                running[name] = started.enter_context(server)
            return running[name]

        yield share


@pytest.fixture
def home() -> Iterator[Path]:
    """A data directory for the embedded server and others, which end when the test has."""
    with tempfile.TemporaryDirectory(prefix="penstock-home-") as folder:
        place = Path(folder) / "data"
        yield place
        Embedded(place, EmbeddedSettings()).stop()  # which fails if somebody still holds it
        assert all_gone(place)
        assert all_gone(place / "vectors", within_s=10)


@pytest.fixture
def embed(home: Path) -> Iterator[Callable[..., Embedded]]:
    """`embed()` gives another hold on the same server, as another process would have it."""
    made: list[Embedded] = []

    def make(place: Path = home, **settings: object) -> Embedded:
        embedded = Embedded(place, EmbeddedSettings(**{"linger_s": 0.1, **settings}))
        made.append(embedded)
        return embedded

    yield make
    for embedded in made:
        embedded.detach()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is not about one node runs on a cluster, too, unless a mark says where it runs."""
    places = metafunc.definition.get_closest_marker("places")
    is_fixed = metafunc.definition.get_closest_marker("one_server")
    if "place" in metafunc.fixturenames and not is_fixed:
        names = places.args if places else ("one server", "cluster")
        metafunc.parametrize("place", names, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> ServerProcess | ClusterProcess:
    """Where a test runs: see the marks `one_server` and `places`."""
    name = getattr(request, "param", "one server")
    shared = {"one server": "valkey_server", "cluster": "cluster"}
    if name in shared:
        return request.getfixturevalue(shared[name])
    return request.getfixturevalue("shared_server")(name)


@pytest.fixture
def settings(
    request: pytest.FixtureRequest, place: ServerProcess | ClusterProcess, namespace: str
) -> Settings:
    """Short timings, and what `@pytest.mark.settings(queues={"poll_s": 0.1})` says."""
    groups: dict[str, Any] = {"topics": QUICK_TOPICS, "worker": {"poll_s": 0.2}}
    for mark in reversed(list(request.node.iter_markers("settings"))):
        groups |= mark.kwargs
    return settings_of({"url": place.url, "namespace": namespace, **groups})


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    """Closes applications after those who use them: whatever runs workers depends on it."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def app(settings: Settings, opened: AsyncExitStack) -> Penstock:
    return await opened.enter_async_context(Penstock(settings=settings))


@pytest.fixture
async def client(settings: Settings, opened: AsyncExitStack) -> Client:
    return await opened.enter_async_context(Client(settings))


@pytest.fixture
async def open_client() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """`await open_client(url, pools=…)` gives a client that is closed after the test."""
    opened: list[Client] = []

    async def open_one(url: str, **settings: object) -> Client:
        client = Client(Settings(url=url, **settings))
        opened.append(client)
        await client.open()
        return client

    yield open_one
    for client in opened:
        await client.close()


@pytest.fixture
async def open_wire() -> AsyncIterator[Callable[..., Awaitable[Wire]]]:
    """`await open_wire(server)` gives a connection that is closed after the test."""
    opened: list[Wire] = []

    async def open_one(
        place: ServerProcess | FaultProxy | Endpoint,
        *,
        command_s: float = 5.0,
        connect_s: float = 5.0,
        **options: object,
    ) -> Wire:
        endpoint = place if isinstance(place, Endpoint) else _endpoint_of(place)
        wire = await Wire.open(endpoint, connect_s=connect_s, command_s=command_s, **options)
        opened.append(wire)
        return wire

    yield open_one
    for wire in opened:
        await wire.close()


def _endpoint_of(place: ServerProcess | FaultProxy) -> Endpoint:
    address = place.address
    return Endpoint(path=address) if isinstance(address, str) else Endpoint(*address)


_figures: list[Figure] = []


@pytest.fixture
def figure() -> Callable[..., None]:
    """Hold a measured number against its bar; it is printed as a line of JSON when the run ends."""

    def hold(suite: str, name: str, value: float, unit: str, op: str, bar: float) -> None:
        measured = Figure(suite, name, value, unit, bar, op)
        _figures.append(measured)
        assert measured.holds, measured.as_json()

    return hold


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of a long run, and note which tests lacked something on this machine.

    `pytest @file` runs those again, once the machine has it.
    """
    for measured in _figures:
        terminalreporter.write_line(measured.as_json())
    if noted_in := os.environ.get("SKIPPED_TESTS_FILE"):
        skipped = {report.nodeid for report in terminalreporter.stats.get("skipped", ())}
        Path(noted_in).write_text("".join(f"{test}\n" for test in sorted(skipped)))
