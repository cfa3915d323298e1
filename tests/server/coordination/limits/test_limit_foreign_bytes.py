"""Any bytes in the place of a limit: an answer or a typed error, and a reset mends it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import msgspec
import pytest

from penstock import PenstockError
from penstock.coordination.limits.admin import list_limits, release_limit, reset_limit, show_limit
from penstock.coordination.limits.keys import LimitsKeys
from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.result import Usage
from penstock.coordination.limits.setting import LimitSetting, setting_of
from penstock.coordination.limits.waiters import count_callers
from penstock.errors import CommandRefused, DecodeError

pytestmark = pytest.mark.one_server

ALGORITHMS = ["exact", "compact", "gcra"]
ODD_NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, -(2**63), 1e300, float("inf"), float("-inf"))
ODD = (*ODD_NUMBERS, float("nan"), 0.5, None, True, "", "x", b"\xff", [], [1], {}, {"a": 1})


def mutated(random: Random, whole: bytes) -> bytes:
    """Some bytes of it are others, are missing, or come twice; or it is something else."""
    draw, data = random.random(), bytearray(whole)
    if draw < 0.15:
        return random.randbytes(random.choice((0, 1, 3, 9, 40, 200)))
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(data) + 1)
        kind = random.random()
        if kind < 0.5 and place < len(data):
            data[place] = random.randrange(256)
        elif kind < 0.7:
            del data[place : place + random.randint(1, 8)]
        else:
            data[place:place] = random.randbytes(random.randint(1, 8))
    return bytes(data)


def mutated_state(random: Random, whole: bytes) -> bytes:
    """One of its fields is something else; or its bytes are mutated."""
    if random.random() < 0.4:
        return mutated(random, whole)
    fields = msgspec.msgpack.decode(whole)
    for _ in range(random.choice((1, 1, 2))):
        if not fields:
            break
        draw = random.random()
        if draw < 0.8:
            fields[random.randrange(len(fields))] = random.choice(ODD)
        elif draw < 0.9:
            del fields[random.randrange(len(fields)) :]
        else:
            fields += [random.choice(ODD) for _ in range(random.choice((1, 8)))]
    return msgspec.msgpack.encode(fields)


def odd_ticket(random: Random) -> bytes:
    numbers = [str(random.choice((0, 1, 5, 10**12, 1_800_000_000_000, 10**40))) for _ in range(8)]
    text = " ".join(numbers).encode()
    return text if random.random() < 0.5 else mutated(random, text)


async def use(limit: Limit) -> None:
    """All that can be done with a limit, some of it while others wait."""
    calls = [
        limit.try_acquire(),
        limit.peek(),
        limit.reserve(2),
        limit.acquire(timeout_s=0.02),
        limit.acquire(2, timeout_s=0.02, priority=3),
        limit.penalise(0.001),
        limit.reconcile([Usage(5, 60, used=1)]),
        limit.settle("all", (b"1", 1, 0, 1)),
        limit.try_acquire(),
    ]
    for call in calls:
        with suppress(PenstockError):
            await asyncio.wait_for(call, 60)


async def works_again(app, limit: Limit) -> None:
    await reset_limit(app, limit.name)
    answer = await asyncio.wait_for(limit.acquire(timeout_s=60), 60)
    assert answer.granted == 1


async def play_states(app, algorithm: str, seeds: range) -> None:
    limit = app.limit("states", ["5/s", "20/min"], algorithm=algorithm)
    await limit.try_acquire()
    keys = limit.keys("all")
    whole = await app.redis.call("GET", keys.state)
    for seed in seeds:
        state = mutated_state(Random(seed), whole)  # noqa: S311
        await app.redis.call("SET", keys.state, state)
        try:
            await use(limit)
            await show_limit(app, limit.name)
            await works_again(app, limit)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {state!r}") from error


async def play_lines(app, algorithm: str, seeds: range) -> None:
    limit = app.limit("lines", ["5/s", "20/min"], algorithm=algorithm)
    keys = limit.keys("all")
    for seed in seeds:
        random = Random(seed)  # noqa: S311
        names = [random.randbytes(random.randrange(5)) for _ in range(3)]
        for name in names:
            score = random.choice((0, -4e15, "inf", "-inf", 1.8e12, 1e300))
            await app.redis.call("ZADD", keys.waiting, score, name)
            if random.random() < 0.8:
                await app.redis.call("HSET", keys.tickets, name, odd_ticket(random))
        if algorithm == "exact":
            member = random.choice((b"c1", b"c*", b"c9*9", b"c" + b"9" * 40, b"\xff", b""))
            await app.redis.call("ZADD", keys.log, random.choice(("inf", "-inf", 1e15)), member)
        try:
            await limit.try_acquire()  # the state, so that the line is looked at
            await use(limit)
            await show_limit(app, limit.name)
            await works_again(app, limit)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


async def play_settings(app, algorithm: str, seeds: range) -> None:
    registry = LimitsKeys.of(app.redis.keys).registry
    whole = setting_of(["5/s", "20/min"], algorithm=algorithm, buffer=1, margin=0.1).stored()
    whole = whole.replace(b"}", b',"edited":true}')
    for seed in seeds:
        stored = mutated(Random(seed), whole)  # noqa: S311
        await app.redis.call("HSET", registry, "settings", stored)
        limit = Limit(app.redis, "settings", setting_of("5/s", algorithm=algorithm))
        try:
            await use(limit)
            await list_limits(app)
            with suppress(DecodeError):
                await show_limit(app, "settings")
            await reset_limit(app, "settings")
            await release_limit(app, "settings")
            again = Limit(app.redis, "settings", setting_of("5/s", algorithm=algorithm))
            await again.try_acquire()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {stored!r}") from error


PLAYS = {"state": play_states, "line": play_lines, "setting": play_settings}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("what", PLAYS)
async def test_any_bytes_are_told_or_begun_again(app, what, algorithm):
    await PLAYS[what](app, algorithm, range(100))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("what", PLAYS)
async def test_so_it_is_with_thousands_of_them(app, what, algorithm):
    await PLAYS[what](app, algorithm, range(1_000, 3_000))


def test_no_bytes_are_another_error_than_what_cannot_be_read():
    whole = setting_of(["5/s", "20/min"], burst=2, algorithm="gcra", margin=1).stored()
    for seed in range(20_000):
        with suppress(DecodeError):
            LimitSetting.read(mutated(Random(seed), whole))  # noqa: S311


def test_any_ticket_is_counted_or_passed_over():
    assert count_callers([b"1 2 3 4 5 6 7 8", b"", b"\xff", b"1 2 3 4", b"1 2 3 -4 5 6 7 8"]) == 4
    random = Random(1)  # noqa: S311
    assert count_callers([odd_ticket(random) for _ in range(10_000)]) >= 0


async def test_what_is_not_a_state_is_named_with_the_way_out(app):
    limit = app.limit("l", "5/min")
    await app.redis.call("SET", limit.keys("all").state, b"garbage")
    with pytest.raises(CommandRefused, match="reset the limit"):
        await limit.try_acquire()
    with pytest.raises(CommandRefused, match="reset the limit"):
        await limit.acquire(timeout_s=5)
    await limit.reset()
    assert await limit.try_acquire()
