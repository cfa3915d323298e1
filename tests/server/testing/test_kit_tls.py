"""TLS of the kit is real: verified, refused, and with the same faults as plain text."""

from __future__ import annotations

import ssl

import pytest

from penstock.testing.proxy import FaultProxy
from penstock.testing.resp import RespClient
from penstock.testing.servers import free_port
from penstock.testing.tls import Certificates


def test_a_client_that_knows_the_authority_gets_through(valkey_server, tls_proxy, certificates):
    proxy = tls_proxy(valkey_server)
    with RespClient(proxy.address, tls=certificates.client_context()) as client:
        assert client.call("ECHO", "x" * 200_000) == "x" * 200_000
        assert client.socket.version() == "TLSv1.3"
    assert proxy.url == f"rediss://127.0.0.1:{proxy.port}"


def test_a_client_with_another_authority_refuses(valkey_server, tls_proxy, tmp_path):
    proxy = tls_proxy(valkey_server)
    stranger = Certificates.create(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        RespClient(proxy.address, tls=stranger.client_context())
    assert len(proxy.attempts) == 1


def test_an_expired_certificate_is_refused(valkey_server, tls_proxy, tmp_path):
    expired = Certificates.create(tmp_path, expired=True)
    proxy = tls_proxy(valkey_server, expired)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        RespClient(proxy.address, tls=expired.client_context())


def test_a_plain_client_is_refused(valkey_server, tls_proxy):
    with (
        RespClient(tls_proxy(valkey_server).address) as client,
        pytest.raises(ConnectionError),
    ):
        client.call("PING")


def test_a_client_certificate_can_be_demanded(valkey_server, tls_proxy, certificates):
    proxy = tls_proxy(valkey_server, demand_client_certificate=True)
    with RespClient(
        proxy.address, tls=certificates.client_context(with_certificate=True)
    ) as client:
        assert client.call("PING") == "PONG"
    with (
        RespClient(proxy.address, tls=certificates.client_context()) as anonymous,
        pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|reset|closed"),
    ):
        anonymous.call("PING")  # TLS 1.3 tells the client only now


def test_faults_work_inside_tls(valkey_server, tls_proxy, certificates, namespace):
    proxy = tls_proxy(valkey_server)
    context = certificates.client_context()
    proxy.swallow("INCR")
    with RespClient(proxy.address, tls=context) as client, pytest.raises(ConnectionError):
        client.call("INCR", f"{namespace}:n")
    assert valkey_server.command("GET", f"{namespace}:n") == "1"
    with RespClient(proxy.address, tls=context) as client:
        client.call("PING")
        proxy.cut()
        with pytest.raises(OSError):  # noqa: PT011  an end with or without TLS's own goodbye
            client.receive()


def test_a_plain_fault_proxy_passes_tls_unread(valkey_server, tls_proxy, certificates):
    with FaultProxy(tls_proxy(valkey_server).address) as outer:
        with RespClient(outer.address, tls=certificates.client_context()) as client:
            assert client.call("PING") == "PONG"
        assert outer.attempts


@pytest.mark.parametrize("demanded", [False, True])
def test_a_server_with_tls_of_its_own(start_server, certificates, demanded):
    port = free_port()
    arguments = certificates.server_arguments(port, demand_client_certificate=demanded)
    start_server("redis7", *arguments)
    context = certificates.client_context(with_certificate=demanded)
    with RespClient(("127.0.0.1", port), tls=context) as client:
        assert client.call("PING") == "PONG"


def test_certificates_can_change_on_the_same_port(valkey_server, tls_proxy, tmp_path):
    first = tls_proxy(valkey_server)
    first.close()
    rotated = Certificates.create(tmp_path)
    second = tls_proxy(valkey_server, rotated, port=first.port)
    with RespClient(second.address, tls=rotated.client_context()) as client:
        assert client.call("PING") == "PONG"
