"""Pytest fixtures: real servers, clusters and broken networks.

Pytest finds them by themselves where Penstock is installed. What a fixture started, it stops, last
things first, also when the test fails. Factories give fresh things to one test; the session's are
shared, so a test keeps to its `namespace` and leaves the server unharmed.

`Penstock()` without an address has an embedded server of this run's own, never the developer's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import BinaryMissing, EmbeddedError, StartFailed
from penstock.redis.embedded.server import Embedded
from penstock.settings import EmbeddedSettings
from penstock.testing.binaries import SERVER_NAMES, Binary, find_binary
from penstock.testing.cluster import ClusterProcess
from penstock.testing.postgres import PostgresProcess
from penstock.testing.proxy import FaultProxy
from penstock.testing.resp import Address
from penstock.testing.sentinel import SentinelSetup
from penstock.testing.servers import ServerProcess
from penstock.testing.tls import Certificates, TlsProxy

__all__ = [
    "any_server",
    "certificates",
    "cluster",
    "fault_proxy",
    "namespace",
    "postgres_server",
    "required_servers",
    "start_cluster",
    "start_sentinel",
    "start_server",
    "tls_proxy",
    "valkey_server",
]


_HOME = "PENSTOCK_HOME"
_own_home = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Use a temporary data directory and server, unless the environment names others."""
    if not os.environ.get(_HOME) and not os.environ.get("PENSTOCK_URL"):
        # The processes of a parallel run inherit it, so that there is one server for the run.
        # The folder is created with the first server; most runs need none.
        home = Path(tempfile.gettempdir()) / f"penstock-run-{uuid.uuid4().hex[:12]}"
        os.environ[_HOME] = config.stash[_own_home] = str(home)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the run's own server, if one was needed, and remove its data."""
    home = config.stash.get(_own_home, None)
    if home is None:
        return
    os.environ.pop(_HOME, None)
    try:
        Embedded(Path(home), EmbeddedSettings()).stop(force=True)
    except (EmbeddedError, TimeoutError) as error:
        config.get_terminal_writer().line(f"penstock: {error}")
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def required_servers() -> frozenset[str]:
    """Servers whose absence is a failure instead of a skip; override it in your conftest."""
    return frozenset({"valkey"})


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ServerProcess]:
    """Share one Valkey among the tests of a session."""
    with ServerProcess("valkey") as server:
        yield server


@pytest.fixture(scope="session", params=SERVER_NAMES)
def any_server(
    request: pytest.FixtureRequest, required_servers: frozenset[str]
) -> Iterator[ServerProcess]:
    """Each server in turn, shared by the session; skipped where it is not installed."""
    with ServerProcess(_found(request.param, required_servers)) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterProcess]:
    """Share a Valkey cluster of three primaries; ask `start_cluster` for one to break."""
    with ClusterProcess(primaries=3) as running:
        yield running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresProcess]:
    """Share one PostgreSQL; skipped where it cannot run. A test makes a database of its own."""
    with ExitStack() as started:
        try:
            server = started.enter_context(PostgresProcess())
        except (BinaryMissing, StartFailed) as error:
            pytest.skip(f"no PostgreSQL here: {error}")
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make an authority with a server and a client certificate."""
    return Certificates.create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def namespace() -> str:
    """Make up a name that no other test uses, to be put before every key."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def start_server(required_servers: frozenset[str]) -> Iterator[Callable[..., ServerProcess]]:
    """`start_server("redis7", "--maxmemory", "4mb", password=…)` gives a server of one's own."""
    with ExitStack() as started:

        def start(
            binary: str | Binary = "valkey",
            *arguments: str,
            tcp: bool = True,
            port: int | None = None,
            password: str | None = None,
        ) -> ServerProcess:
            found = _found(binary, required_servers)
            server = ServerProcess(found, *arguments, tcp=tcp, port=port, password=password)
            return started.enter_context(server)

        yield start


@pytest.fixture
def start_cluster(required_servers: frozenset[str]) -> Iterator[Callable[..., ClusterProcess]]:
    """`start_cluster(primaries=3, replicas=1)` gives a cluster of one's own."""
    with ExitStack() as started:

        def start(
            primaries: int = 3,
            replicas: int = 0,
            *arguments: str,
            binary: str | Binary = "valkey",
        ) -> ClusterProcess:
            found = _found(binary, required_servers)
            return started.enter_context(
                ClusterProcess(primaries, replicas, *arguments, binary=found)
            )

        yield start


@pytest.fixture
def start_sentinel(required_servers: frozenset[str]) -> Iterator[Callable[..., SentinelSetup]]:
    """`start_sentinel(sentinels=3)` gives a primary, a replica and sentinels of one's own."""
    with ExitStack() as started:

        def start(
            sentinels: int = 1,
            replicas: int = 1,
            *arguments: str,
            binary: str | Binary = "valkey",
        ) -> SentinelSetup:
            found = _found(binary, required_servers)
            return started.enter_context(
                SentinelSetup(sentinels, replicas, *arguments, binary=found)
            )

        yield start


@pytest.fixture
def fault_proxy() -> Iterator[Callable[..., FaultProxy]]:
    """`fault_proxy(server)` gives a proxy before a server, another proxy or an address."""
    with ExitStack() as started:

        def start(
            target: ServerProcess | FaultProxy | Address, *, unix: bool = False
        ) -> FaultProxy:
            return started.enter_context(FaultProxy(_upstream(target), unix=unix))

        yield start


@pytest.fixture
def tls_proxy(certificates: Certificates) -> Iterator[Callable[..., TlsProxy]]:
    """`tls_proxy(server)` gives TLS before a plain server, with the session's certificates."""
    with ExitStack() as started:

        def start(
            target: ServerProcess | FaultProxy | Address,
            own_certificates: Certificates = certificates,
            *,
            demand_client_certificate: bool = False,
            port: int | None = None,
        ) -> TlsProxy:
            return started.enter_context(
                TlsProxy(
                    _upstream(target),
                    own_certificates,
                    demand_client_certificate=demand_client_certificate,
                    port=port,
                )
            )

        yield start


def _found(binary: str | Binary, required: frozenset[str]) -> Binary:
    if isinstance(binary, Binary):
        return binary
    try:
        return find_binary(binary)
    except BinaryMissing as missing:
        if binary in required or binary not in SERVER_NAMES:
            pytest.fail(str(missing))
        pytest.skip(str(missing))


def _upstream(target: ServerProcess | FaultProxy | Address) -> Address:
    if isinstance(target, ServerProcess):
        return target.address if target.port else target.socket_path
    return target.address if isinstance(target, FaultProxy) else target
