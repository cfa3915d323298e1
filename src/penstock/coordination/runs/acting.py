"""What all that is done to a run has in common."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.coordination.repeating import until_known
from penstock.errors import InvalidItem, RunConflict, RunMissing, ServerError
from penstock.redis.client import Client
from penstock.redis.codec import Codec
from penstock.redis.wire import Command, Reply

__all__ = ["RunHandle", "ask"]

MISSING: Final = -1
_HOUR_MS: Final = 3_600_000


class RunHandle:
    """One run, by its id: what `Run` is made of."""

    def __init__(self, client: Client, codec: Codec, run_id: str) -> None:
        self.id = run_id
        self.keys = client.keys.run(run_id)
        self.client, self.codec = client, codec
        self._keep_ms = round(client.settings.runs.keep_hours * _HOUR_MS)
        self._failed_ms = round(client.settings.runs.failed_hours * _HOUR_MS)
        self._cap = client.settings.feeds.cap

    async def _act(self, call: Callable[[str], Awaitable[int]]) -> int:
        """Call a script under a name for this one call, until its answer is known."""
        token = uuid.uuid4().hex
        answer = await until_known(lambda: call(token))
        if answer == MISSING:
            raise RunMissing(self.id)
        return answer

    async def _compare(self, call: Callable[[str], Awaitable[tuple[int, int, str]]]) -> int:
        """As `_act`, for scripts that compare before they change; the new version."""
        token = uuid.uuid4().hex
        done, version, status = await until_known(lambda: call(token))
        if done == MISSING:
            raise RunMissing(self.id)
        if done < 0:
            raise InvalidItem("watermark: the run has one of another kind, number or text")
        if not done:
            raise RunConflict(self.id, status, version)
        return version


async def ask(client: Client, commands: Sequence[Command]) -> list[Reply]:
    """Send reads in one go; could not look is not the same as nothing there."""
    replies = await client.pipeline(commands)
    for reply in replies:
        if isinstance(reply, ServerError):
            raise reply
    return replies
