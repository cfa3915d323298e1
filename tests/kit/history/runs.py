"""Invariants about runs of a handler: their number, their order, their reasons."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from math import inf

from tests.kit.history.ledger import Ledger, Run, Track
from tests.kit.history.record import Event
from tests.kit.history.verdict import Findings, Rules

__all__ = ["check_runs"]


def check_runs(ledger: Ledger, rules: Rules, findings: Findings) -> None:
    """I04, I05, I06, I11, I12 and I19."""
    losses = Losses(ledger)
    tracks = [track for track in ledger.tracks.values() if track.runs]
    for track in tracks:
        if len(track.runs) > 1:
            _reruns_have_a_reason(track, losses, findings)
        _attempts_are_kept(track, rules, findings)
        if track.sent.first.delay_s:
            _nothing_runs_early(track, rules, findings)
    if rules.ordering != "none":
        _starts_follow_the_producer(tracks, findings)
        _starts_follow_the_log(tracks, rules, findings)
        _runs_do_not_overlap(tracks, rules, findings)


def _reruns_have_a_reason(track: Track, losses: Losses, findings: Findings) -> None:
    for earlier, later in pairwise(track.runs):
        findings.examined["I04"] += 1
        if _ended_to_be_repeated(track, earlier, later):
            continue
        if not losses.explain(track, earlier, later):
            text = f"{track.sent} ran again in group {track.group!r} though nothing was lost"
            findings.add("I04", text, earlier.start, earlier.finish, later.start)


def _ended_to_be_repeated(track: Track, earlier: Run, later: Run) -> bool:
    finish = earlier.finish
    if finish is not None and finish.phase != "ok":
        return finish.t_mono <= later.start.t_mono
    return any(
        write.end.op == "retry"
        and write.outcome in {"accepted", "unknown"}
        and earlier.start.t_mono <= write.since <= later.start.t_mono
        for write in track.writes
    )


def _attempts_are_kept(track: Track, rules: Rules, findings: Findings) -> None:
    charged = [run for run in track.runs if run.charged]
    taken_back = sum(run.taken_back for run in charged)
    if rules.max_attempts is not None:
        findings.examined["I11"] += 1
        if len(charged) - taken_back > rules.max_attempts:
            text = f"{track.sent} was started {len(charged)} times in group {track.group!r}"
            text += f", {rules.max_attempts} are allowed and {taken_back} were taken back"
            findings.add("I11", text, *(run.start for run in charged))
    attempts = [run.start.attempt for run in charged]
    if not attempts or not all(attempts):
        return  # the history does not tell them
    findings.examined["I12"] += 1
    # A stale owner may start late, so the numbers count, and not the order between owners.
    numbers = set(attempts)
    repeats = len(attempts) - len(numbers)
    if repeats > taken_back or (
        not rules.attempt_gaps and numbers != set(range(1, len(numbers) + 1))
    ):
        text = f"{track.sent} ran in group {track.group!r} as attempts {attempts}"
        text += f" of which {taken_back} were taken back"
        findings.add("I12", text, *(run.start for run in charged))


def _nothing_runs_early(track: Track, rules: Rules, findings: Findings) -> None:
    findings.examined["I19"] += 1
    sent, start = track.sent, track.runs[0].start
    early_s = sent.first.t_mono + sent.first.delay_s - start.t_mono
    if early_s > rules.early_s:
        text = f"{sent} was started {early_s:.3f} s before it was due"
        findings.add("I19", text, sent.first, start)


def _starts_follow_the_producer(tracks: list[Track], findings: Findings) -> None:
    """Hold first starts against the order of the calls, where each call had one certain outcome."""
    lines: defaultdict[tuple[str, str, str], list[tuple[int, float, Track]]] = defaultdict(list)
    for track in tracks:
        sent = track.sent
        first = sent.first
        if first.key and sent.calls == 1 and sent.confirmed and not first.delay_s:
            line = lines[track.group, first.actor, first.key]
            line.append((first.seq, track.runs[0].start.t_mono, track))
    for line in lines.values():
        _hold_order(line, "its producer sent it before", findings)


def _starts_follow_the_log(tracks: list[Track], rules: Rules, findings: Findings) -> None:
    """Hold first starts against the entries' ids, within a key or within the whole partition."""
    lines: defaultdict[tuple[str, int | None, str], list[tuple[tuple[int, int], float, Track]]]
    lines = defaultdict(list)
    for track in tracks:
        key = track.sent.first.key if rules.ordering == "key" else ""
        place = _log_position(track.msg)
        if place is not None and (key or rules.ordering == "partition"):
            line = lines[track.group, track.partition, key]
            line.append((place, track.runs[0].start.t_mono, track))
    for line in lines.values():
        _hold_order(line, "it stands in the log before", findings)


def _log_position(msg: str) -> tuple[int, int] | None:
    milliseconds, _, number = msg.partition("-")
    if milliseconds.isdecimal() and number.isdecimal():
        return int(milliseconds), int(number)
    return None


def _hold_order(
    line: list[tuple[int, float, Track]] | list[tuple[tuple[int, int], float, Track]],
    why: str,
    findings: Findings,
) -> None:
    findings.examined["I05"] += len(line)
    line.sort(key=lambda entry: entry[:2])
    latest: tuple[float, Track] | None = None
    for _, started, track in line:
        if latest is not None:
            if latest[1].sent is track.sent:
                continue  # a replay starts late, and may
            if started < latest[0]:
                text = f"{latest[1].sent} was first started after {track.sent}, though {why}"
                starts = (latest[1].runs[0].start, track.runs[0].start)
                findings.add("I05", f"{text} (group {track.group!r})", *starts)
                continue
        latest = (started, track)


def _runs_do_not_overlap(tracks: list[Track], rules: Rules, findings: Findings) -> None:
    lines: defaultdict[tuple[str, object], list[tuple[float, float, Track, Run]]]
    lines = defaultdict(list)
    for track in tracks:
        by_partition = rules.ordering == "partition" and track.partition is not None
        place: object = track.partition if by_partition else track.sent.first.key
        if place == "":
            continue
        for run in track.runs:
            if run.accepted and run.finish is not None:
                begin, end = run.start.t_mono, run.finish.t_mono
                lines[track.group, place].append((begin, end, track, run))
    for line in lines.values():
        findings.examined["I06"] += len(line)
        line.sort(key=lambda entry: entry[:2])
        for (_, end, one, run), (begin, _, other, next_run) in pairwise(line):
            if begin < end:
                text = f"{one.sent} and {other.sent} ran at the same time in group {one.group!r}"
                findings.add("I06", text, run.start, run.finish, next_run.start)


class Losses:
    """What was killed, stopped or lost, and when."""

    def __init__(self, ledger: Ledger) -> None:
        self._losses = ledger.losses
        self._claims_lost = {
            (loss.actor, loss.msg)
            for loss in ledger.losses
            if loss.msg and loss.victim == loss.actor
        }
        self._granted = {
            (group, partition, grant.fence): grant.since
            for (group, partition), grants in ledger.grants.items()
            for grant in grants
        }

    def explain(self, track: Track, earlier: Run, later: Run) -> bool:
        """Whether the two runs of one message may both have happened.

        With known fences only what befell the older lease counts: a worker that once was stopped
        and has been given the partition again since has no excuse left. Who loses a single claim
        learns of it when the job is another's already.
        """
        if (earlier.start.actor, track.msg) in self._claims_lost:
            return True
        if earlier.fence is None or later.fence is None:
            actors, since = {earlier.start.actor, later.start.actor}, -inf
        elif earlier.fence == later.fence:
            actors, since = set[str](), earlier.start.t_mono
        else:
            older = min(earlier, later, key=_fence)
            actors = {older.start.actor}
            since = self._granted.get((track.group, track.partition, _fence(older)), -inf)
        same_lease = earlier.fence is not None and earlier.fence == later.fence
        return any(
            since <= loss.t_mono <= later.start.t_mono
            and (_hit_server(loss) or (not same_lease and _hit(loss, actors, track)))
            for loss in self._losses
        )


def _fence(run: Run) -> int:
    return -1 if run.fence is None else run.fence


def _hit_server(loss: Event) -> bool:
    return not loss.victim and loss.partition is None


def _hit(loss: Event, actors: set[str], track: Track) -> bool:
    if loss.partition is not None and loss.partition != track.partition:
        return False
    if loss.group and loss.group != track.group:
        return False
    return loss.victim in actors if loss.victim else loss.partition is not None
