"""Plays random schedules against a server, many in step with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.kit.scripts import load_script

from penstock.coordination.limits.keys import LimitKeys
from penstock.redis.client import Client
from penstock.testing.virtual_time import VirtualTime

from .limit_judge import Broken
from .limit_schedules import Schedule

SCRIPTS = ("acquire_limit", "settle_limit", "penalise_limit", "reconcile_limit")


async def play_all(
    client: Client, seeds: Sequence[int], *, steps: int = 14, side_by_side: int = 500
) -> int:
    """Play a schedule for each seed, many in step with each other; how many permits there were."""
    clock, admitted = VirtualTime(client), 0
    for first in range(0, len(seeds), side_by_side):
        admitted += await _play(client, clock, seeds[first : first + side_by_side], steps)
    return admitted


async def _play(client: Client, clock: VirtualTime, seeds: Sequence[int], steps: int) -> int:
    schedules = [Schedule(seed, steps) for seed in seeds]
    homes = [
        [LimitKeys.of(client.keys, "oracle", f"{schedule.seed}-{place}") for place in range(2)]
        for schedule in schedules
    ]
    players = [schedule.play() for schedule in schedules]
    version = client.server_version
    digests: dict[str, str] = {}
    for name in SCRIPTS:
        script = client.substituted(load_script(name))
        digests[name] = str(script.by_digest(version, (), ())[1])
        await client.call("SCRIPT", "LOAD", script.by_text(version, (), ())[1])
    waiting = {number: next(player, None) for number, player in enumerate(players)}
    while waiting := {number: call for number, call in waiting.items() if call is not None}:
        commands: list[tuple[Any, ...]] = []
        for number, (name, place, arguments) in waiting.items():
            commands.append(clock.setting(schedules[number].now_ms))
            keys = _keys_of(name, homes[number][place])
            commands.append(("EVALSHA", digests[name], len(keys), *keys, *arguments))
        replies = (await client.pipeline(commands))[1::2]
        for number, reply in zip(list(waiting), replies, strict=True):
            if isinstance(reply, Exception):
                raise Broken(f"seed {seeds[number]}: {waiting[number]} → {reply!r}")
            try:
                waiting[number] = players[number].send(reply)
            except StopIteration:
                waiting[number] = None
    await client.call("UNLINK", *(key for pair in homes for keys in pair for key in _all(keys)))
    return sum(schedule.admitted for schedule in schedules)


def _keys_of(name: str, keys: LimitKeys) -> tuple[str, ...]:
    return _all(keys) if name == "acquire_limit" else (keys.log, keys.state)


def _all(keys: LimitKeys) -> tuple[str, ...]:
    return (keys.log, keys.state, keys.waiting, keys.tickets)
