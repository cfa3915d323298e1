"""A line of a limit as it is to be: kept by hand, every ticket looked at each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

LATE_MS = 100


@dataclass
class Group:
    """The foremost callers of a process, as it tells of them."""

    costs: list[int]
    number: int = 1
    age_ms: int = 0
    last_age_ms: int = 0
    behind: int = 0
    """What callers behind the group want; each one permit."""
    pause_ms: int = 500
    ticket_ms: int = 3_000
    depths: list[tuple[int, int]] = field(default_factory=list)
    early_ms: int = 0

    def told(self) -> bytes:
        return msgspec.msgpack.encode(
            (
                self.number,
                self.age_ms,
                self.last_age_ms,
                len(self.costs) + self.behind,
                sum(self.costs) + self.behind,
                self.pause_ms,
                self.ticket_ms,
                self.costs,
                self.depths,
                self.early_ms,
            )
        )


@dataclass
class Ticket:
    """One that stands in line."""

    priority: int
    number: int
    came: int
    want: int
    total: int
    last: int
    renewed: int
    pause_ms: int
    ticket_ms: int

    def is_void(self, now: int) -> bool:
        return now - self.renewed > self.ticket_ms

    def late_in(self, now: int) -> int:
        """The ms after which it is passed over."""
        return self.renewed + self.pause_ms + LATE_MS + 1 - now

    def kept(self, now: int, priority: int, came: int | None) -> int:
        """What is kept for it from one who stands behind."""
        if self.is_void(now) or self.late_in(now) <= 0:
            return 0
        all_of_it = came is None or self.priority > priority or self.last <= came
        return self.total if all_of_it else self.want


@dataclass
class Line:
    """All tickets, and what was taken."""

    limit: int
    period_ms: int
    tickets: dict[str, Ticket] = field(default_factory=dict)
    taken: list[tuple[int, int]] = field(default_factory=list)

    def ask(self, name: str, priority: int, group: Group, now: int) -> tuple[int, int]:
        """What the callers get, and how many tickets are before theirs."""
        own, came = self.tickets.get(name), None
        if name:
            came = now - group.age_ms
            if own is not None and own.number == group.number:
                came = min(came, own.came)
        place = (-priority, came if came is not None else float("inf"))
        ahead = {
            other: one
            for other, one in self.tickets.items()
            if other != name and (-one.priority, one.came) < place
        }
        for other, one in ahead.items():
            if one.is_void(now):
                del self.tickets[other]
        before = [one for one in ahead.values() if one.kept(now, priority, came)]
        kept = sum(one.kept(now, priority, came) for one in before)
        # Who is next comes when the one before it does not.
        next_ms = before[0].late_in(now) if len(before) == 1 else group.pause_ms
        left = self.limit - sum(cost for at, cost in self.taken if at > now - self.period_ms)
        granted = self._grant(group.costs, left - kept, now)
        if name:
            self.tickets.pop(name, None)
            if granted < sum(group.costs):
                self.tickets[name] = Ticket(
                    priority,
                    group.number,
                    came,
                    sum(group.costs) - granted,
                    sum(group.costs) + group.behind - granted,
                    now - group.last_age_ms,
                    now,
                    min(group.pause_ms, next_ms),
                    group.ticket_ms,
                )
        return granted, len(before)

    def _grant(self, costs: list[int], room: int, now: int) -> int:
        granted = 0
        for cost in costs:
            if granted + cost > room:
                break
            granted += cost
            self.taken.append((now, cost))
        return granted
