"""A bad network on demand: a proxy in front of a server, with switches that a test turns live.

    with FaultProxy(server.address) as proxy:
        client = connect_to(proxy.url)
        proxy.latency(0.2)                       # each way
        proxy.swallow("XADD")                    # the server does it, the client never hears of it
        proxy.answer("SET", REFUSALS["OOM"])     # the server never hears of it
        proxy.cut(reset=True)
        proxy.cut(reset=True, side="client")     # the server sees nothing of it
        proxy.drop(way="to_client")              # replies vanish, the connection stays
        proxy.heal()

It runs on an event loop in a thread of its own, so tests with and without a loop can use it. A
switch has been turned when its method returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from penstock.testing.link import Lane, Link, Rule, RuleKind, Side, Way, reset_on_close
from penstock.testing.resp import Address
from penstock.testing.servers import Startable, free_port, short_folder

__all__ = ["FaultProxy"]

_CALL_TIMEOUT_S = 10.0

T = TypeVar("T")


class FaultProxy(Startable):
    """Between clients and `upstream`; forwards everything unless a switch is set.

    Listens on a port of 127.0.0.1, or with `unix` on a socket of its own; with `tls` it speaks TLS
    to clients. It reads the protocol only where a rule needs it: whatever is not RESP passes as is.
    """

    def __init__(
        self,
        upstream: Address,
        *,
        port: int | None = None,
        unix: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._upstream = upstream
        self._folder = short_folder() if unix else None
        self.address: Address = (
            str(self._folder / "p") if self._folder else ("127.0.0.1", port or free_port())
        )
        self._tls = tls
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._refusing = False
        self._to_server, self._to_client = Lane(), Lane()
        self._rules: list[Rule] = []
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._own_fault: BaseException | None = None
        self.attempts: list[float] = []
        """When each connection was tried, refused ones included: `time.monotonic()`."""

    @property
    def port(self) -> int:
        return self.address[1] if isinstance(self.address, tuple) else 0

    @property
    def url(self) -> str:
        if isinstance(self.address, str):
            return f"unix://{self.address}"
        return f"{'rediss' if self._tls else 'redis'}://{self.address[0]}:{self.address[1]}"

    @property
    def open_connections(self) -> int:
        return len(self._links)

    def most_attempts_within(self, window_s: float) -> int:
        """Return how many connections were tried in the busiest stretch of `window_s` seconds."""
        tried = list(self.attempts)
        return max((sum(0 <= later - at < window_s for later in tried) for at in tried), default=0)

    def start(self) -> None:
        self._thread.start()
        self._on_loop(self._listen())

    def close(self) -> None:
        """Stop and cut everything. Raises what went wrong inside the proxy itself, if anything."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._on_loop(self._shut_down())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._own_fault:
            raise self._own_fault

    def latency(self, seconds: float, *, way: Way | None = None) -> None:
        """Delay all bytes by this much on one way, or on each."""
        for lane in self._lanes(way):
            lane.latency_s = seconds

    def bytewise(self, *, way: Way | None = None) -> None:
        """Pass bytes on one by one."""
        for lane in self._lanes(way):
            lane.bytewise = True

    def blackhole(self, *, way: Way | None = None) -> None:
        """Let nothing through, not even an end of connection, as if a cable were pulled.

        Connections stay open, new ones open too. As with TCP, `heal` delivers what was held back.
        """
        self._on_loop(self._shut(way))

    def reset_after(self, count: int, *, way: Way) -> None:
        """Pass on `count` more bytes that way, then reset the connection. Happens once."""
        self._lane(way).bytes_until_reset = count

    def refuse(self) -> None:
        """Reset new connections as soon as they open. They are counted in `attempts`."""
        self._refusing = True

    def stop_listening(self) -> None:
        """Let the system refuse new connections: ECONNREFUSED, which is not counted."""
        self._on_loop(self._stop_listening())

    def cut(
        self,
        *,
        reset: bool = False,
        side: Side | None = None,
        keep_s: float = math.inf,
        command: str | None = None,
    ) -> None:
        """End connections now: an orderly end, or a reset.

        With `side` only that side ends, as when a middlebox forgets a connection: the proxy keeps
        the other one open for `keep_s` (an end that comes late), or until it is closed itself. What
        is sent into the open side vanishes, except requests that the proxy had already received.

        With `command` it befalls only connections whose latest request was this command.
        """
        if side is None:
            self._on_loop(self._cut(reset=reset, command=command))
        else:
            self._on_loop(self._cut_side(side, command, reset=reset, keep_s=keep_s))

    def drop(self, *, way: Way, command: str | None = None) -> None:
        """Let all bytes vanish that way, on the connections that are open now and for good.

        Both sides believe that these connections are fine; new ones are. `command` as in `cut`.
        """
        self._on_loop(self._drop(way, command))

    def swallow(self, command: str, *, times: int | None = 1) -> Rule:
        """Let the server carry out `command`, drop its reply and reset the connection.

        `command` is a name (`XADD`), the first words (`CLUSTER SLOTS`) or `*` for any. It counts
        for the next `times` matches, or with None until `heal`.
        """
        return self.add(Rule(command, RuleKind.SWALLOW, times))

    def cut_before(self, command: str, *, times: int | None = 1) -> Rule:
        """Reset the connection when `command` comes; the server never sees it."""
        return self.add(Rule(command, RuleKind.CUT, times))

    def answer(self, command: str, reply: str, *, times: int | None = 1) -> Rule:
        """Answer `command` with one line of RESP, as `-LOADING …`; the server never sees it."""
        return self.add(Rule(command, RuleKind.ANSWER, times, reply.encode() + b"\r\n"))

    def add(self, rule: Rule) -> Rule:
        """Follow a rule of one's own, as `swallow` and its like make them."""
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Forget a rule; one that `heal` has forgotten already may be named, too."""
        with contextlib.suppress(ValueError):
            self._rules.remove(rule)

    def heal(self) -> None:
        """Turn every switch back and forget all rules; what a black hole held back flows again."""
        self._on_loop(self._heal())

    def _lane(self, way: Way) -> Lane:
        return self._to_server if way == "to_server" else self._to_client

    def _lanes(self, way: Way | None) -> list[Lane]:
        return [self._lane(way)] if way else [self._to_server, self._to_client]

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    # Not asyncio's own server: it loses connections that are half accepted when it closes, and
    # does not report those that fail their TLS handshake.
    async def _listen(self) -> None:
        if self._listener is not None:
            return
        if isinstance(self.address, str):
            Path(self.address).unlink(missing_ok=True)  # noqa: ASYNC240  takes no time to speak of
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.address)
            self._listener.listen()
        else:
            self._listener = socket.create_server(self.address)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _shut(self, way: Way | None) -> None:
        for lane in self._lanes(way):
            lane.open.clear()

    async def _heal(self) -> None:
        self._rules.clear()
        self._refusing = False
        for lane in self._lanes(None):
            lane.heal()
        await self._listen()

    async def _cut_side(
        self, side: Side, command: str | None, *, reset: bool, keep_s: float
    ) -> None:
        links = [link for link in self._links if link.last_sent(command)]
        await asyncio.gather(*(link.cut_side(side, reset=reset, keep_s=keep_s) for link in links))

    async def _drop(self, way: Way, command: str | None) -> None:
        for link in self._links:
            if link.last_sent(command):
                link.drop(way)

    async def _cut(self, *, reset: bool, command: str | None = None) -> None:
        links = [link for link in self._links if link.last_sent(command)]
        tasks = [self._links[link] for link in links]
        for link in links:
            link.end(reset=reset)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.wait_ended() for link in links))

    async def _shut_down(self) -> None:
        await self._stop_listening()
        await self._cut(reset=False)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it has gone again
            return
        self.attempts.append(time.monotonic())
        if self._refusing:
            reset_on_close(client)
            client.close()
            return
        link = Link(client, self._tls, self._to_server, self._to_client, self._rules)
        task = self._loop.create_task(link.run(self._upstream))
        self._links[link] = task
        task.add_done_callback(lambda done: self._ended(link, done))

    def _ended(self, link: Link, task: asyncio.Task[None]) -> None:
        del self._links[link]
        with contextlib.suppress(asyncio.CancelledError):
            self._own_fault = self._own_fault or task.exception()
