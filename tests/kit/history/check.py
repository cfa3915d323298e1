"""Hold a history against what Penstock promises."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tests.kit.history.leases import check_leases
from tests.kit.history.ledger import Ledger
from tests.kit.history.messages import check_messages
from tests.kit.history.record import Event, in_order, no_collection
from tests.kit.history.runs import check_runs
from tests.kit.history.verdict import Findings, Ordering, Rules, Verdict

__all__ = ["check"]


def check(
    history: Iterable[Event],
    *,
    max_attempts: int | None = None,
    ordering: Ordering = "partition",
    groups: Collection[str] | None = None,
    attempt_gaps: bool = False,
    early_s: float = 0.0,
    waive: Collection[str] = (),
) -> Verdict:
    """Check the events of one topic, written by all actors, read when all was quiet.

    `max_attempts`   starts allowed for a message in a group (I11), and when it is exhausted (I15)
    `ordering`       what the subscription promised: order and no overlap within a partition, or
                     within a key, or neither (I05, I06)
    `groups`         groups that must see every message (I01); those of the history if not given
    `attempt_gaps`   whether attempts may be missing between those seen (I12), as after a kill
                     between counting and starting
    `early_s`        how much too early a delayed message may start (I19)
    `waive`          invariants that this run does not promise

    The invariants and what each needs are listed in docs/explanation/fault-testing.md.
    """
    rules = Rules(
        max_attempts=max_attempts,
        ordering=ordering,
        groups=None if groups is None else frozenset(groups),
        attempt_gaps=attempt_gaps,
        early_s=early_s,
    )
    findings = Findings()
    with no_collection():
        ledger = Ledger(in_order(history))
        counts = check_messages(ledger, rules, findings)
        check_runs(ledger, rules, findings)
        check_leases(ledger, findings)
    for invariant in waive:
        del findings.totals[invariant]
    violations = [found for found in findings.violations if found.invariant not in waive]
    return Verdict(violations, findings.totals, findings.examined, counts)
