"""Who waits for a limit, who goes before whom, and who has gone: by a list kept by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from penstock.coordination.limits.setting import setting_of
from penstock.testing.virtual_time import VirtualTime

NOON_MS = 1_800_000_000_000
PERIOD_MS, LIMIT, TICKET_MS = 60_000, 5, 3_000
NAMES = ("anna", "bert", "carl", "dora", "emil", "")


@dataclass
class Waiting:
    """One that stands in line."""

    priority: int
    number: int
    wants: int
    until: int

    @property
    def order(self) -> tuple[int, int]:
        return (-self.priority, self.number)


@dataclass
class Line:
    """The line as it is to be, and what was taken."""

    stands: dict[str, Waiting] = field(default_factory=dict)
    taken: list[tuple[int, int]] = field(default_factory=list)
    number: int = 0

    def before(self, name: str, priority: int, now: int) -> list[Waiting]:
        """Those who go before a caller; the silent ones among them are sent away."""
        own = self.stands.get(name)
        place = own.order if own else (-priority, self.number + 1)
        ahead = {other: one for other, one in self.stands.items() if one.order < place}
        for other, one in ahead.items():
            if one.until < now:
                del self.stands[other]
        return [one for one in ahead.values() if one.until >= now]

    def ask(self, name: str, priority: int, wants: int, now: int) -> tuple[bool, int]:
        """Whether a caller gets what it wants, and how many go before it."""
        ahead = self.before(name, priority, now)
        left = LIMIT - sum(weight for at, weight in self.taken if at > now - PERIOD_MS)
        if left - sum(one.wants for one in ahead) >= wants:
            self.stands.pop(name, None)
            self.taken.append((now, wants))
            return True, len(ahead)
        if name:
            if name not in self.stands:
                self.number += 1
                self.stands[name] = Waiting(priority, self.number, wants, 0)
            one = self.stands[name]
            one.wants, one.until = wants, now + TICKET_MS
        return False, len(ahead)


@pytest.mark.parametrize("seed", range(40))
async def test_a_line_is_kept(valkey_server, open_client, namespace, seed):
    client = await open_client(valkey_server.url, namespace=namespace)
    clock, random, line, now = VirtualTime(client), Random(seed), Line(), NOON_MS  # noqa: S311
    keys, setting = client.keys.limit("line", "all"), setting_of(f"{LIMIT}/min")
    story: list[object] = []
    for _ in range(60):
        now += random.choice((0, 1, 500, 1_500, 2_999, 3_001, 20_000))
        await clock.set_ms(now)
        name, priority = random.choice(NAMES), random.choice((-1, 0, 0, 0, 2))
        if name and random.random() < 0.1:
            story.append((now, name, "leaves"))
            assert await client.scripts.leave_line(keys=keys, ticket=name) == (name in line.stands)
            line.stands.pop(name, None)
            continue
        wants = random.choice((1, 1, 2, 3, 5))
        reply = await client.scripts.acquire_limit(
            keys=keys,
            algorithm="exact",
            wanted=wants,
            fewest=wants,
            share=1,
            hold_ms=0,
            ticket=name,
            priority=priority,
            ticket_ms=TICKET_MS,
            given_back=("", 0, 0, 0),
            setting=setting.arguments(100),
        )
        story.append((now, name, priority, wants, reply))
        assert (reply[0] == wants, reply[5]) == line.ask(name, priority, wants, now), story
