"""Invariants about messages: none lost, none doubled, none invented."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.kit.history.ledger import Ledger, Sent, Track
from tests.kit.history.record import Event
from tests.kit.history.verdict import Counts, Findings, Rules

__all__ = ["check_messages"]

_EVERY_GROUP = ""


@dataclass(frozen=True, slots=True)
class _Fates:
    """Where each sent message is, by group and number."""

    finished: Counter[tuple[str, int]]
    dead: set[tuple[str, int]]
    placed: dict[tuple[str, int], list[Event]]
    purged: set[tuple[str, int]]

    def is_settled(self, group: str, number: int) -> bool:
        fate = (group, number)
        everywhere = (_EVERY_GROUP, number)
        return (
            fate in self.finished
            or fate in self.placed
            or fate in self.dead
            or everywhere in self.placed
            or fate in self.purged
            or everywhere in self.purged
        )


def check_messages(ledger: Ledger, rules: Rules, findings: Findings) -> Counts:
    """I01, I02, I03, I07, I15 and I26."""
    fates = _fates(ledger)
    lost = _nothing_confirmed_is_lost(ledger, rules, fates, findings)
    _each_is_in_one_place(ledger, fates, findings)
    _one_copy_of_each(ledger, findings)
    _nothing_comes_from_the_void(ledger, findings)
    _rejected_means_absent(ledger, findings)
    _dead_letters_are_complete(ledger, rules, fates, findings)
    return _counts(ledger, fates, lost)


def _fates(ledger: Ledger) -> _Fates:
    finished: Counter[tuple[str, int]] = Counter()
    dead: set[tuple[str, int]] = set()
    placed: defaultdict[tuple[str, int], list[Event]] = defaultdict(list)
    for track in ledger.tracks.values():
        fate = (track.group, track.sent.number)
        for run in track.runs:
            if run.done:
                finished[fate] += 1
        if track.accepted("dead"):
            dead.add(fate)
        if track.places:
            placed[fate] += track.places
    for sent, event in ledger.everywhere:
        placed[_EVERY_GROUP, sent.number].append(event)
    return _Fates(finished, dead, dict(placed), _purged(ledger))


def _purged(ledger: Ledger) -> set[tuple[str, int]]:
    purged: set[tuple[str, int]] = set()
    for event in ledger.purges:
        if event.msg:
            sent = ledger.find(event)
            if sent is not None:
                purged.add((event.group, sent.number))
            continue
        purged.update(
            (event.group, sent.number)
            for sent in ledger.sents
            if sent.first.t_mono < event.t_mono
            and (event.partition is None or sent.partition == event.partition)
        )
    return purged


def _nothing_confirmed_is_lost(
    ledger: Ledger, rules: Rules, fates: _Fates, findings: Findings
) -> int:
    groups = rules.groups or ledger.groups or {_EVERY_GROUP}
    lost = 0
    for sent in ledger.sents:
        if not sent.is_due:
            continue
        findings.examined["I01"] += 1
        for group in groups:
            if not fates.is_settled(group, sent.number):
                lost += 1
                evidence = sent.confirmed[0] if sent.confirmed else sent.seen
                text = f"{sent} is lost to group {group!r}: sent, and neither finished nor stored"
                findings.add("I01", text, evidence)
    return lost


def _each_is_in_one_place(ledger: Ledger, fates: _Fates, findings: Findings) -> None:
    for (group, number), own in fates.placed.items():
        places = (
            own if group == _EVERY_GROUP else own + fates.placed.get((_EVERY_GROUP, number), [])
        )
        findings.examined["I02"] += 1
        if len(places) > 1:
            where = ", ".join(event.place for event in places)
            text = f"{ledger.sents[number]} is in several places for group {group!r}: {where}"
            findings.add("I02", text, *places)
    for track in ledger.tracks.values():
        settled = track.accepted("ack", "dead")
        left = next((event for event in track.places if event.place != "dlq"), None)
        if settled is not None:
            findings.examined["I02"] += 1
            if left is not None:
                text = (
                    f"{track.sent} was settled by group {track.group!r} and is still {left.place}"
                )
                findings.add("I02", text, settled.end, left)


def _one_copy_of_each(ledger: Ledger, findings: Findings) -> None:
    for sent in ledger.sents:
        findings.examined["I03"] += 1
        if len(sent.copies) > 1 + sent.replays:
            named = f" with idempotency key {sent.first.idem!r}" if sent.first.idem else ""
            ids = ", ".join(f"{partition}/{msg}" for partition, msg in sorted(sent.copies, key=str))
            text = f"{sent}{named} exists {len(sent.copies)} times: {ids}"
            findings.add("I03", text, sent.first, *sent.confirmed)
        elif len(ids := {(event.partition, event.msg) for event in sent.confirmed}) > 1:
            text = f"sends with idempotency key {sent.first.idem!r} returned several ids: {ids}"
            findings.add("I03", text, *sent.confirmed)


def _nothing_comes_from_the_void(ledger: Ledger, findings: Findings) -> None:
    findings.examined["I07"] += len(ledger.tracks) + len(ledger.voids)
    for event in ledger.voids:
        text = f"{event.op} of {event.msg} in partition {event.partition}, which nobody sent"
        findings.add("I07", text, event)
    for sent, event in ledger.altered:
        text = f"{event.op} of {event.msg} carries other bytes than {sent} was sent with"
        findings.add("I07", text, sent.first, event)


def _rejected_means_absent(ledger: Ledger, findings: Findings) -> None:
    for sent in ledger.sents:
        if sent.is_rejected:
            findings.examined["I26"] += 1
            if sent.seen is not None:
                text = f"{sent} was rejected, and yet there is a {sent.seen.op} of it"
                findings.add("I26", text, sent.first, sent.seen)


def _dead_letters_are_complete(
    ledger: Ledger, rules: Rules, fates: _Fates, findings: Findings
) -> None:
    for track in ledger.tracks.values():
        records = [event for event in track.places if event.place == "dlq"]
        buried = track.accepted("dead")
        is_exhausted = _is_exhausted(track, rules)
        if not (records or buried or is_exhausted):
            continue
        findings.examined["I15"] += 1
        for record in records:
            _dead_letter_is_honest(track, record, findings)
        if len(records) > 1:
            text = f"{track.sent} has {len(records)} dead letters for group {track.group!r}"
            findings.add("I15", text, *records)
        number = track.sent.number
        may_be_gone = track.sent.replays or not fates.purged.isdisjoint(
            {(track.group, number), (_EVERY_GROUP, number)}
        )
        if records or may_be_gone or (buried and not ledger.finals):
            continue
        if buried or not track.places:
            why = "was dead-lettered" if buried else "has no attempt left"
            text = f"{track.sent} {why} in group {track.group!r}, but there is no dead letter"
            findings.add("I15", text, buried.end if buried else track.runs[-1].start)


def _is_exhausted(track: Track, rules: Rules) -> bool:
    charged = [run for run in track.runs if run.charged]
    if rules.max_attempts is None or any(run.done for run in charged):
        return False
    return len(charged) >= rules.max_attempts


def _dead_letter_is_honest(track: Track, record: Event, findings: Findings) -> None:
    sent: Sent = track.sent
    missing: list[str] = []
    if record.key != sent.first.key:
        missing.append("key")
    if record.payload_hash != sent.first.payload_hash:
        missing.append("payload")
    if record.attempt < sum(run.charged for run in track.runs):
        missing.append("attempts")
    if not record.detail:
        missing.append("reason")
    if missing:
        text = f"the dead letter of {sent} in group {track.group!r} lacks the right "
        findings.add("I15", text + ", ".join(missing), record)


def _counts(ledger: Ledger, fates: _Fates, lost: int) -> Counts:
    unknown = [sent for sent in ledger.sents if not sent.confirmed and sent.open_calls]
    in_dlq = {
        fate
        for fate, places in fates.placed.items()
        if any(event.place == "dlq" for event in places)
    }
    return Counts(
        sent_ok=sum(sent.is_confirmed for sent in ledger.sents),
        sent_unknown=len(unknown),
        sent_failed=sum(sent.is_rejected for sent in ledger.sents),
        recovered=sum(sent.seen is not None for sent in unknown),
        started=sum(len(track.runs) for track in ledger.tracks.values()),
        finished=len(fates.finished),
        duplicated=sum(times > 1 for times in fates.finished.values()),
        dead=len(fates.dead | in_dlq),
        lost=lost,
    )
