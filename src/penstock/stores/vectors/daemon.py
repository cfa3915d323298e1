"""The daemon that owns the embedded Qdrant engine of a data directory.

Qdrant's engine lets one process at a time open its data. That process is this daemon: the first
client starts it, others connect to its socket, and it ends when no client has been connected for
`vectors.linger_s`.

It is a leased and fenced owner, and the kernel keeps the lease. `house.lock` and the lock of each
shard's log belong to the process and are released when it ends, in whatever way; no other process
can open the data before. So the next daemon finds a log that is not written any more, with every
confirmed write: the engine has logged each one before we reply. A client without a reply repeats
the request to the next daemon; every request may be repeated, so nothing is lost or doubled. A
frozen daemon is killed by a waiting client (see `daemon_process.py`).

Two threads: this one does the communication and always answers PING; the other one uses the engine
(see `daemon_worker.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock.processes.daemon import Daemon, run_daemon
from penstock.processes.frames import FrameRefused
from penstock.processes.home import NotOurs, note_socket
from penstock.processes.peer import check_peer
from penstock.stores.vectors import requests as ask

__all__ = ["VectorDaemon", "main"]

logger = logging.getLogger(__name__)

TICK_S = 0.25
_BACKLOG = 1024
# Most bytes of requests that wait for one connection: more is left in the kernel.
_MOST_WAITING = 32 * 1024 * 1024
# How often the two threads take turns: the default of 5 ms would be most of a round trip.
_SWITCH_S = 0.0005


class VectorDaemon(Daemon):
    """The lock, the socket and the connections."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(Path(config["home"]), "house.lock", "house.log")
        self.socket_path = Path(config["socket"])
        self.linger_s = float(config["linger_s"])
        self.listener: socket.socket | None = None
        self.connections: set[_Connection] = set()
        self.connected_at = time.monotonic()
        self.ending = asyncio.Event()

    def on_lock_taken(self) -> None:
        note_socket(self.home, "house.sock", str(self.socket_path))
        self.socket_path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)
        try:
            self.listener.bind(str(self.socket_path))
        finally:
            os.umask(mask)
        self.listener.listen(_BACKLOG)

    def run(self) -> int:
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
        sys.setswitchinterval(_SWITCH_S)
        return asyncio.run(self._serve())

    async def _serve(self) -> int:
        from penstock.stores.vectors.daemon_worker import DaemonWorker  # noqa: PLC0415  after the fork

        assert self.listener is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ending.set)
        logger.info("daemon begins, process %d", os.getpid())
        work = DaemonWorker(self.home, self.still_ours)
        try:
            outbox = _Outbox(loop)
            server = await loop.create_unix_server(
                lambda: _Connection(self, work.put, outbox), sock=self.listener
            )
            await self._watch()
            server.close()
        finally:
            if self.still_ours():
                self.socket_path.unlink(missing_ok=True)
            work.stop()
            for connection in list(self.connections):
                connection.hang_up()
        logger.info("daemon ends")
        return 0

    async def _watch(self) -> None:
        """Return when the daemon has to end."""
        while not self.ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), TICK_S)
            now = time.monotonic()
            if self.connections:
                self.connected_at = now
            elif now - self.connected_at >= self.linger_s:
                return
            if not self.still_ours() or not self.socket_path.exists():
                logger.warning("the directory or the socket was removed")
                return


class _Outbox:
    """Passes replies from the worker thread to the event loop, many with one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Shared by both threads: each of its operations is atomic.
        self._answers: deque[tuple[_Connection, int, bytes]] = deque()
        self._called = False

    def put(self, connection: _Connection, size: int, answer: bytes) -> None:
        self._answers.append((connection, size, answer))
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop has ended, and the connection with it
                self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        self._called = False  # first: what is put from now on calls again
        while self._answers:
            connection, size, answer = self._answers.popleft()
            connection.send(answer, size)


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(
        self, daemon: VectorDaemon, put: Callable[[list[Any]], None], outbox: _Outbox
    ) -> None:
        from penstock.stores.vectors.daemon_worker import QueuedRequest  # noqa: PLC0415  after the fork

        self._queued_request = QueuedRequest
        self._daemon, self._put, self._outbox = daemon, put, outbox
        self._frames = ask.frame_buffer()
        self._transport: asyncio.Transport | None = None
        self._waiting = 0
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        try:
            check_peer(transport.get_extra_info("socket"))
        except NotOurs as error:
            logger.warning("closed the connection of another user: %s", error.strerror)
            transport.abort()
            return
        self._transport = transport
        self._daemon.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._daemon.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
            requests = [(len(frame), ask.decode_request(frame)) for frame in frames]
        except FrameRefused as error:
            logger.warning("closed the connection of a client that sent %s", error)
            self.hang_up()
            return
        queued: list[Any] = []
        for size, request in requests:
            if isinstance(request, ask.Ping):
                pong = ask.VectorReply(request.id, "", msgspec.Raw(ask.encode(os.getpid())))
                self.send(ask.framed(pong), 0)
                continue
            self._waiting += size
            queued.append(
                self._queued_request(request, lambda a, s=size: self._outbox.put(self, s, a))
            )
        if queued:
            self._put(queued)
        self._let_flow()

    def send(self, answer: bytes, size: int) -> None:
        """Send the reply to a request of `size` bytes."""
        self._waiting -= size
        if self._transport is not None:
            self._transport.write(answer)
            self._let_flow()

    def pause_writing(self) -> None:
        self._full = True
        self._let_flow()

    def resume_writing(self) -> None:
        self._full = False
        self._let_flow()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _let_flow(self) -> None:
        """Pause reading while too much waits to be done, or to be read by the client."""
        if self._transport is None:
            return
        if self._full or self._waiting > _MOST_WAITING:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


def main(config: dict[str, Any]) -> int:
    return run_daemon(VectorDaemon, config)
