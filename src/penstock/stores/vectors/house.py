"""The house of the vectors: the one process that has a directory's engine, for all who use it.

Qdrant's engine lets one process at a time have its data. That process is this one, a program of its
own: the first user starts it, others find it at its socket, and it ends when nobody has been
connected for `vectors.linger_s`.

It is a leased and fenced owner, and the kernel keeps the lease. `house.lock` and the lock of each
shard's log belong to the process and go with it, however it ends; nobody can take them from one
that lives, and nobody else can open the data before. So the next house always finds a log that
nobody writes to any more, with every write that was confirmed: the engine has logged each one
before we answer. Whoever got no answer asks the next house the same again, and since every request
may be repeated, nothing is lost or doubled. One that stands still is killed by who waits for it
(see `place.py`), which is the same death.

Two threads: this one talks, and answers PING whatever the other is at; the other one works (see
`house_work.py`).
"""

from __future__ import annotations

import asyncio
import fcntl
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

from penstock.redis.keeper import try_lock
from penstock.stores.vectors import requests as ask
from penstock.stores.vectors.place import ANOTHER_IS_FASTER

__all__ = ["House", "main"]

logger = logging.getLogger(__name__)

TICK_S = 0.25
_OTHERS_LOOK_S = 1.0
_LARGEST_LOG = 1024 * 1024
_BACKLOG = 1024
# What one connection may have waiting, in bytes: more is left in the kernel.
_MOST_WAITING = 32 * 1024 * 1024
# The work and the talk take turns. The default of 5 ms would be most of a round trip.
_SWITCH_S = 0.0005


class House:
    """The locks, the socket and the connections."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.home = Path(config["home"])
        self.socket_path = Path(config["socket"])
        self.linger_s = float(config["linger_s"])
        self.lock = os.open(self.home / "house.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.listener: socket.socket | None = None
        self.connections: set[_Connection] = set()
        self.connected_at = time.monotonic()
        self.ending = asyncio.Event()

    def take_over(self) -> bool:
        """Become the house; False if there is one. Who only looks has the lock for a moment."""
        deadline = time.monotonic() + _OTHERS_LOOK_S
        while not try_lock(self.lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return False
            time.sleep(TICK_S / 100)
        os.ftruncate(self.lock, 0)
        self.socket_path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)
        try:
            self.listener.bind(str(self.socket_path))
        finally:
            os.umask(mask)
        self.listener.listen(_BACKLOG)
        return True

    def detach(self) -> None:
        """Go on in a child that has left the terminal, with the lock and the socket.

        When the starter sees this process end, there is a house to connect to.
        """
        log = self.home / "house.log"
        if log.is_file() and log.stat().st_size > _LARGEST_LOG:
            log.replace(log.with_suffix(".log.old"))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if os.fork():
            os._exit(0)
        os.pwrite(self.lock, str(os.getpid()).encode(), 0)
        os.setsid()
        os.umask(0o077)
        os.chdir(self.home)
        for target in (1, 2):
            os.dup2(output, target)
        os.close(output)

    async def run(self) -> int:
        from penstock.stores.vectors.house_work import HouseWork  # noqa: PLC0415  after the fork

        assert self.listener is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ending.set)
        logger.info("house begins, process %d", os.getpid())
        work = HouseWork(self.home, self.still_ours)
        try:
            outbox = _Outbox(loop)
            server = await loop.create_unix_server(
                lambda: _Connection(self, work.give, outbox), sock=self.listener
            )
            await self._watch()
            server.close()
        finally:
            if self.still_ours():
                self.socket_path.unlink(missing_ok=True)
            work.stop()
            for connection in list(self.connections):
                connection.hang_up()
        logger.info("house ends")
        return 0

    async def _watch(self) -> None:
        """Return when it is time to end."""
        while not self.ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), TICK_S)
            now = time.monotonic()
            if self.connections:
                self.connected_at = now
            elif now - self.connected_at >= self.linger_s:
                return
            if not self.still_ours() or not self.socket_path.exists():
                logger.warning("the directory or the socket was taken away")
                return

    def still_ours(self) -> bool:
        """Whether the lock we hold is the one that others look at."""
        try:
            seen = (self.home / "house.lock").stat()
        except OSError:
            return False
        return os.path.samestat(seen, os.fstat(self.lock))


class _Outbox:
    """Brings answers from the thread that works to the one that talks, many with one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # One and the same for both threads: each of its operations is whole.
        self._answers: deque[tuple[_Connection, int, bytes]] = deque()
        self._called = False

    def put(self, connection: _Connection, size: int, answer: bytes) -> None:
        self._answers.append((connection, size, answer))
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop has ended: so has the connection
                self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        self._called = False  # first: what is put from now on calls again
        while self._answers:
            connection, size, answer = self._answers.popleft()
            connection.send(answer, size)


class _Connection(asyncio.Protocol):
    """One user."""

    def __init__(self, house: House, give: Callable[[list[Any]], None], outbox: _Outbox) -> None:
        from penstock.stores.vectors.house_work import Errand  # noqa: PLC0415  after the fork

        self._errand = Errand
        self._house, self._give, self._outbox = house, give, outbox
        self._frames = ask.Frames()
        self._transport: asyncio.Transport | None = None
        self._waiting = 0
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self._house.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._house.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
            requests = [(len(frame), ask.decode_request(frame)) for frame in frames]
        except ask.FrameRefused as error:
            logger.warning("hung up on a user who sent %s", error)
            self.hang_up()
            return
        errands: list[Any] = []
        for size, request in requests:
            if isinstance(request, ask.Ping):
                pong = ask.Answer(request.id, "", msgspec.Raw(ask.encode(os.getpid())))
                self.send(ask.framed(pong), 0)
                continue
            self._waiting += size
            errands.append(self._errand(request, lambda a, s=size: self._outbox.put(self, s, a)))
        if errands:
            self._give(errands)
        self._let_flow()

    def send(self, answer: bytes, size: int) -> None:
        """Send an answer to a request of so many bytes."""
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
        """Read on, unless too much waits to be done, or to be read by the user."""
        if self._transport is None:
            return
        if self._full or self._waiting > _MOST_WAITING:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


def main(config: dict[str, Any]) -> int:
    """The program of the house."""
    try:
        house = House(config)
        if not house.take_over():
            return ANOTHER_IS_FASTER
        house.detach()
    except OSError as error:
        print(error.strerror, file=sys.stderr)  # noqa: T201  the starter reads it
        return 1
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    sys.setswitchinterval(_SWITCH_S)
    return asyncio.run(house.run())
