"""Let an acknowledgement get lost on its way."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Literal

from penstock.queues.storage.scripts import QUEUE_LUA
from penstock.testing.link import Rule, RuleKind
from penstock.testing.proxy import FaultProxy

__all__ = ["lose_ack"]

# Of `claim_jobs`, which acknowledges what is done and takes new jobs in one call: arguments before
# the claims that are done.
_CLAIM_ARGUMENTS = 8
_CALLS = {b"EVALSHA", b"EVAL"}


@contextmanager
def lose_ack(
    proxy: FaultProxy, *, lost: Literal["reply", "request"] = "reply", times: int = 1
) -> Generator[Rule]:
    """Lose the next acknowledgement of a job that goes through `proxy`, and cut its connection.

        with lose_ack(proxy) as rule:
            await run_until_idle(app)          # whose server is behind the proxy
        assert rule.hits == 1

    `lost="reply"`: the server has heard that the job is done, the worker does not know that it has.
    `lost="request"`: the server has not heard it. Either way the job is to be done once, since the
    worker says it again.
    """
    rule = proxy.add(_AckRule(RuleKind.SWALLOW if lost == "reply" else RuleKind.CUT, times))
    try:
        yield rule
    finally:
        proxy.remove(rule)


class _AckRule(Rule):
    """Takes calls of the scripts by which workers say that jobs are done."""

    def __init__(self, kind: RuleKind, times: int) -> None:
        super().__init__("*", kind, times)
        claiming, finishing = QUEUE_LUA.load("claim_jobs"), QUEUE_LUA.load("finish_jobs")
        self._claiming = {
            one.encode() for one in (claiming.digest, claiming.plain_digest, claiming.text)
        }
        self._finishing = {
            one.encode() for one in (finishing.digest, finishing.plain_digest, finishing.text)
        }

    def takes(self, request: Sequence[bytes]) -> bool:
        return self._acknowledges(request) and super().takes(request)

    def _acknowledges(self, request: Sequence[bytes]) -> bool:
        if len(request) <= 2 or request[0].upper() not in _CALLS:  # noqa: PLR2004
            return False
        _, script, keys, *rest = request
        if script in self._finishing:
            return True
        return script in self._claiming and len(rest) - int(keys) > _CLAIM_ARGUMENTS
