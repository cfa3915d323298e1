"""Wakeups by pub/sub: one connection for all waiting code of a process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.errors import NotOpen, ServerError, Unreachable
from penstock.redis.client import Client
from penstock.runtime.waiting import LEAST_S, retry_delay_s
from penstock.throttled_log import RateLimitedLog

__all__ = ["Wakeups"]

logger = logging.getLogger(__name__)
quiet = RateLimitedLog(logger)

# Longest wait for a subscription: without it callers poll.
_CONFIRM_S = 1.0
# After this long without a message the server is pinged, and given up after as long again.
_SILENCE_S = 5.0
_MOST_AT_ONCE = 1000
_CANCEL_AGAIN_S = 0.1


class Wakeups:
    """Calls `wake` for each message on a channel.

        wakeups = Wakeups(client)
        await wakeups.watch("penstock:feed:upload-1", news.set)

    A wakeup carries no data. It may be lost with its connection, so callers poll as well. After
    each connection is made, the first included, every `wake` is called once. `wake` is called in
    the event loop and must not block. `listen` is for callers that need the messages themselves.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._channels: dict[str, _Channel] = {}
        self._changed = asyncio.Event()
        self._asked: set[str] = set()
        """Channels that this connection has requested."""
        self._confirmed: set[str] = set()
        """Channels that the server has confirmed."""
        self._served_since: float | None = None
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._served_since is not None

    async def watch(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` for each message on `channel` from now on.

        Returns when the server has confirmed, or after a second, or at once without a connection;
        then `wake` is called when there is one.
        """
        place = self._place(channel)
        place.wakes[wake] = place.wakes.get(wake, 0) + 1
        self._begin()
        self._changed.set()
        if place.subscribed.is_set() or self._failures:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONFIRM_S):
                    await place.subscribed.wait()
        except BaseException:
            await self.unwatch(channel, wake)
            raise

    async def unwatch(self, channel: str, wake: Callable[[], None]) -> None:
        """Undo one `watch`; unknown ones are ignored."""
        place = self._channels.get(channel)
        if place is None or wake not in place.wakes:
            return
        place.wakes[wake] -= 1
        if place.wakes[wake] == 0:
            del place.wakes[wake]
        if not place.wakes and not place.hearers:
            del self._channels[channel]
            self._changed.set()

    def listen(self, channel: str, hear: Callable[[bytes | None], None]) -> None:
        """Call `hear` with each message on `channel`, until `close`. A second call has no effect.

        None stands for a new connection, on which messages may have been lost; it comes first.
        """
        self._place(channel).hearers.add(hear)
        self._begin()
        self._changed.set()

    def _place(self, channel: str) -> _Channel:
        place = self._channels.get(channel)
        if place is None:
            place = self._channels[channel] = _Channel()
            if channel in self._confirmed:  # given up a moment ago, and not yet unsubscribed
                place.subscribed.set()
        return place

    async def close(self) -> None:
        """End the connection. May be called twice; a later `watch` opens another."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._channels.clear()

    # ---- the connection

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._changed = asyncio.Event()
            self._failures = 0
            self._task = asyncio.create_task(self._run(), name="wakeups")

    async def _run(self) -> None:
        # redis-py takes a while to import; see Client.redis_py.
        from redis.exceptions import RedisError  # noqa: PLC0415

        while self._is_wanted():
            began = time.monotonic()
            try:
                if self._failures:
                    # An error of this call makes the client look for another server.
                    await self._client.call("PING")
                await self._connect_and_serve()
            except NotOpen:
                return  # the client was closed; the next `watch` starts again
            except (RedisError, OSError, ServerError) as error:
                quiet.warning(type(error).__name__, "no wakeups, polling instead: %s", error)
            finally:
                lived = self._served_since is not None and time.monotonic() - began > LEAST_S
                self._lose_connection()
            self._failures = 1 if lived else self._failures + 1
            if not lived and self._is_wanted():  # else it is replaced at once
                await asyncio.sleep(retry_delay_s(self._failures))

    def _is_wanted(self) -> bool:
        """Whether this was not closed: redis-py may swallow a cancellation."""
        return self._task is asyncio.current_task()

    def _lose_connection(self) -> None:
        self._served_since = None
        self._asked.clear()
        self._confirmed.clear()
        for place in self._channels.values():
            place.subscribed.set()  # end the waits for it
            place.subscribed.clear()

    async def _connect_and_serve(self) -> None:
        """Read wakeups until the connection ends, which is always an error.

        redis-py's own `PubSub` reconnects in whichever task finds the connection lost; here one
        task reads and another subscribes, so a bare connection is used. No task group: it would
        wait for ever for a task whose cancellation redis-py has swallowed; `_end` cancels again.
        """
        pool = (await self._client.redis_py()).connection_pool
        connection: Any = await pool.get_connection()
        tasks = [
            asyncio.create_task(self._read(connection), name="wakeups read"),
            asyncio.create_task(self._ask(connection), name="wakeups ask"),
        ]
        try:
            if not self._is_wanted():
                return
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            await _end(*tasks)
            # A subscribed connection must not be reused.
            with suppress(Exception):
                await connection.disconnect()
            await pool.release(connection)

    async def _ask(self, connection: Any) -> None:
        """Keep the subscriptions up to date."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            for command, channels in (
                ("SUBSCRIBE", self._channels.keys() - self._asked),
                ("UNSUBSCRIBE", self._asked - self._channels.keys()),
            ):
                self._asked ^= channels
                self._confirmed -= channels
                names = list(channels)
                for first in range(0, len(names), _MOST_AT_ONCE):
                    some = names[first : first + _MOST_AT_ONCE]
                    await connection.send_command(command, *some, check_health=False)

    async def _read(self, connection: Any) -> None:
        silent = False
        while True:
            message = await connection.read_response(
                timeout=_SILENCE_S, disconnect_on_error=False, push_request=True
            )
            if message is not None:
                silent = False
                self._take(message)
            elif silent:
                raise Unreachable("the connection for wakeups has been silent for too long")
            else:
                silent = True
                await connection.send_command("PING", check_health=False)

    def _take(self, message: Any) -> None:
        if message[0] not in {b"message", b"subscribe"}:
            return
        channel = message[1].decode()
        place = self._channels.get(channel)
        if message[0] == b"subscribe":
            self._failures = 0
            self._served_since = self._served_since or time.monotonic()
            self._confirmed.add(channel)
            if place is not None:
                place.subscribed.set()
        if place is None:
            return
        data: bytes | None = message[2] if message[0] == b"message" else None
        for call in [*place.wakes, *(partial(hear, data) for hear in place.hearers)]:
            try:
                call()
            except Exception:
                logger.exception("a wakeup callback failed")


class _Channel:
    """Callbacks of a channel, and whether it is subscribed."""

    def __init__(self) -> None:
        self.wakes: dict[Callable[[], None], int] = {}
        self.hearers: set[Callable[[bytes | None], None]] = set()
        self.subscribed = asyncio.Event()


async def _end(*tasks: asyncio.Task[None]) -> None:
    """Cancel until they have ended: `asyncio.wait_for`, which redis-py uses, may swallow it."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
