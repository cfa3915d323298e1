"""A process that only answers, for the suite `limits`: how late the machine lets it do so.

python idle.py <socket>

It connects to the socket and sends back what comes.
"""

from __future__ import annotations

import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    while data := connection.recv(64):
        connection.sendall(data)
