"""An address of this machine on a network, for servers that only this machine is to reach."""

import socket

import pytest

from penstock.hosts import is_loopback


def network_address():
    """Of the interface that leads outside; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError as error:
            pytest.skip(f"this machine is on no network: {error}")
        own = probe.getsockname()[0]
    if is_loopback(own):
        pytest.skip("this machine has no address beside those of loopback")
    return own


def listening_on(address):
    """Options of a server that is reached over the network, too."""
    return ("--bind", "127.0.0.1", address, "--protected-mode", "no")
