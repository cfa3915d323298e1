"""A caller that waits for a limit until it is killed. It is a program: URL, namespace, ticket_s."""

from __future__ import annotations

import asyncio
import sys

from penstock.coordination.limits.limit import Limit
from penstock.coordination.limits.setting import setting_of
from penstock.redis.client import Client
from penstock.settings import Settings
from penstock.settings.coordination import LimitSettings


async def main(url: str, namespace: str, rates: str, ticket_s: str) -> None:
    limits = LimitSettings(ticket_s=float(ticket_s), recheck_s=0.1)
    async with Client(Settings(url=url, namespace=namespace, limits=limits)) as client:
        await Limit(client, "shared", setting_of(rates)).acquire()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
