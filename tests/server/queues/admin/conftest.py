"""A queue and what administrates it."""

from __future__ import annotations

import pytest
from tests.kit.queue_scripts import CODEC

from penstock.queues.admin.queue_admin import QueueAdmin
from penstock.queues.storage.keys import QueueKeyring
from penstock.redis.client import Client


@pytest.fixture
def keys(client: Client) -> QueueKeyring:
    return QueueKeyring.of(client.keys, "mail")


@pytest.fixture
def admin(client: Client) -> QueueAdmin:
    return QueueAdmin(client, CODEC)
