"""Suite `limits`: how fast permits are given, beside the peers, and what a limit needs of memory.

Everybody has the same embedded server, in a process of their own. Penstock counts three windows in
each call; `limits` one fixed window, in the fastest of its ways; PyrateLimiter three, in a log.
Ratios are taken within a round, in which all have a turn; the median of the rounds counts. What
could not be measured is a figure that is missed. How many calls the other coordination primitives
take is told besides, without a bar.

Thousands of callers that wait, in one process and in twenty, are to get all that the limit allows,
while the server has time for others. Beside how long a PING waits stands how long an idle process
takes to answer at the same time: that is the machine, and not the server. The server's own word is
its slow log: the longest command.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from arena import Arena, open_arena
from figures import Figure
from penstock.coordination.limits.keys import LimitKeys
from penstock.coordination.limits.scripts import LimitScripts
from penstock.coordination.limits.setting import Algorithm, setting_of
from penstock.redis.prepared_call import SharedLink
from penstock.testing.virtual_time import VirtualTime
from results import ANSWERS, Results, Turn, program
from rivals import python_of

SUITE = "limits"
PACKAGES = "bench-limits"
CROWD = 50
ONE, MANY = "one caller", f"{CROWD} callers"
CALLERS = {ONE: 1, MANY: CROWD}
ALGORITHMS: tuple[Algorithm, ...] = ("exact", "compact", "gcra")
OTHERS = ("seen", "once", "slots", "feed", "window", "cache")
LEASED, FIXED, PYRATE = "leased", "limits", "PyrateLimiter"
WAYS = ("blocking", "redispy", "coredis")
AN_HOUR, HOUR_MS, NOON_MS = 5_000, 3_600_000, 1_800_000_000_000
MEMORY = "memory of 5,000/h, "
WAITERS, ALLOWED = 10_000, {"exact": 1_000, "compact": 1_000, "gcra": 901}
CROWDS = {"1 process": 1, "20 processes": 20}
WARM_UP_S, PING_EVERY_S = 4.0, 0.01
USED, SERVER, WORST_PING = " get of the rate", " cost the server", " let a PING wait"
WORST_IDLE, LONGEST = " let an idle process wait", " need at most, in one command"
SLOW_US = 500


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    calls: int
    """Of one caller that asks the server each time; many callers make some more."""
    leased: int
    waiting_s: float


QUICK = Sizes(3, 6_000, leased=400_000, waiting_s=2)
FULL = Sizes(7, 20_000, leased=2_000_000, waiting_s=10)


async def figures(*, quick: bool) -> AsyncIterator[Figure]:
    sizes, results = QUICK if quick else FULL, Results(SUITE)
    # Others who compute meanwhile spoil the rest: the reader shall see it.
    yield Figure(SUITE, "load of the machine beforehand", os.getloadavg()[0], "", 0, ">=")
    async with open_arena() as arena:
        await results.play_rounds(arena, _turns(sizes), sizes.rounds)
        for algorithm in ALGORITHMS:
            await results.play(arena, MEMORY + algorithm, partial(_memory, algorithm))
            for crowd in CROWDS:
                turn = partial(_waiting, algorithm, crowd, sizes.waiting_s)
                await results.play(arena, _waiters(algorithm, crowd), turn)
    for figure in (*_held_against_bars(results), *results.rates()):
        yield figure


def _held_against_bars(results: Results) -> Iterator[Figure]:
    for callers in CALLERS:
        fixed = [_answers(f"{FIXED} ({way})", callers) for way in WAYS]
        for algorithm in ALGORITHMS:
            name = f"{algorithm}, 3 windows / limits' fixed window, {callers}"
            yield results.ratio(name, 1, _answers(algorithm, callers), *fixed)
        name = f"{LEASED}, 3 windows / limits' fixed window, {callers}"
        yield results.ratio(name, 20, _answers(LEASED, callers), *fixed)
        name = f"exact, 3 windows / {PYRATE}, 3 windows, {callers}"
        yield results.ratio(name, 0, _answers("exact", callers), _answers(PYRATE, callers))
    yield results.value(MEMORY + "compact", "bytes", 2_048, "<=")
    for algorithm in ALGORITHMS:
        for crowd in CROWDS:
            name = _waiters(algorithm, crowd)
            yield results.value(name + USED, "", 0.95, ">=")
            yield results.value(name + SERVER, "cores", 0.2, "<=")
            yield results.value(name + WORST_PING, "ms", 10, "<=")
            yield results.value(name + WORST_IDLE, "ms", 0, ">=")
            yield results.value(name + LONGEST, "ms", 10, "<=")
    # For the reader; these have no bar.
    yield results.value(MEMORY + "exact", "bytes", 0, ">=")
    yield results.value(MEMORY + "gcra", "bytes", 0, ">=")


def _turns(sizes: Sizes) -> dict[str, Turn]:
    turns: dict[str, Turn] = {}
    for callers in CALLERS:
        for way in WAYS:
            name = f"{FIXED} ({way})"
            turns[f"{name}, {callers}"] = partial(
                _peer, name, ("limits_peer.py", way), callers, sizes
            )
        # Who is compared has its turn soon after: a noisy moment shall hit both.
        for algorithm in ALGORITHMS:
            turns[f"{algorithm}, {callers}"] = partial(_ours, algorithm, callers, sizes.calls)
        turns[f"{LEASED}, {callers}"] = partial(_ours, LEASED, callers, sizes.leased)
        turns[f"{PYRATE}, {callers}"] = partial(_peer, PYRATE, ("pyrate_peer.py",), callers, sizes)
    for what in OTHERS:
        turns[what] = partial(_other, what, sizes.calls)
    return turns


def _answers(name: str, callers: str) -> str:
    return f"{name}, {callers}{ANSWERS}"


async def _peer(
    name: str, command: tuple[str, ...], callers: str, sizes: Sizes, arena: Arena
) -> dict[str, float]:
    runs = [python_of(PACKAGES), *command, CALLERS[callers], sizes.calls]
    return {_answers(name, callers): (await arena.run(runs))["rate"]}


async def _ours(kind: str, callers: str, count: int, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("limit_ours", kind, CALLERS[callers], count))
    return {_answers(kind, callers): told["rate"]}


async def _other(what: str, count: int, arena: Arena) -> dict[str, float]:
    told = await arena.run(program("coordination_ours", what, CROWD, count))
    return {_answers(what, MANY): told["rate"]}


def _waiters(algorithm: Algorithm, crowd: str) -> str:
    return f"{algorithm}, {WAITERS:,} who wait in {crowd}"


async def _waiting(
    algorithm: Algorithm, crowd: str, seconds: float, arena: Arena
) -> dict[str, float]:
    """What callers get that wait all the time, and what is left of the server."""
    begin, name = time.time() + WARM_UP_S, _waiters(algorithm, crowd)
    pings_ms, idles_ms = list[float](), list[float]()
    arguments = (algorithm, WAITERS, CROWDS[crowd], begin, seconds)
    async with _idle(arena) as ask_idle:
        callers = asyncio.create_task(arena.run(program("limit_waiters", *arguments)))
        await asyncio.sleep(WARM_UP_S)
        await arena.client.call("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US)
        await arena.client.call("SLOWLOG", "RESET")
        cpu_s, began = await _server_cpu_s(arena), time.perf_counter()
        while time.perf_counter() < began + seconds:
            pings_ms.append(await _took_ms(arena.client.call("PING")))
            idles_ms.append(await _took_ms(ask_idle()))
            await asyncio.sleep(PING_EVERY_S)
        used_s, took_s = await _server_cpu_s(arena) - cpu_s, time.perf_counter() - began
        slow = await arena.client.call("SLOWLOG", "GET", -1)
        granted = (await callers)["granted"]
    return {
        name + USED: granted / (ALLOWED[algorithm] * seconds),
        name + SERVER: used_s / took_s,
        name + WORST_PING: max(pings_ms),
        name + WORST_IDLE: max(idles_ms),
        name + LONGEST: max((entry[2] for entry in slow), default=SLOW_US) / 1000,
    }


async def _took_ms(answer: Awaitable[object]) -> float:
    asked = time.perf_counter()
    await answer
    return (time.perf_counter() - asked) * 1000


@asynccontextmanager
async def _idle(arena: Arena) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A process that does nothing but answer."""
    connected = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        path = f"{folder}/idle"
        server = await asyncio.start_unix_server(lambda *ends: connected.set_result(ends), path)
        with arena.started(program("idle", path)):
            reader, writer = await connected

            async def ask() -> None:
                writer.write(b"?")
                await reader.readexactly(1)

            yield ask
            writer.close()
        server.close()


async def _server_cpu_s(arena: Arena) -> float:
    info: bytes = await arena.client.call("INFO", "cpu")
    told = dict(line.split(":") for line in info.decode().split() if ":" in line)
    return float(told["used_cpu_sys"]) + float(told["used_cpu_user"])


async def _memory(algorithm: Algorithm, arena: Arena) -> dict[str, float]:
    """All keys of a limit of 5,000/h whose permits were taken over an hour."""
    client = arena.client
    real_time = client.substituted
    clock, setting = VirtualTime(client), setting_of(f"{AN_HOUR}/hour", algorithm=algorithm)
    keys: LimitKeys = LimitKeys.of(client.keys, "memory", "all")
    link = SharedLink(client)
    taken = 0
    for number in range(AN_HOUR):
        await clock.set_ms(NOON_MS + number * HOUR_MS // AN_HOUR)
        call = LimitScripts.of(client).acquire_limit(
            link=link,
            keys=keys,
            algorithm=algorithm,
            wanted=1,
            fewest=1,
            share=1,
            hold_ms=0,
            ticket="",
            priority=0,
            waiting=b"",
            setting=setting.arguments(client.settings.limits.buckets),
        )
        reply = await call.send()
        taken += int(reply[0])
    # GCRA lets fewer through in an hour that does not begin with a burst.
    if taken < (0.85 if algorithm == "gcra" else 1) * AN_HOUR:
        raise SystemExit(f"only {taken} of {AN_HOUR} permits were given")
    sizes = await client.pipeline(
        [
            ("MEMORY", "USAGE", key, "SAMPLES", 0)
            for key in (keys.log, keys.state, keys.waiting, keys.tickets)
        ]
    )
    client.substituted = real_time
    return {MEMORY + algorithm: float(sum(size or 0 for size in sizes))}
