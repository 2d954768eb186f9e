"""A store where channels meet, and both ends of one channel."""

from __future__ import annotations

import pytest

from bench.transfer.tcp_store import open_store_server
from tests.kv_transfer.rig import HOST
from tests.kv_transfer.transports.channel_rig import opened


@pytest.fixture(scope="module")
def store():
    return open_store_server(HOST, 5.0)


@pytest.fixture
def channels(request, store):
    """Both ends of one channel, opened at the same time as they must be."""
    with opened(request.param, store) as pair:
        yield pair
