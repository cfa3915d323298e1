"""Invariants about leases and claims: one owner at a time, and the stale one is refused."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from tests.kit.history.ledger import Grant, Ledger, Track, Write
from tests.kit.history.record import Event
from tests.kit.history.verdict import Findings

__all__ = ["check_leases"]


class _GrantedBy:
    """Which fence was the highest at a moment, as far as it is certain."""

    def __init__(self, grants: list[Grant]) -> None:
        by_time = sorted(grants, key=lambda grant: grant.event.t_mono)
        self._times = [grant.event.t_mono for grant in by_time]
        self._highest = list(accumulate(by_time, lambda one, two: max(one, two, key=_fence_of)))

    def before(self, moment: float) -> Grant | None:
        place = bisect_left(self._times, moment)
        return self._highest[place - 1] if place else None


def check_leases(ledger: Ledger, findings: Findings) -> None:
    """I08, I09, I10 and I16."""
    granted = {lease: _GrantedBy(grants) for lease, grants in ledger.grants.items()}
    told = _told_losses(ledger)
    for lease, grants in ledger.grants.items():
        _fences_grow(lease, grants, granted[lease], findings)
    server_losses = [
        loss.t_mono for loss in ledger.losses if not loss.victim and loss.partition is None
    ]
    for track in ledger.tracks.values():
        lease_grants = granted.get((track.group, track.partition))
        for write in track.writes:
            newer = _newer_grant(write, lease_grants) or _newer_claim(track, write)
            lost = told.get((write.end.actor, track.group, track.partition, write.fence))
            _stale_writes_are_refused(track, write, newer, lost, findings)
        if len(track.writes) > 1:
            _one_settlement_counts(track, server_losses, findings)


def _fences_grow(
    lease: tuple[str, int | None], grants: list[Grant], granted: _GrantedBy, findings: Findings
) -> None:
    group, partition = lease
    first: dict[int, Grant] = {}
    for grant in grants:
        findings.examined["I08"] += 1
        findings.examined["I10"] += 1
        twin = first.setdefault(grant.fence, grant)
        if twin is not grant:
            text = f"fence {grant.fence} of partition {partition} was granted twice"
            findings.add("I10", f"{text} in group {group!r}", twin.event, grant.event)
        higher = granted.before(grant.since)
        if higher is not None and higher.fence > grant.fence:
            text = f"fence {grant.fence} of partition {partition} was granted after {higher.fence}"
            findings.add("I08", f"{text} in group {group!r}", higher.event, grant.event)


def _told_losses(ledger: Ledger) -> dict[tuple[str, str, int | None, int | None], Event]:
    """Leases whose owner knows that it has lost them, by owner, group, partition and fence."""
    told: dict[tuple[str, str, int | None, int | None], Event] = {}
    for loss in ledger.losses:
        if loss.victim and loss.victim == loss.actor and loss.partition is not None:
            fence = loss.fence
            if fence is None:
                fence = _held(ledger, loss)
            told.setdefault((loss.victim, loss.group, loss.partition, fence), loss)
    return told


def _held(ledger: Ledger, loss: Event) -> int | None:
    held = [
        grant.fence
        for grant in ledger.grants.get((loss.group, loss.partition), [])
        if grant.event.actor == loss.victim and grant.event.t_mono <= loss.t_mono
    ]
    return held[-1] if held else None


def _newer_grant(write: Write, granted: _GrantedBy | None) -> Grant | None:
    """A grant that had certainly been given when the write was sent, to a later owner."""
    if granted is None or write.fence is None:
        return None
    newest = granted.before(write.since)
    return newest if newest is not None and newest.fence > write.fence else None


def _newer_claim(track: Track, write: Write) -> Grant | None:
    """A claim that was certainly made after the writer's own, and before the write was sent."""
    actor = write.end.actor
    own = [one for one in track.claims if (one.event.actor, one.fence) == (actor, write.fence)]
    if not own:
        return None
    since, until = own[0].event.t_mono, write.since
    later = (one for one in track.claims if since < one.since and one.event.t_mono < until)
    return next(later, None)


def _stale_writes_are_refused(
    track: Track, write: Write, newer: Grant | None, lost: Event | None, findings: Findings
) -> None:
    findings.examined["I08"] += 1
    is_told = lost is not None and write.fence is not None and write.since > lost.t_mono
    if newer is None and not is_told:
        return
    findings.examined["I09"] += 1
    if write.outcome in {"refused", "unknown"}:
        return
    what = f"{write.end.op} of {track.sent} in group {track.group!r} with fence {write.fence}"
    evidence = (newer.event if newer else lost, write.end)
    if newer is not None and write.outcome == "accepted":
        findings.add("I08", f"{what} was accepted after {newer.fence} was granted", *evidence)
    findings.add("I09", f"{what} is stale and ended as {write.outcome}, not refused", *evidence)


def _one_settlement_counts(track: Track, server_losses: list[float], findings: Findings) -> None:
    """Two owners must not both have settled a message, unless the server forgot the first."""
    settled = [
        write
        for write in track.writes
        if write.outcome == "accepted" and write.end.op in {"ack", "dead"}
    ]
    if not settled:
        return
    findings.examined["I16"] += 1
    first = settled[0]
    for other in settled[1:]:
        is_repeat = other.end.actor == first.end.actor and other.fence == first.fence
        forgot = any(first.since <= loss <= other.end.t_mono for loss in server_losses)
        if not (is_repeat and other.end.op == first.end.op) and not forgot:
            text = f"{track.sent} was settled twice in group {track.group!r}"
            findings.add("I16", text, first.end, other.end)


def _fence_of(grant: Grant) -> int:
    return grant.fence
