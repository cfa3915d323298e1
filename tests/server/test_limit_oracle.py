"""No schedule brings a limit over any window, by a log of all uses that knows nothing of it."""

from __future__ import annotations

import time

import pytest

from .model.limit_player import play_all


async def test_random_schedules_never_exceed_a_window_and_use_what_there_is(
    valkey_server, open_client, namespace
):
    client = await open_client(valkey_server.url, namespace=namespace)
    assert await play_all(client, range(5_000)) > 10_000


@pytest.mark.torture
@pytest.mark.timeout(7_200)
async def test_a_million_random_schedules(valkey_server, open_client, namespace, figure):
    client = await open_client(valkey_server.url, namespace=namespace)
    count, began = 1_000_000, time.monotonic()
    first = int(time.time()) * 1_000_000
    await play_all(client, range(first, first + count))
    figure("torture-limits", "random schedules, none over a window", count, "", ">=", 1_000_000)
    figure("torture-limits", "their time", time.monotonic() - began, "s", "<=", 7_200)
