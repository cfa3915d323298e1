"""Values kept for a time, as JSON; each made by one at a time."""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import (
    Any,
    Final,
    Literal,
    Optional,
    TypeVar,
    cast,
    overload,
)

from penstock.coordination.cache.keys import CacheKeys
from penstock.coordination.cache.scripts import CacheScripts
from penstock.coordination.cache.single_flight import SingleFlight
from penstock.coordination.leases import Leases
from penstock.coordination.values import lasting_ms, to_bytes, to_text
from penstock.delivery.queries import is_wrong_type
from penstock.errors import (
    CommandRefused,
    DecodeError,
    InvalidItem,
    PenstockError,
    ServerError,
    SettingError,
)
from penstock.errors.base import shown
from penstock.redis.client import Client
from penstock.redis.codec import Codec, Unpacked, bare_type
from penstock.redis.node import Role
from penstock.redis.wire import Argument, Command, Reply
from penstock.throttled_log import RateLimitedLog

__all__ = ["Cache"]

quiet = RateLimitedLog(logging.getLogger(__name__))

T = TypeVar("T")

Bound = float | str
"""A score, or a bound of Redis: `-inf`, `+inf`, or `(5` for what lies beyond 5."""

_FOR_EVER: Final = -1
_CHUNK: Final = 500
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of values that one reply has, unless one alone has more."""
_PLAIN: Final[tuple[Any, ...]] = (str, bytes, bytearray, memoryview)
_MOST_COUNT: Final = 2**31 - 1
_is_bound = re.compile(r"\(?[+-]?(inf|\d+(\.\d*)?([eE][+-]?\d+)?)", re.ASCII).fullmatch


class Cache:
    """Values of one space, kept for a time: `cache:<space>:<key>`, as JSON.

        cameras = app.cache("camera")
        await cameras.set("front_door", {"name": "Front door"}, ttl=600)
        camera = await cameras.get("front_door")

        async def load() -> Camera: ...
        camera = await cameras.get_or_set("front_door", load, type=Camera)

    Every value has a time to live, `cache.ttl_s` by default. `type` is the type of a value;
    texts and bytes are JSON, too. A large value is compressed. Values may vanish at any time: the
    server may run short of memory.
    """

    def __init__(
        self,
        client: Client,
        codec: Codec,
        space: str,
        leases: Leases,
        *,
        ttl_s: float | timedelta | None = None,
    ) -> None:
        CacheKeys.of(client.keys, space, "x")  # raises for an invalid space
        self.space = space
        self._client, self._codec = client, codec
        self._ttl_s = lasting_ms(ttl_s, client.settings.cache.ttl_s) / 1000
        self._begin = codec.beginner(Any)
        self._flights = SingleFlight(client, leases)

    def __repr__(self) -> str:
        return f"Cache({self.space!r})"

    # ---- values

    @overload
    async def get(self, key: str, default: None = None, *, type: type[T]) -> T | None: ...
    @overload
    async def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any: ...
    async def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:  # noqa: A002
        """The value, or `default` if there is none. A stored null is the value None.

        DecodeError if it is not of the `type`.
        """
        data: bytes | None = await self._call("GET", self._keys(key).value)
        return default if data is None else await self._decoded(data, type)

    async def get_many(self, keys: Iterable[str], *, type: Any = Any) -> dict[str, Any]:  # noqa: A002
        """The values that are there, by their keys; a round trip for each 500, more for large ones.

        What cannot be read as the `type` is left out and logged: it hides no other value.
        """
        places, decode = {key: self._keys(key) for key in keys}, self._decoder(type)
        values, _ = await self._read_many(places, decode)
        return values

    async def set(
        self, key: str, value: Any, *, ttl: float | timedelta | None = None, nx: bool = False
    ) -> bool:
        """Store a value; with `nx` only if there is none: False if there was one.

        Who makes the value at this moment, in `get_or_set`, does not overwrite it.
        """
        keys, ttl_ms = self._keys(key), lasting_ms(ttl, self._ttl_s)
        return await CacheScripts.of(self._client).set_cached(
            value=keys.value,
            flight=keys.flight,
            data=await self._encoded(value),
            ttl_ms=ttl_ms,
            nx=int(nx),
        )

    async def delete(self, *keys: str) -> int:
        """Delete values; how many there were. What is being made at this moment is not stored."""
        each = [self._keys(key) for key in keys]
        commands = [("DEL", key) for one in each for key in (one.flight, one.value)]
        return sum((await self._pipeline(commands))[1::2])

    async def exists(self, key: str) -> bool:
        return bool(await self._call("EXISTS", self._keys(key).value))

    async def expire(self, key: str, ttl: float | timedelta) -> bool:
        """Let a value last so long from now on; False if there is none."""
        ttl_ms = lasting_ms(ttl, self._ttl_s)
        return bool(await self._call("PEXPIRE", self._keys(key).value, ttl_ms))

    async def ttl(self, key: str) -> float | None:
        """Seconds that a value still lasts; None if there is none, infinity if it has no end."""
        left_ms: int = await self._call("PTTL", self._keys(key).value)
        if left_ms == _FOR_EVER:
            return math.inf  # another program has stored it
        return left_ms / 1000 if left_ms >= 0 else None

    @overload
    async def get_or_set(
        self,
        key: str,
        make: Callable[[], Awaitable[T] | T],
        *,
        ttl: float | timedelta | None = None,
        type: type[T],
    ) -> T: ...
    @overload
    async def get_or_set(
        self,
        key: str,
        make: Callable[[], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,
    ) -> Any: ...
    async def get_or_set(
        self,
        key: str,
        make: Callable[[], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,  # noqa: A002
    ) -> Any:
        """The value; if there is none, what `make()` returns (or awaits), which is stored.

        However many ask at once, in however many processes, one makes it and the others wait. What
        `make` raises reaches those who wait in this process; others make it themselves. If the one
        that makes it dies, another does after `cache.flight_s`.

        Everybody gets a copy of its own, as `get` reads it. A value that is not of the `type` is
        logged and made again. What was made but cannot be stored is returned all the same, also if
        another program keeps something else at the key: then each caller makes it.
        """
        keys, ttl_ms, decode = self._keys(key), lasting_ms(ttl, self._ttl_s), self._decoder(type)
        found: bytes | None = None
        try:
            found = await self._call("GET", keys.value)
            if found is not None:
                return decode(found)
        except (CommandRefused, DecodeError) as error:
            if isinstance(error, CommandRefused) and not is_wrong_type(error):
                raise
            self._warn(key, error)

        async def made() -> bytes:
            value: Any = make()
            if inspect.isawaitable(value):
                value = await value
            data = await self._encoded(value)
            decode(data)  # an unreadable value is not stored
            return data

        return decode(await self._flights.value(keys, made, ttl_ms, found or b""))

    @overload
    async def get_or_set_many(
        self,
        keys: Iterable[str],
        make_many: Callable[[list[str]], Awaitable[Mapping[str, T]] | Mapping[str, T]],
        *,
        ttl: float | timedelta | None = None,
        type: type[T],
    ) -> dict[str, T]: ...
    @overload
    async def get_or_set_many(
        self,
        keys: Iterable[str],
        make_many: Callable[[list[str]], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,
    ) -> dict[str, Any]: ...
    async def get_or_set_many(
        self,
        keys: Iterable[str],
        make_many: Callable[[list[str]], Any],
        *,
        ttl: float | timedelta | None = None,
        type: Any = Any,  # noqa: A002
    ) -> dict[str, Any]:
        """The values by their keys; `make_many(missing)` returns (or awaits) what is missing.

        As `get_or_set`, in a few round trips for each 500 keys: each value is made by one at a time
        over all processes. `make_many` is called once for all that no other caller makes now,
        and again for what others then failed to make. What it leaves out is left out here. What it
        raises reaches this caller alone; others who wait for those values make them themselves.
        """
        ttl_ms, decode = lasting_ms(ttl, self._ttl_s), self._decoder(type)
        places = {key: self._keys(key) for key in keys}
        values, missing = await self._read_many(places, decode)

        async def made(names: list[str]) -> dict[str, bytes]:
            answer: Any = make_many(names)
            if inspect.isawaitable(answer):
                answer = await answer
            if not isinstance(answer, Mapping):
                raise InvalidItem(f"made {shown(answer, 60)}: expected values by their keys")
            given = cast("Mapping[str, Any]", answer)
            data = {name: await self._encoded(given[name]) for name in names if name in given}
            for one in data.values():
                decode(one)  # an unreadable value is not stored
            return data

        if missing:
            found = await self._flights.values(missing, made, ttl_ms)
            for key, data in found.items():
                try:
                    values[key] = decode(data)
                except DecodeError as error:  # another program has stored it meanwhile
                    self._warn(key, error)
        return {key: values[key] for key in places if key in values}

    # ---- sorted sets

    async def zadd(
        self, key: str, mapping: Mapping[str, float], *, ttl: float | timedelta | None = None
    ) -> int:
        """Add members with scores to a sorted set, or change theirs; how many are new.

        With `ttl` the set lasts so long from now on; without, until it is empty.
        """
        if not isinstance(mapping, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidItem(f"members {shown(mapping, 60)}: expected scores by their members")
        pairs: list[Argument] = []
        for member, score in mapping.items():
            pairs += (_score(score), to_bytes(member, "member"))
        if not pairs:
            return 0
        place = self._keys(key).sorted
        if ttl is None:
            return await self._call("ZADD", place, *pairs)
        ttl_ms = lasting_ms(ttl, self._ttl_s)
        return await CacheScripts.of(self._client).add_sorted(
            sorted_set=place, ttl_ms=ttl_ms, pairs=pairs
        )

    async def zpopmax(self, key: str, count: int = 1) -> list[tuple[str, float]]:
        """Take out the members of the highest scores, highest first."""
        return await self._popped("ZPOPMAX", key, count)

    async def zpopmin(self, key: str, count: int = 1) -> list[tuple[str, float]]:
        """Take out the members of the lowest scores, lowest first."""
        return await self._popped("ZPOPMIN", key, count)

    async def zrangebyscore(
        self,
        key: str,
        min: Bound,  # noqa: A002
        max: Bound,  # noqa: A002
        *,
        limit: int | None = None,
    ) -> list[str]:
        """Members whose scores lie between two, both included, lowest first."""
        command: list[Argument] = [
            "ZRANGEBYSCORE",
            self._keys(key).sorted,
            _bound(min),
            _bound(max),
        ]
        if limit is not None:
            command += ("LIMIT", 0, _count("limit", limit))
        return [to_text(member) for member in await self._call(*command)]

    async def zremrangebyscore(self, key: str, min: Bound, max: Bound) -> int:  # noqa: A002
        """Remove the members whose scores lie between two, both included; how many."""
        return await self._call(
            "ZREMRANGEBYSCORE", self._keys(key).sorted, _bound(min), _bound(max)
        )

    async def zcard(self, key: str) -> int:
        """How many members there are."""
        return await self._call("ZCARD", self._keys(key).sorted)

    # inside

    async def _encoded(self, value: Any) -> bytes:
        begun = self._begin(value)
        return await self._codec.finish(begun) if isinstance(begun, Unpacked) else begun

    async def _decoded(self, data: bytes, type_: Any) -> Any:
        if self._codec.is_large(data) and bare_type(type_) not in _PLAIN:
            return await self._codec.decode_large(data, type_)
        return self._decoder(type_)(data)

    def _keys(self, key: str) -> CacheKeys:
        return CacheKeys.of(self._client.keys, self.space, key)

    async def _call(self, *command: Argument) -> Reply:
        return await self._client.call(*command, role=Role.CACHE)

    async def _pipeline(self, commands: Sequence[Command], *, typed: bool = False) -> list[Reply]:
        """Send commands; with `typed`, being refused a key of another type is a reply as well."""
        replies: list[Reply] = []
        for start in range(0, len(commands), _CHUNK):
            chunk = commands[start : start + _CHUNK]
            replies += await self._client.pipeline(chunk, role=Role.CACHE)
        for reply in replies:
            if isinstance(reply, ServerError) and not (typed and is_wrong_type(reply)):
                raise reply
        return replies

    async def _stored(
        self, places: Mapping[str, CacheKeys]
    ) -> AsyncIterator[tuple[str, bytes | CommandRefused | None]]:
        """What is stored for each key: a round trip for each 500, and more for large values."""
        names = list(places)
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK]
            most = _MOST_BYTES // len(chunk)
            parts = await self._pipeline(
                [("GETRANGE", places[key].value, 0, most - 1) for key in chunk], typed=True
            )
            large: list[str] = []
            for key, part in zip(chunk, parts, strict=True):
                if isinstance(part, CommandRefused):
                    yield key, part
                elif len(part) == most:
                    large.append(key)
                else:
                    yield key, part or None  # no value is empty
            async for key, data in self._large(places, large):
                yield key, data

    async def _large(
        self, places: Mapping[str, CacheKeys], names: Sequence[str]
    ) -> AsyncIterator[tuple[str, bytes | CommandRefused | None]]:
        """Large values, in pages by their size."""
        sizes = await self._pipeline([("STRLEN", places[key].value) for key in names], typed=True)
        pages: list[list[str]] = []
        room = 0
        for key, size in zip(names, sizes, strict=True):
            length = 0 if isinstance(size, CommandRefused) else size
            if not pages or length > room:
                pages.append([])
                room = _MOST_BYTES
            pages[-1].append(key)
            room -= length
        for page in pages:
            found = await self._pipeline([("GET", places[key].value) for key in page], typed=True)
            for key, data in zip(page, found, strict=True):
                yield key, data

    async def _read_many(
        self, places: Mapping[str, CacheKeys], decode: Callable[[bytes], Any]
    ) -> tuple[dict[str, Any], dict[str, tuple[CacheKeys, bytes]]]:
        """Read values: those that can be used, and the others with the bytes that cannot be."""
        values: dict[str, Any] = {}
        missing: dict[str, tuple[CacheKeys, bytes]] = {}
        async for key, data in self._stored(places):
            place = places[key]
            missing[key] = (place, b"")
            if isinstance(data, CommandRefused):
                self._warn(key, data)
            elif data is not None:
                try:
                    values[key] = decode(data)
                    del missing[key]
                except DecodeError as error:
                    missing[key] = (place, data)
                    self._warn(key, error)
        return values, missing

    def _warn(self, key: str, error: PenstockError) -> None:
        quiet.warning(
            self.space, "cache %s: the value of %.100s cannot be used: %s", self.space, key, error
        )

    async def _popped(
        self, command: Literal["ZPOPMAX", "ZPOPMIN"], key: str, count: int
    ) -> list[tuple[str, float]]:
        flat = await self._call(command, self._keys(key).sorted, _count("count", count))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(to_text(member), float(score)) for member, score in pairs]

    def _decoder(self, type_: Any) -> Callable[[bytes], Any]:
        if bare_type(type_) not in _PLAIN:
            return self._codec.decoder(type_)
        # Alone these would be read as they are, without quotes.
        decode = self._codec.decoder(Optional[type_])  # noqa: UP045  it is a value here

        def decode_plain(data: bytes) -> Any:
            value = decode(data)
            if value is None:
                raise DecodeError(f"cannot read {type_}: it is null", data)
            return value

        return decode_plain


def _score(score: object) -> str:
    if isinstance(score, (int, float)) and not isinstance(score, bool):
        try:
            if not math.isnan(score):
                return repr(float(score))
        except OverflowError:
            pass
    raise InvalidItem(f"score {shown(score, 60)}: expected a number")


def _bound(bound: object) -> str:
    if isinstance(bound, str):
        if _is_bound(bound):
            return bound
        raise InvalidItem(f"score {bound[:60]!r}: expected a number, '-inf', '+inf' or '(5'")
    return _score(bound)


def _count(name: str, count: object) -> int:
    if type(count) is int and 1 <= count <= _MOST_COUNT:
        return count
    raise SettingError(name, count, f"a whole number from 1 to {_MOST_COUNT}")
