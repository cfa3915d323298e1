"""The peers of the suite `queues`, at the best setting that their documentation gives.

All but Huey acknowledge after the work. taskiq has the two processes that its command line makes,
because it is faster so; Penstock has one.
"""

from __future__ import annotations

from dataclasses import dataclass

from arena import Arena
from rivals import BULLMQ, DRAMATIQ, TASKIQ, Peer

_OLDER = "bench-older"


@dataclass(frozen=True, slots=True)
class QueuePeer(Peer):
    """A peer whose program to produce is told how many jobs to send one by one and in bulk."""

    alone_a_second: int = 0
    bulk_a_second: int = 0
    """0: it has no call for many jobs."""
    at_once_a_second: int = 0
    """0: it is not asked to send from many callers at once."""

    async def offers(self, arena: Arena, seconds: float) -> dict[str, float]:
        """Jobs a second taken from it: `alone`, `in bulk` if it can, `at once` if asked."""
        rates = (self.alone_a_second, self.bulk_a_second, self.at_once_a_second)
        return await self._send(arena, *(rate * seconds for rate in rates))

    async def works(self, arena: Arena, seconds: float) -> float:
        """Jobs a second that its worker ends, of as many as keep it busy for about so long."""
        count = self.about_a_second * seconds
        await self._send(arena, *((0, count) if self.bulk_a_second else (count, 0)))
        await arena.rest()
        return await self.drains(arena)

    async def _send(
        self, arena: Arena, alone: float, in_bulk: float, at_once: float = 0
    ) -> dict[str, float]:
        counts = [round(alone), round(in_bulk)]
        if self.at_once_a_second:
            counts.append(round(at_once))
        command = [*self.runtime(), *self.produce, "offer", *counts]
        return await arena.run(command, **self.environment())


CELERY = QueuePeer(
    "Celery",
    "python",
    1_200,
    (
        *("-m", "celery", "-A", "celery_peer", "worker", "--pool", "solo", "--loglevel", "ERROR"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ),
    ("celery_peer.py",),
    lambda arena: arena.counted(("LLEN", "orders"), ("HLEN", "unacked")),
    alone_a_second=2_000,
)
RQ = QueuePeer(
    "RQ",
    "python",
    260,
    ("rq_peer.py", "work"),
    ("rq_peer.py",),
    lambda arena: arena.counted(("LLEN", "rq:queue:orders"), ("ZCARD", "rq:wip:orders")),
    alone_a_second=2_400,
    bulk_a_second=10_000,
)
QUEUE_DRAMATIQ = QueuePeer(
    DRAMATIQ.name,
    DRAMATIQ.program,
    DRAMATIQ.about_a_second,
    DRAMATIQ.consume,
    ("dramatiq_offer.py",),
    DRAMATIQ.backlog,
    DRAMATIQ.variables,
    alone_a_second=5_000,
)
ARQ = QueuePeer(
    "arq",
    "python",
    2_500,
    ("arq_peer.py", "work"),
    ("arq_peer.py",),
    lambda arena: arena.counted(("ZCARD", "arq:queue")),
    packages=_OLDER,
    alone_a_second=2_700,
)
SAQ = QueuePeer(
    "SAQ",
    "python",
    2_800,
    ("saq_peer.py", "work"),
    ("saq_peer.py",),
    lambda arena: arena.counted(("ZCARD", "saq:orders:incomplete")),
    packages=_OLDER,
    alone_a_second=4_500,
)
STREAQ = QueuePeer(
    "streaq",
    "python",
    1_500,
    ("streaq_peer.py", "work"),
    ("streaq_peer.py",),
    lambda arena: arena.counted(("XLEN", "streaq:default:queues:normal")),
    alone_a_second=3_200,
    bulk_a_second=12_000,
)
QUEUE_TASKIQ = QueuePeer(
    TASKIQ.name,
    TASKIQ.program,
    TASKIQ.about_a_second,
    TASKIQ.consume,
    ("taskiq_offer.py",),
    alone_a_second=3_700,
)
HUEY = QueuePeer(
    "Huey",
    "python",
    3_600,
    ("huey_peer.py", "work"),
    ("huey_peer.py",),
    lambda arena: arena.counted(("LLEN", "huey.redis.orders")),
    alone_a_second=7_000,
)
BULLMQ_PYTHON = QueuePeer(
    "BullMQ for Python",
    "python",
    2_400,
    ("bullmq_python_peer.py", "work"),
    ("bullmq_python_peer.py",),
    BULLMQ.backlog,
    alone_a_second=4_400,
    bulk_a_second=16_000,
)
BULLMQ_NODE = QueuePeer(
    BULLMQ.name,
    BULLMQ.program,
    BULLMQ.about_a_second,
    BULLMQ.consume,
    ("bullmq_offer.mjs",),
    BULLMQ.backlog,
    alone_a_second=5_500,
    bulk_a_second=21_000,
    at_once_a_second=30_000,
)
PYTHON_PEERS = (*(CELERY, RQ, QUEUE_DRAMATIQ, ARQ, SAQ, STREAQ, QUEUE_TASKIQ, HUEY, BULLMQ_PYTHON),)
