"""Whether a loss explains that a message ran again."""

from __future__ import annotations

from math import inf

from penstock.testing.history.ledger import Ledger, Run, Track
from penstock.testing.history.record import Event

__all__ = ["Losses"]


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
